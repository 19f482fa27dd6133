"""The weights that a comparison is made with: every parameter is moved, so that none can be left out unseen."""

from __future__ import annotations

import math

import numpy as np

from migrate.sides.recipes import generator
from migrate.sides.torch_framework import moved_a_little

STATES = ("init", "trained")
SPREAD = 1.5
"""Standard deviation of what a product of a trained matrix adds, for inputs of unit size."""
SHIFT = 0.2
"""Standard deviation of what is added to vectors: biases, and weights of norms, which are about one."""


def move(state: str, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What is added to a parameter as its module makes it; the same in every process.

    `init` adds noise of 0.02 to everything: zeros of biases and ones of norms would hide a parameter that is not used.
    `trained` adds noise as large as training makes weights: products of matrices spread by 1.5, so attention is sharp,
    gates saturate, and functions that agree near zero only (the two GELUs) part.
    """
    if state == "init":
        return moved_a_little(name, shape)
    drawn = generator(f"trained weight {name}").standard_normal(shape)
    if len(shape) < 2:
        return np.asarray(drawn * SHIFT)
    return np.asarray(drawn * SPREAD / math.sqrt(math.prod(shape[1:])))
