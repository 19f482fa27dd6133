"""Collectives for Python objects: anything that pickle can carry; the ranks of one launch trust each other."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from mindspore import Tensor

from .distributed import ProcessGroup, default_group, source_rank, stacked


def objects_of_ranks(own: Any, group: ProcessGroup) -> list[Any]:
    """The object of every rank of the group, in order."""
    if group.size() == 1:
        return [own]
    data = np.frombuffer(pickle.dumps(own), np.uint8)
    lengths = stacked(Tensor(np.array([data.size], np.int64)), group).asnumpy()[:, 0]
    padded = np.zeros(int(lengths.max()), np.uint8)
    padded[: data.size] = data
    rows = stacked(Tensor(padded), group).asnumpy()
    return [pickle.loads(row[:length].tobytes()) for row, length in zip(rows, lengths, strict=True)]


def broadcast_object_list(object_list: list[Any], src: int | None = None, group: ProcessGroup | None = None) -> None:
    """Overwrite the items of a list with those of world rank `src`."""
    used = group or default_group()
    object_list[:] = objects_of_ranks(object_list, used)[used.ranks.index(source_rank(src, used))]


def all_gather_object(object_list: list[Any], obj: Any, group: ProcessGroup | None = None) -> None:
    """Overwrite the items of a list with the object of every rank."""
    for place, found in enumerate(objects_of_ranks(obj, group or default_group())):
        object_list[place] = found


def gather_object(
    obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: ProcessGroup | None = None
) -> None:
    """Overwrite the items of the list of world rank `dst` with the object of every rank; the others give no list.

    Raises:
        ValueError: the destination gives no list, or another rank gives one.
    """
    used = group or default_group()
    check_list(object_gather_list, source_rank(dst, used), used, "object_gather_list")
    found = objects_of_ranks(obj, used)
    if object_gather_list is not None:
        object_gather_list[: len(found)] = found


def scatter_object_list(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
) -> None:
    """Put this rank's item of the list of world rank `src` first in the output list.

    Raises:
        ValueError: the lists have the wrong lengths.
    """
    used = group or default_group()
    if not scatter_object_output_list:
        raise ValueError("Expected argument scatter_object_output_list to be a list of size at least 1.")
    items = objects_of_ranks(scatter_object_input_list, used)[used.ranks.index(source_rank(src, used))]
    if items is None or len(items) != used.size():
        raise ValueError(f"the source rank must give a list of {used.size()} objects")
    scatter_object_output_list[0] = items[used.rank()]


def check_list(given: object, root: int, group: ProcessGroup, name: str) -> None:
    """Only the rank at the root of a collective gives a list.

    Raises:
        ValueError: it does not, or another rank does.
    """
    at_root = group.ranks[group.rank()] == root
    if at_root and given is None:
        raise ValueError(f"Argument ``{name}`` must be specified on the rank that it belongs to.")
    if not at_root and given:
        raise ValueError(f"Argument ``{name}`` must NOT be specified on other ranks.")
