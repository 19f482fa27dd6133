"""Collectives in which ranks get different things: reduce, gather, scatter, reduce_scatter with lists, all_to_all.

Tensors are overwritten in place, as in torch; there are no gradients. On the CPU each carries what all ranks hold.
"""

from __future__ import annotations

from collections.abc import Sequence

import mindspore as ms
from mindspore import Tensor, ops

from .distributed import ProcessGroup, ReduceOp, Work, default_group, reduced, source_rank, stacked, write
from .object_collectives import check_list, objects_of_ranks


def reduce(
    tensor: Tensor,
    dst: int | None = None,
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine `tensor` of every rank and leave the result in that of world rank `dst`."""
    used = group or default_group()
    root = source_rank(dst, used)
    result = reduced(tensor, op, used)
    if used.ranks[used.rank()] == root:
        write(tensor, result)
    return Work() if async_op else None


def gather(
    tensor: Tensor,
    gather_list: list[Tensor] | None = None,
    dst: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Overwrite the tensors of the list of world rank `dst` with `tensor` of every rank.

    Raises:
        ValueError: the destination gives no list, or another rank gives one.
    """
    used = group or default_group()
    check_list(gather_list, source_rank(dst, used), used, "gather_list")
    rows = stacked(tensor, used)
    for place, target in enumerate(gather_list or ()):
        write(target, rows[place])
    return Work() if async_op else None


def scatter(
    tensor: Tensor,
    scatter_list: list[Tensor] | None = None,
    src: int | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Overwrite `tensor` with this rank's one of the list of world rank `src`.

    Raises:
        ValueError: the source gives no list, or another rank gives one.
    """
    used = group or default_group()
    root = source_rank(src, used)
    check_list(scatter_list, root, used, "scatter_list")
    own = ops.stack(scatter_list) if scatter_list else ops.zeros((used.size(), *tensor.shape), tensor.dtype)
    write(tensor, stacked(own, used)[used.ranks.index(root)][used.rank()])
    return Work() if async_op else None


def reduce_scatter(
    output: Tensor,
    input_list: Sequence[Tensor],
    op: ReduceOp = ReduceOp.SUM,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Combine the lists of all ranks and keep this rank's tensor of them in `output`.

    Raises:
        ValueError: the list has not one tensor per rank.
    """
    used = group or default_group()
    if len(input_list) != used.size():
        raise ValueError(f"input_list has {len(input_list)} tensors for {used.size()} ranks")
    # the tensors of a list may have different shapes
    results = [reduced(tensor, op, used) for tensor in input_list]
    write(output, results[used.rank()])
    return Work() if async_op else None


def all_to_all(
    output_tensor_list: Sequence[Tensor],
    input_tensor_list: Sequence[Tensor],
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """Send the i-th input to rank i and overwrite the i-th output with what rank i sent here."""
    used = group or default_group()
    wide = [t.astype(ms.float32) if t.dtype == ms.bfloat16 else t for t in input_tensor_list]  # numpy has no bfloat16
    sent = objects_of_ranks([t.asnumpy() for t in wide], used)
    for target, row in zip(output_tensor_list, sent, strict=True):
        write(target, Tensor(row[used.rank()]))
    return Work() if async_op else None


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: ProcessGroup | None = None,
    async_op: bool = False,
) -> Work | None:
    """`all_to_all` with parts of one tensor along its first axis, equal ones unless sizes are given.

    Raises:
        ValueError: the sizes do not add up, or what arrives does not fit.
    """
    used = group or default_group()
    parts = _parts(input, input_split_sizes, used)
    places = [ops.zeros_like(part) for part in _parts(output, output_split_sizes, used)]
    all_to_all(places, parts, used)
    write(output, ops.concat(places, 0))
    return Work() if async_op else None


def _parts(tensor: Tensor, sizes: Sequence[int] | None, group: ProcessGroup) -> list[Tensor]:
    length = tensor.shape[0]
    if not sizes:
        if length % group.size():
            raise ValueError(f"the first axis of {tensor.shape} cannot be divided evenly among {group.size()} ranks")
        sizes = [length // group.size()] * group.size()
    if len(sizes) != group.size() or sum(sizes) != length:
        raise ValueError(f"split sizes {list(sizes)} do not fit {length} rows and {group.size()} ranks")
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [tensor[start : start + size] for start, size in zip(starts, sizes, strict=True)]
