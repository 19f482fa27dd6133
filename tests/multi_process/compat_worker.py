"""Worker of test_compat.py: collectives and data parallel training by the helpers that converted scripts use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Parameter, Tensor

from ms_models.compat import distributed as dist
from ms_models.compat.backward import backward_of
from ms_models.compat.data_parallel import DistributedDataParallel
from ms_models.compat.fsdp import fully_sharded
from ms_models.compat.layers import Linear
from ms_models.compat.object_collectives import broadcast_object_list
from ms_models.compat.optim import SGD
from ms_models.compat.sharded import fully_shard

DTYPES = ("float32", "float16", "float64", "int64", "int32")


def operand(rank: int, dtype: str) -> np.ndarray[Any, Any]:
    """What a rank contributes."""
    return (np.arange(1, 5) * (rank + 1) - 3).astype(dtype)


def collectives() -> dict[str, Any]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        for op in dist.ReduceOp:
            tensor = Tensor(operand(rank, dtype))
            other = tensor  # a second name for the same tensor sees the result
            dist.all_reduce(tensor, op=op)
            found[f"{op.value} {dtype}"] = other.asnumpy().tolist()
    large = Tensor(np.array([2**40 + rank], np.int64))  # float32 could not hold it
    dist.all_reduce(large)
    found["large"] = large.asnumpy().tolist()
    flags = Tensor(np.array([rank == 0, True, False]))
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    found["flags"] = flags.asnumpy().tolist()
    sent = Tensor(operand(rank, "float32"))
    dist.broadcast(sent, src=1)
    found["broadcast"] = sent.asnumpy().tolist()
    places = [Tensor(np.zeros(4, np.int64)) for _ in range(size)]
    dist.all_gather(places, Tensor(operand(rank, "int64")))
    found["all_gather"] = [place.asnumpy().tolist() for place in places]
    joined = Tensor(np.zeros(4 * size, np.float32))
    dist.all_gather_into_tensor(joined, Tensor(operand(rank, "float32")))
    found["joined"] = joined.asnumpy().tolist()
    share = Tensor(np.zeros(4 // size, np.float32))
    dist.reduce_scatter_tensor(share, Tensor(operand(rank, "float32")))
    found["share"] = share.asnumpy().tolist()
    objects = [{"rank": rank}, "x" * (rank + 1)]
    broadcast_object_list(objects, src=1)
    found["objects"] = objects
    alone = dist.new_group([1])
    found["alone"] = None if alone is None else [dist.get_rank(alone), dist.get_world_size(alone)]
    dist.barrier()
    return found


def training(wrap: Callable[[Any], Any]) -> dict[str, Any]:
    """Three steps, the second of which only accumulates; each rank has its own start and its own batches."""
    rank = dist.get_rank()
    layer = Linear(3, 2)
    for number, parameter in enumerate(layer.parameters()):
        values = np.linspace(-1, 1, parameter.size, dtype=np.float32).reshape(parameter.shape)
        parameter.set_data(Tensor(values + number + rank))
    model: Any = wrap(layer)
    optimizer = SGD(model.parameters(), lr=0.1)
    step = backward_of(lambda x: (model(x) ** 2).mean(), model)
    history = []
    for turn in range(3):
        batch = Tensor(np.random.default_rng(10 * turn + rank).standard_normal((4, 3)).astype(np.float32))
        if turn == 1 and not hasattr(model, "no_sync"):
            model.set_requires_gradient_sync(False)
            step(batch)
            model.set_requires_gradient_sync(True)
            continue
        if turn == 1:
            with model.no_sync():
                step(batch)
            continue
        step(batch)
        optimizer.step()
        optimizer.zero_grad()
        history.append([parameter.asnumpy().tolist() for parameter in model.parameters()])
    return {"names": list(model.state_dict()), "history": history}


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    try:
        dist.init_process_group("gloo", world_size=3)
        refused = ""
    except ValueError as error:
        refused = str(error)
    dist.init_process_group("gloo", rank=int(dist.launched_ranks()[0]))
    calls: list[Any] = []
    dist.spawn(lambda *args: calls.append(args), args=("a",), nprocs=dist.get_world_size())
    place = [dist.get_rank(), dist.get_world_size(), isinstance(Linear(1, 1).weight, Parameter)]
    wrappers = {"replicated": DistributedDataParallel, "sharded": fully_shard, "wrapped": fully_sharded}
    runs = {name: training(wrap) for name, wrap in wrappers.items()}
    return {"place": place, "refused": refused, "spawned": calls, "collectives": collectives(), "training": runs}


if __name__ == "__main__":
    report(work)
