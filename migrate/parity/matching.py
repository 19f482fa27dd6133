"""Which tensor of one side is which of the other: by the user's file, by equal names, by MindSpore's spelling."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from mappings.errors import UserError

# MindSpore's own cells name their parameters and statistics otherwise.
SPELLINGS = (
    (re.compile(r"(^|\.)gamma$"), r"\1weight"),
    (re.compile(r"(^|\.)beta$"), r"\1bias"),
    (re.compile(r"(^|\.)embedding_table$"), r"\1weight"),
    (re.compile(r"(^|\.)moving_mean$"), r"\1running_mean"),
    (re.compile(r"(^|\.)moving_variance$"), r"\1running_var"),
    (re.compile(r"^(?:module|_backbone|backbone|network|_orig_mod)\."), ""),
)


@dataclass
class Matching:
    """Pairs, each with the pass that found it, and what is left over."""

    pairs: list[tuple[str, str, str]] = field(default_factory=list)
    """(name in the reference, name in the candidate, `file`, `exact` or `spelling`), in the order of the reference."""
    lacking: list[str] = field(default_factory=list)
    """Only in the reference."""
    strange: list[str] = field(default_factory=list)
    """Only in the candidate."""


def match(reference: Sequence[str], candidate: Sequence[str], given: Mapping[str, str]) -> Matching:
    """Matches names in three passes; what a pass has matched is out of the later ones.

    Args:
        reference: names of one side.
        candidate: of the other.
        given: reference name to candidate name, the first pass.

    Raises:
        UserError: `given` names a tensor that is not there, or one twice.
    """
    free = dict.fromkeys(candidate)
    found: dict[str, tuple[str, str]] = {}

    def take(name: str, other: str, how: str) -> None:
        found[name] = (other, how)
        del free[other]

    for name, other in given.items():
        if name in reference and other not in free:
            raise UserError(f"--map: {name!r} -> {other!r}: the candidate has no such tensor, or it is matched already")
        if name in reference:
            take(name, other, "file")
    for name in reference:
        if name not in found and name in free:
            take(name, name, "exact")
    spelled: dict[str, list[str]] = {}
    for other in free:
        spelled.setdefault(plain(other), []).append(other)
    for name in reference:
        others = spelled.get(plain(name), [])
        # Two that could be meant are none.
        if name not in found and len(others) == 1 and others[0] in free:
            take(name, others[0], "spelling")
    pairs = [(name, *found[name]) for name in reference if name in found]
    return Matching(pairs, [name for name in reference if name not in found], list(free))


def plain(name: str) -> str:
    """A name as PyTorch would have it."""
    for pattern, text in SPELLINGS:
        name = pattern.sub(text, name)
    return name


def read_map(path: Path) -> dict[str, str]:
    """A YAML or JSON file with a mapping of reference names to candidate names.

    Raises:
        UserError: it cannot be read, or holds something else.
    """
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
    if not isinstance(body, dict) or not all(isinstance(x, str) for pair in body.items() for x in pair):
        raise UserError(f"{path}: must be a mapping of names to names")
    return body
