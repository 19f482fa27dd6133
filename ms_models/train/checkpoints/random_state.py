"""Seeds and state of every random generator of a process: Python, NumPy, MindSpore's default generator.

MindSpore's older CPU operators (`ops.randn`, `ops.dropout`) draw from per-operator counters that offer no state; they
are seeded only. No model family draws random numbers while it trains.
"""

from __future__ import annotations

import random
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor


def seed_all(seed: int, rank: int) -> None:
    """Seeds every generator; ranks differ."""
    random.seed(seed + rank)
    np.random.seed((seed + rank) % 2**32)
    ms.set_seed(seed + rank)
    ms.manual_seed(seed + rank)


def seed_joined(seed: int, rank: int, step: int) -> None:
    """Seeds every generator of a rank that a run begins to have at a step: neither its first draws again, nor others'.

    Args:
        seed: of the run.
        rank: of the new world.
        step: of the checkpoint that was cut anew.
    """
    seed_all(int(np.random.SeedSequence([seed, rank, step]).generate_state(1)[0] >> 1), 0)


def capture() -> dict[str, Any]:
    """State of every generator as plain data."""
    version, numbers, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    assert isinstance(keys, np.ndarray)
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [name, keys.tolist(), position, has_gauss, cached],
        "mindspore": ms.get_rng_state().asnumpy().tolist(),
    }


def restore(state: dict[str, Any]) -> None:
    """Sets every generator to a captured state."""
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), position, has_gauss, cached))
    ms.set_rng_state(Tensor(np.array(state["mindspore"], np.uint8)))
