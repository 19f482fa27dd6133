"""Patterns such as `b (h d) n -> b h n d`, read into the numbers of a reshape, a transposition, a sum and a reshape."""

from __future__ import annotations

import re
from collections.abc import Sequence

ELLIPSIS = "..."
Axes = tuple[str, ...]
_TOKEN = re.compile(r"[\w.]+|[()]|\s+|.", re.DOTALL)


class EinopsError(RuntimeError):
    """A pattern that is wrong, or does not fit the tensor."""


def read_side(text: str, underscore: bool = False, repeated: bool = False) -> list[Axes]:
    """One side of a pattern: a group of axes per dimension; `1` is the empty group, `...` a group of its own.

    A number gets a name of its own (`3#0`), because every `3` is another axis. Of `(...)` and `(a ...)` the group holds
    the ellipsis as an axis among others, marked `(...)`.
    """
    groups: list[Axes] = []
    inside: list[str] | None = None
    seen: set[str] = set()
    for token in _TOKEN.findall(text):
        if token.isspace():
            continue
        if token == "(":
            if inside is not None:
                raise EinopsError(f"brackets inside brackets in {text!r}")
            inside = []
        elif token == ")":
            if inside is None:
                raise EinopsError(f"a bracket is closed that was not opened in {text!r}")
            groups.append(tuple(inside))
            inside = None
        else:
            name = _axis(token, text, len(seen), underscore)
            if name in seen and name != "1" and not repeated and not (underscore and name == "_"):
                raise EinopsError(f"the axis {name!r} stands twice in {text!r}")
            seen.add(name)
            single = () if name == "1" else (name,)
            if inside is None:
                groups.append(single)
            else:
                inside += ["(...)"] if name == ELLIPSIS else single
    if inside is not None:
        raise EinopsError(f"a bracket is not closed in {text!r}")
    return groups


def _axis(token: str, text: str, number: int, underscore: bool) -> str:
    if token == ELLIPSIS:
        return token
    if token.isdecimal():
        if int(token) == 0:
            raise EinopsError(f"an axis of length 0 in {text!r}")
        return "1" if int(token) == 1 else f"{int(token)}#{number}"
    if not is_axis_name(token) and not (underscore and token == "_"):
        raise EinopsError(f"{token!r} is no name of an axis in {text!r}")
    return token


def is_axis_name(name: str) -> bool:
    """Whether einops takes a name: an identifier without an underscore at its ends."""
    return name.isidentifier() and not name.startswith("_") and not name.endswith("_")


def read(pattern: str, operation: str, names: Sequence[str]) -> tuple[list[Axes], list[Axes]]:
    """Both sides of a pattern, checked as far as no tensor is needed.

    Args:
        pattern: `left -> right`.
        operation: `rearrange`, `repeat` or `reduce`.
        names: axes whose length is given.
    """
    parts = pattern.split("->")
    if len(parts) != 2:
        raise EinopsError(f"{pattern!r} needs one '->'")
    left, right = read_side(parts[0]), read_side(parts[1])
    before, after = {a for g in left for a in g}, {a for g in right for a in g}
    if "(...)" in before:
        raise EinopsError(f"the ellipsis stands in brackets on the left of {pattern!r}")
    after = {ELLIPSIS if a == "(...)" else a for a in after}
    numbers = {a for a in before | after if "#" in a}
    if ELLIPSIS in after - before:
        raise EinopsError(f"the ellipsis stands on the right of {pattern!r} only")
    if operation == "rearrange" and (numbers or before != after):
        wrong = sorted(numbers or before ^ after)
        raise EinopsError(f"the axes {_shown(wrong)} of {pattern!r} must stand on both sides")
    if operation == "repeat" and (before - after or after - before - numbers - set(names)):
        wrong = sorted(before - after or after - before - numbers - set(names))
        raise EinopsError(f"the axes {_shown(wrong)} of {pattern!r} vanish or have no length")
    if operation == "reduce" and after - before:
        raise EinopsError(f"the axes {_shown(sorted(after - before))} stand on the right of {pattern!r} only")
    for name in names:
        if not is_axis_name(name) or name not in before | after:
            raise EinopsError(f"a length is given for {name!r}, which {pattern!r} does not use")
    return left, right


Steps = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def steps(pattern: str, operation: str, shape: tuple[int, ...], lengths: tuple[tuple[str, int], ...]) -> Steps:
    """What to do with a tensor of a shape.

    Returns:
        shape with one dimension per axis; permutation that puts reduced axes last; numbers of these; shape with 1 at
        new axes; the same with their lengths; shape of the result.

    Raises:
        EinopsError: the pattern is wrong or does not fit.
    """
    sizes = dict(lengths)
    left, right = read(pattern, operation, tuple(sizes))
    left, right = without_ellipsis(left, right, len(shape), pattern)
    sizes.update({a: int(a.split("#")[0]) for g in (*left, *right) for a in g if "#" in a})
    for group, length in zip(left, shape, strict=True):
        solve(group, length, sizes, pattern, shape)
    before, after = [a for g in left for a in g], [a for g in right for a in g]
    kept = [a for a in after if a in before]
    reduced = [a for a in before if a not in after]
    order = tuple(before.index(a) for a in kept + reduced)
    ones = tuple(sizes[a] if a in before else 1 for a in after)
    full = tuple(sizes[a] for a in after)
    final = tuple(_product([sizes[a] for a in g]) for g in right)
    return (
        tuple(sizes[a] for a in before), order, tuple(range(len(kept), len(before))), ones, full, final,
    )  # fmt: skip


def without_ellipsis(left: list[Axes], right: list[Axes], rank: int, pattern: str) -> tuple[list[Axes], list[Axes]]:
    dots = (ELLIPSIS,) in left
    extra = rank - len(left) + dots
    if extra < 0 or (extra > 0 and not dots):
        raise EinopsError(f"{pattern!r} does not fit a tensor with {rank} dimensions")
    axes = tuple(f"...{i}" for i in range(extra))
    sides: list[list[Axes]] = []
    for groups in (left, right):
        side: list[Axes] = []
        for group in groups:
            if group == (ELLIPSIS,):
                side += [(axis,) for axis in axes]
            else:
                side.append(tuple(a for name in group for a in (axes if name == "(...)" else (name,))))
        sides.append(side)
    return sides[0], sides[1]


def solve(group: Axes, length: int, sizes: dict[str, int], pattern: str, shape: tuple[int, ...]) -> None:
    """The length of the one axis of a dimension that is not given."""
    unknown = [axis for axis in group if axis not in sizes]
    known = _product([sizes[axis] for axis in group if axis in sizes])
    if len(unknown) > 1:
        raise EinopsError(f"the lengths of {_shown(unknown)} in {pattern!r} cannot be told")
    if unknown and known and length % known == 0:
        sizes[unknown[0]] = length // known
    elif unknown or length != known:
        raise EinopsError(f"a dimension of length {length} does not fit {_shown(group)} in {pattern!r}, shape {shape}")


def _product(numbers: Sequence[int]) -> int:
    total = 1
    for number in numbers:
        total *= number
    return total


def _shown(axes: Sequence[str]) -> str:
    return " ".join(a.split("#")[0] for a in axes) or "1"
