"""A process that msrun started becomes a rank, with rows of its own of every batch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from migrate.parity.layouts.request import Request


def join(request: Request) -> Any:
    """The mesh of this rank; None in the process that only serves the ranks, once they have ended.

    Args:
        request: the layout.
    """
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mindspore.communication import init

        init()
        return None
    import mindspore

    from ms_models.parallel.mesh import Mesh

    mindspore.runtime.launch_blocking()  # otherwise an error surfaces at a later line and blames another stage
    return Mesh.from_environment(request.layout)


def own_rows(count: int, mesh: Any) -> np.ndarray:
    """Which rows of a batch of `count` this rank's replica has: consecutive ones, as many for each."""
    here, rows = mesh.coordinates["dp"], count // mesh.layout.dp
    return np.arange(here * rows, (here + 1) * rows)


def micro_batches(batch: Mapping[str, np.ndarray], rows: np.ndarray) -> list[dict[str, np.ndarray]]:
    """One per row, as the runner takes them: int32, and without segments, of which it knows the first one only."""
    narrow = {name: values.astype(np.int32) for name, values in batch.items() if name != "token_type_ids"}
    return [{name: values[row : row + 1] for name, values in narrow.items()} for row in rows]
