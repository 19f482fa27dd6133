"""`gather_figures`: a few figures of every rank, on every rank."""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh


def gather_figures(figures: Sequence[float], mesh: Mesh) -> np.ndarray:
    """Every rank calls it, with as many figures.

    Returns:
        `[world, figures]` fp32, by rank.
    """
    world = mesh.layout.world_size
    own = np.zeros((world, len(figures)), np.float32)
    own[mesh.rank] = figures
    if world == 1:
        return own
    # Zeros of all other ranks are added, so that each row arrives as it was sent.
    return np.asarray(all_reduce(Tensor(own, ms.float32), mesh.group("tp", "cp", "dp", "pp")).asnumpy())
