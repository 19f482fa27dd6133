"""`set_seed`: one seed for Python, numpy and MindSpore."""

from __future__ import annotations

import random

import numpy as np

from .random import manual_seed


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed Python's, numpy's and MindSpore's random numbers; `deterministic` asks for what is always so here."""
    random.seed(seed)
    np.random.seed(seed)
    manual_seed(seed)


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """`set_seed`; the kernels need no switch to give the same numbers again."""
    set_seed(seed)
