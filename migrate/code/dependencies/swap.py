"""A list of requirements with MindSpore in place of torch; every format of file says its own lists in these terms."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass, field

from migrate.code.names.torch_packages import TORCH_PACKAGES

MINDSPORE, NUMPY = "mindspore", "numpy"
VERSIONS = {MINDSPORE: "==2.10.*", NUMPY: ">=1.26,<2"}
_FRAMEWORK = ("torch", "pytorch")
_COMPANIONS = ("torchvision", "torchaudio", "torchtext", "torchdata", "functorch")
"""Packages of the PyTorch project that come with torch; without a use in the repository they go with it."""
_RUNTIME = ("pytorch-cuda", "pytorch-mutex", "pytorch-triton", "cpuonly", "triton")
"""What exists only to run torch."""
# A requirement starts with its name; what follows is extras, a version, a URL, a marker or a comment (PEP 508).
_NAME = re.compile(r"^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=$|[\[<>=!~;@#,( ])")
_EXTRAS = re.compile(r"^(\s*[\w.-]+)\s*\[([^\]]*)\]")
_MARKER = re.compile(r"\s*;.*$", re.DOTALL)
_FITTING = re.compile(r"==\s*1\.26(\.\d+|\.\*)?$")


@dataclass(frozen=True)
class Problem:
    """A requirement that a person has to look at."""

    place: int
    """In the list, from 0."""
    name: str
    advice: str


@dataclass
class Swap:
    """What becomes of each requirement of a list: none, itself, or others."""

    items: list[tuple[str, ...]]
    problems: list[Problem] = field(default_factory=list)

    def result(self) -> list[str]:
        """The new list."""
        return [text for texts in self.items for text in texts]


def name_of(requirement: str) -> str | None:
    """Normalized name (PEP 503) of a requirement; None if the text is none."""
    match = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else None


def is_framework(name: str | None) -> bool:
    """Whether a requirement of this name is torch itself."""
    return name in _FRAMEWORK


def goes(name: str | None, imported: Set[str]) -> bool:
    """Whether a package leaves together with torch."""
    return name in _RUNTIME or (name in _COMPANIONS and name not in imported)


def problem_of(name: str | None, imported: Set[str]) -> str | None:
    """What to do about a package that stays and needs torch."""
    if name is None or is_framework(name) or goes(name, imported):
        return None
    return TORCH_PACKAGES.get(name.replace("-", "_"))


def swap(requirements: Sequence[str], imported: Set[str]) -> Swap:
    """Replaces torch in a list of requirements (PEP 508).

    Environment markers stay; extras, versions and URLs of torch go. numpy gets the versions that MindSpore runs with.

    Args:
        requirements: without comments; options and references to other files are left as they are.
        imported: top-level names that the repository imports.
    """
    names = [name_of(text) for text in requirements]
    problems = [
        Problem(place, name, advice)
        for place, name in enumerate(names)
        if name is not None and (advice := problem_of(name, imported)) is not None
    ]
    requirements = [_without_torch_extra(text) for text in requirements]
    if not any(is_framework(name) for name in names):
        return Swap([(text,) for text in requirements], problems)
    result: list[tuple[str, ...]] = []
    written: set[str] = set()
    for text, name in zip(requirements, names, strict=True):
        if is_framework(name):
            new = [pinned(MINDSPORE, text)]
            if NUMPY not in names:
                new.append(pinned(NUMPY, text))
            result.append(tuple(entry for entry in new if entry not in written))
            written.update(new)
        elif goes(name, imported):
            result.append(())
        elif name == NUMPY and not _FITTING.search(_MARKER.sub("", text).strip()):
            result.append((pinned(NUMPY, text),))
        else:
            result.append((text,))
    return Swap(result, problems)


def _without_torch_extra(requirement: str) -> str:
    """`transformers[torch]` asks for torch in other words."""
    match = _EXTRAS.match(requirement)
    extras = [] if match is None else [extra.strip() for extra in match[2].split(",")]
    kept = [extra for extra in extras if not is_framework(extra)]
    if match is None or len(kept) == len(extras):
        return requirement
    return match[1] + (f"[{','.join(kept)}]" if kept else "") + requirement[match.end() :]


def pinned(package: str, like: str) -> str:
    """The requirement of a package under the marker of another requirement."""
    marker = _MARKER.search(like)
    return f"{package}{VERSIONS[package]}{marker[0].rstrip() if marker else ''}"
