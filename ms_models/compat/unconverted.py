"""Stand-ins for names of torch, and of packages around it, that were not converted, where torch is not installed.

They raise an error when they are used, not on import.

Converted code has `TODO(msmigrate:...)` above every line that still needs one of them.
"""

from __future__ import annotations

from typing import Any, NoReturn


class NotConvertedError(NotImplementedError):
    """A line was reached that still needs torch."""


class Unconverted:
    """A name that needs torch. It can be imported, stand in an annotation and be the base of a class.

    Everything else, and making an object of such a class, raises `NotConvertedError`.
    """

    def __init__(self, name: str) -> None:
        if "_name" in vars(self):  # `nn.Module.__init__(self)`
            self._refuse()
        self._name = name

    def __getattr__(self, name: str) -> Unconverted:
        if name.startswith("__"):
            raise AttributeError(f"{self._name}.{name}: torch is not installed, and this line was not converted")
        return Unconverted(f"{self._name}.{name}")

    def __or__(self, other: Any) -> Unconverted:
        return self

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"<{self._name}, not converted>"

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        raise NotConvertedError(
            f"{self._name} was not converted to MindSpore, and torch is not installed; "
            "the line that uses it is listed in MIGRATION.md"
        )

    def __mro_entries__(self, _bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (type(self._name.rpartition(".")[2], (), {"__new__": self._refuse}),)

    __call__ = __instancecheck__ = __subclasscheck__ = _refuse
    __getitem__ = __iter__ = __len__ = __bool__ = __eq__ = __ne__ = __hash__ = __enter__ = __exit__ = _refuse


def __getattr__(name: str) -> Unconverted:
    """Every name exists here, so that `from ms_compat.unconverted import torch` stands in for `import torch`."""
    if name.startswith("__"):
        raise AttributeError(name)
    return Unconverted(name)
