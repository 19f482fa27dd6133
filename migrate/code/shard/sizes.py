"""Lengths of axes as products of named factors, so that `n_head * head_dim` is known to be what a reshape splits."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

_unknown = itertools.count()


@dataclass(frozen=True)
class Quotient:
    """A whole-number quotient of two products."""

    numerator: tuple[Factor, ...]
    denominator: tuple[Factor, ...]


Factor = str | Quotient


@dataclass(frozen=True)
class Size:
    """The length of an axis, or a number that may become one.

    `factors` name the length in the unchanged program; none at all is one.
    """

    factors: tuple[Factor, ...] = ()
    cut: bool = False
    """Whether a rank has its share of this length only."""
    inferred: bool = False
    """-1 in a shape."""
    rest: bool = False
    """Not one axis but any number of leading ones."""


INFERRED = Size(inferred=True)


def unknown() -> Size:
    """A length that equals no other one."""
    return Size((f"?{next(_unknown)}",))


def named(text: str) -> Size:
    """The length that an expression of the program gives."""
    return Size(() if text == "1" else (text,))


def product(sizes: Iterable[Size]) -> Size:
    """The product; a share if one of the factors is."""
    found = list(sizes)
    return Size(_simplified([f for size in found for f in size.factors]), cut=any(size.cut for size in found))


def quotient(left: Size, right: Size) -> Size:
    """`left // right`. The ratio of two shares is the ratio of the wholes."""
    above, below = Counter(left.factors), Counter(right.factors)
    shared = above & below
    numerator, denominator = _ordered((above - shared).elements()), _ordered((below - shared).elements())
    factors = numerator if not denominator else (Quotient(numerator, denominator),)
    return Size(factors, cut=left.cut and not right.cut)


def _simplified(factors: list[Factor]) -> tuple[Factor, ...]:
    """`a * (b // a)` is `b`: a program that reshapes by it has checked that a divides b, or fails."""
    for factor in factors:
        if isinstance(factor, Quotient):
            others = Counter(factors) - Counter([factor])
            below = Counter(factor.denominator)
            if not below - others:
                return _simplified([*(others - below).elements(), *factor.numerator])
    return _ordered(factors)


def _ordered(factors: Iterable[Factor]) -> tuple[Factor, ...]:
    return tuple(sorted(factors, key=repr))
