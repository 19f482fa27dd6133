"""The mesh that sharded layers of converted code belong to: their constructors have no argument for it."""

from __future__ import annotations

import os

import mindspore as ms
import numpy as np

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.parallel.mesh import Group, Mesh

SEED = 0
_mesh: Mesh | None = None


def set_mesh(mesh: Mesh | None) -> None:
    """Say on which mesh models are built from now on. None: all processes that msrun started are tensor parallel.

    `Mesh.from_environment(ParallelLayout(tp=2, dp=2))` has data parallel replicas as well.
    """
    global _mesh
    _mesh = mesh


def tensor_parallel_group() -> Group:
    """The ranks over which layers that are built now are cut."""
    global _mesh
    if _mesh is None:
        _mesh = Mesh.from_environment(ParallelLayout(tp=int(os.environ.get("MS_WORKER_NUM", "1"))))
    if _mesh.layout.tp > 1 and ms.get_seed() is None:
        # Dropout of what every rank has must drop the same places; a program that seeds does so itself.
        numpy_state = np.random.get_state()
        ms.set_seed(SEED)
        ms.manual_seed(SEED)
        np.random.set_state(numpy_state)
    return _mesh.group("tp")


def share_of(count: int, what: str, group: Group) -> int:
    """`count` divided by the ranks.

    Raises:
        UserError: it cannot be divided evenly.
    """
    if count % group.size:
        fit = max(n for n in range(1, group.size) if count % n == 0)
        raise UserError(f"tensor parallel: {group.size} ranks do not divide the {count} {what}; {fit} would")
    return count // group.size


def local(count: int) -> int:
    """How many of `count` heads or features this rank holds.

    Raises:
        UserError: they cannot be divided evenly.
    """
    return share_of(count, "heads or features", tensor_parallel_group())
