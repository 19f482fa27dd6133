"""Element-wise comparison of two arrays. NaN and infinity equal nothing, not even themselves."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Difference:
    """How far a candidate tensor is from its reference."""

    name: str
    elements: int
    """Elements compared."""
    relative: float
    """Euclidean norm of the difference over that of the reference; infinite where it cannot be formed."""
    element: float
    """Largest difference of one element over the root mean square of the reference's elements."""
    differing: int
    """Elements whose bits differ."""
    worst: tuple[int, ...]
    """Index of the largest difference."""
    reference: float
    candidate: float
    """Both values at `worst`."""
    problem: str | None = None
    """Why a comparison is meaningless: shape, dtype, NaN or infinity."""
    zeros: bool = False
    """The reference is zero everywhere."""
    silent: bool = False
    """The candidate is zero everywhere, the reference is not."""

    def where(self) -> str:
        """The worst element and its two values."""
        index = "".join(f"[{i}]" for i in self.worst)
        return f"worst element {index or 'scalar'}: reference {self.reference:.9g}, candidate {self.candidate:.9g}"


def compare(name: str, reference: np.ndarray, candidate: np.ndarray, mask: np.ndarray | None = None) -> Difference:
    """Compares two arrays in fp64.

    Args:
        name: for the result.
        reference: what is right.
        candidate: what is judged.
        mask: nonzero where the leading axes count; the rest is left out.
    """
    if reference.shape != candidate.shape or reference.dtype != candidate.dtype:
        sides = [f"{values.dtype} {list(values.shape)}" for values in (reference, candidate)]
        return _incomparable(name, f"reference is {sides[0]}, candidate {sides[1]}")
    if mask is not None and reference.shape[: mask.ndim] != mask.shape:
        problem = f"shape {list(reference.shape)} does not begin with that of the batch, {list(mask.shape)}"
        return _incomparable(name, problem)
    counts = np.ones(reference.shape, bool) if mask is None else _spread(mask, reference.shape)
    elements = int(counts.sum())
    if not elements:
        return _incomparable(name, "nothing to compare: no elements")
    for side, values in (("reference", reference), ("candidate", candidate)):
        bad = counts & ~np.isfinite(values)
        if bad.any():
            worst = _index(int(bad.argmax()), reference.shape)
            problem = f"the {side} holds {int(bad.sum())} NaN or infinite values, the first at {list(worst)}"
            there = float(reference[worst]), float(candidate[worst])
            return Difference(name, elements, np.inf, np.inf, 0, worst, *there, problem)
    wide = np.where(counts, reference, 0).astype(np.float64)
    apart = np.where(counts, candidate, 0).astype(np.float64) - wide
    size, distance = float(np.linalg.norm(wide)), float(np.linalg.norm(apart))
    worst = _index(int(np.abs(apart).argmax()), reference.shape)
    return Difference(
        name,
        elements,
        _ratio(distance, size),
        _ratio(float(np.abs(apart[worst])), size / elements**0.5),
        int((counts & (_bits(reference) != _bits(candidate))).sum()),
        worst,
        float(reference[worst]),
        float(candidate[worst]),
        zeros=size == 0.0,
        silent=size > 0.0 and not candidate[counts].any(),
    )


def _incomparable(name: str, problem: str) -> Difference:
    return Difference(name, 0, np.inf, np.inf, 0, (), np.nan, np.nan, problem)


def _ratio(difference: float, size: float) -> float:
    if difference == 0.0:
        return 0.0
    return difference / size if size else np.inf


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values


def _spread(mask: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    extra = (1,) * (len(shape) - mask.ndim)
    return np.broadcast_to((mask != 0).reshape(mask.shape + extra), shape)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))
