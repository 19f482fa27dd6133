"""Gradients that are nothing but rounding in PyTorch are compared with that rounding."""

from __future__ import annotations

import numpy as np

from migrate.captures.compare import compare
from migrate.parity.tolerances import Tolerances, forgiven, limits_of, raised

ROUNDING = np.array([3e-8, -2e-8], np.float32)
BOUNDS = Tolerances()


def passes(reference: np.ndarray, candidate: np.ndarray, exact: np.ndarray, largest: float) -> bool:
    """Whether one gradient passes beside others, of which the largest element is given."""
    result = compare("bias", reference, candidate)
    own = compare("bias", reference.astype(np.float64), exact)
    limits = [raised(limits_of("G", [result], BOUNDS)[0], own, BOUNDS)]
    (limit,) = forgiven(limits, [result], largest, BOUNDS)
    return result.relative <= limit.relative and result.element <= limit.element


def test_a_gradient_that_is_all_rounding_may_be_any_rounding() -> None:
    nothing = np.full(2, 1e-17)
    for largest in (1.0, 1e-3):
        assert passes(ROUNDING, -ROUNDING, nothing, largest)
        assert passes(ROUNDING, np.zeros_like(ROUNDING), nothing, largest)
        assert not passes(ROUNDING, 10 * ROUNDING, nothing, largest)


def test_a_gradient_that_is_partly_rounding_may_be_off_where_others_are_large() -> None:
    exact = 0.8 * ROUNDING.astype(np.float64)
    assert passes(ROUNDING, np.float32(0.5) * ROUNDING, exact, 1.0)
    assert not passes(ROUNDING, np.float32(0.5) * ROUNDING, exact, 1e-3)


def test_a_gradient_that_is_no_rounding_is_bound_as_all_are() -> None:
    exact = ROUNDING.astype(np.float64)
    assert passes(ROUNDING, ROUNDING, exact, 1.0)
    assert not passes(ROUNDING, np.float32(1.001) * ROUNDING, exact, 1.0)
    assert not passes(ROUNDING, -ROUNDING, exact, 1.0)
