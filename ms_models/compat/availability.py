"""What transformers' code asks about torch: the converted code stands where torch 2.13 stood.

The helpers were measured against that version, so a question about versions is answered by it.
"""

from __future__ import annotations

_STANDS_FOR = (2, 13, 0)


def is_torch_available() -> bool:
    """Whether tensors and models can be used: they can, on MindSpore."""
    return True


def _version(text: str) -> tuple[int, ...]:
    numbers = [int(part) for part in text.split("+")[0].split(".") if part.isdigit()]
    return tuple((numbers + [0, 0, 0])[:3])


def is_torch_greater_or_equal(library_version: str, accept_dev: bool = False) -> bool:
    """Whether torch's behaviour is at least that of a version."""
    return _version(library_version) <= _STANDS_FOR


def is_torch_less_or_equal(library_version: str, accept_dev: bool = False) -> bool:
    """Whether torch's behaviour is at most that of a version."""
    return _version(library_version) >= _STANDS_FOR
