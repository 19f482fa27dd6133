"""Worker of test_plan.py: a small Llama-like model, made parallel by a plan as torch users write it, on two ranks."""

from __future__ import annotations

import sys
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Parameter, Tensor, ops

from ms_models.compat import distributed as dist
from ms_models.compat.backward import backward_of
from ms_models.compat.containers import ModuleList
from ms_models.compat.device_mesh import init_device_mesh
from ms_models.compat.dtensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from ms_models.compat.exchanges import all_to_all_single, gather, reduce, reduce_scatter, scatter
from ms_models.compat.functional_collectives import all_reduce
from ms_models.compat.gradients import clip_grad_norm_
from ms_models.compat.layers import Embedding, Linear
from ms_models.compat.module import Module
from ms_models.compat.module_layouts import PrepareModuleInput
from ms_models.compat.normalization import RMSNorm
from ms_models.compat.object_collectives import all_gather_object, gather_object, scatter_object_list
from ms_models.compat.optim import SGD
from ms_models.compat.parallelize import parallelize_module
from ms_models.compat.tensor_parallel import ColwiseParallel, RowwiseParallel, SequenceParallel

VOCABULARY, WIDTH, HEADS, INNER, LENGTH, CLIP = 12, 8, 2, 16, 6, 0.5
PLANS = ("tensor", "sequence")


class Attention(Module):
    """Causal attention over the heads that this rank has; biases, so that their gradients are looked at too."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (Linear(WIDTH, WIDTH) for _ in range(3))
        self.o = Linear(WIDTH, WIDTH)

    def construct(self, x: Any) -> Tensor:
        q, k, v = (self._heads(layer(x)) for layer in (self.q, self.k, self.v))
        scores = ops.matmul(q, k.swapaxes(-1, -2)) / (WIDTH // HEADS) ** 0.5
        ahead = Tensor(np.triu(np.ones((LENGTH, LENGTH), bool), 1))
        scores = ops.masked_fill(scores, ahead, -1e9)
        mixed = ops.matmul(ops.softmax(scores, -1), v).swapaxes(1, 2)
        return self.o(mixed.reshape(mixed.shape[0], LENGTH, -1))

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape(x.shape[0], LENGTH, -1, WIDTH // HEADS).swapaxes(1, 2)


class FeedForward(Module):
    """Gated."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = Linear(WIDTH, INNER, bias=False), Linear(WIDTH, INNER, bias=False)
        self.down = Linear(INNER, WIDTH, bias=False)

    def construct(self, x: Any) -> Tensor:
        gate = self.gate(x)
        return self.down(gate * ops.sigmoid(gate) * self.up(x))


class Block(Module):
    """Attention and feed-forward part, each after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = RMSNorm(WIDTH, eps=1e-6), RMSNorm(WIDTH, eps=1e-6)
        self.attention, self.mlp = Attention(), FeedForward()

    def construct(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Model(Module):
    """Two blocks between embedding and head; returns logits."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = Embedding(VOCABULARY, WIDTH, padding_idx=7)
        self.layers = ModuleList([Block(), Block()])
        self.norm = RMSNorm(WIDTH, eps=1e-6)
        self.head = Linear(WIDTH, VOCABULARY, bias=False)

    def construct(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def start_value(name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Initial values of a parameter, the same for both frameworks."""
    rng = np.random.default_rng(sum(name.encode()))
    return (rng.standard_normal(shape) * 0.3 + (1.0 if "norm" in name else 0.0)).astype(np.float32)


def tokens() -> np.ndarray[Any, Any]:
    """Two sequences, with the padding id and ids of both halves of the vocabulary."""
    return np.random.default_rng(3).integers(0, VOCABULARY, (2, LENGTH))


def targets() -> np.ndarray[Any, Any]:
    """What the model should say."""
    return np.random.default_rng(4).integers(0, VOCABULARY, (2, LENGTH))


def plan_of(kind: str) -> dict[str, Any]:
    shared = {
        "layers.*.attention.q": ColwiseParallel(),
        "layers.*.attention.k": ColwiseParallel(),
        "layers.*.attention.v": ColwiseParallel(),
        "layers.*.mlp.gate": ColwiseParallel(),
        "layers.*.mlp.up": ColwiseParallel(),
    }
    if kind == "tensor":
        return {
            "embedding": RowwiseParallel(input_layouts=Replicate()),
            **shared,
            "layers.*.attention.o": RowwiseParallel(),
            "layers.*.mlp.down": RowwiseParallel(),
            "head": ColwiseParallel(output_layouts=Replicate()),
        }
    enter = PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    return {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "layers.*.attention_norm": SequenceParallel(),
        "layers.*.mlp_norm": SequenceParallel(),
        "layers.*.attention": enter,
        "layers.*.mlp": enter,
        **shared,
        "layers.*.attention.o": RowwiseParallel(output_layouts=Shard(1)),
        "layers.*.mlp.down": RowwiseParallel(output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def run(kind: str) -> dict[str, Any]:
    """One step of training; gradients and parameters as the ranks hold them together."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))["tp"]
    model = Model()
    for name, parameter in model.named_parameters():
        # only rank 0 has the right values: the others must receive them
        parameter.set_data(Tensor(start_value(name, parameter.shape) + dist.get_rank() * ("norm" not in name)))
    parallelize_module(model, mesh, plan_of(kind))
    optimizer = SGD(model.parameters(), lr=0.5)

    def loss_and_logits(ids: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(ids)
        return ops.cross_entropy(logits.reshape(-1, VOCABULARY), wanted.reshape(-1)), logits

    step = backward_of(loss_and_logits, model)
    loss, logits = step(Tensor(tokens()), Tensor(targets().astype(np.int32)))
    gradients = {name: whole(p, p.grad) for name, p in model.named_parameters()}
    norm = clip_grad_norm_(model.parameters(), CLIP)
    optimizer.step()
    updated = {name: whole(p, p) for name, p in model.named_parameters()}
    shapes = {name: list(p.shape) for name, p in model.state_dict().items()}
    return {
        "loss": float(loss.asnumpy()),
        "logits": logits.asnumpy().tolist(),
        "gradients": gradients,
        "norm": float(norm.asnumpy()),
        "updated": updated,
        "shapes": shapes,
    }


def whole(parameter: Parameter, value: Tensor) -> Any:
    """A value that is laid out like a parameter, on every rank."""
    if not isinstance(parameter, DTensor):
        return value.asnumpy().tolist()
    return DTensor(value, parameter.device_mesh, parameter.placements).full_tensor().asnumpy().tolist()


def layouts() -> dict[str, Any]:
    """Values and gradients of every change of layout, and the exchanges that have no gradient."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2,))
    whole_one = Tensor(np.arange(16, dtype=np.float32).reshape(4, 4) + 100 * rank)
    spread = distribute_tensor(whole_one, mesh, [Shard(1)])  # rank 0's values
    found: dict[str, Any] = {
        "spread": spread.to_local().asnumpy().tolist(),
        "turned": spread.redistribute(placements=[Shard(0)]).to_local().asnumpy().tolist(),
        "full": spread.full_tensor().asnumpy().tolist(),
        "own": distribute_tensor(whole_one, mesh, [Replicate()], src_data_rank=None).to_local().asnumpy().tolist(),
    }
    local = Tensor(np.full((2, 2), rank + 1.0, np.float32))
    weights = Tensor(np.arange(16, dtype=np.float32).reshape(4, 4))
    for name, before, after in [
        ("shard to replicate", Shard(0), Replicate()),
        ("replicate to shard", Replicate(), Shard(-1)),
        ("partial to replicate", Partial(), Replicate()),
        ("partial to shard", Partial(), Shard(0)),
        ("shard to shard", Shard(1), Shard(0)),
    ]:

        def weighted(x: Tensor, before: Any = before, after: Any = after) -> Any:
            out = DTensor.from_local(x, mesh, [before]).redistribute(placements=[after]).to_local()
            return (out * weights[: out.shape[0], : out.shape[1]]).sum(), out

        (_, out), gradient = ms.value_and_grad(weighted, 0, None, has_aux=True)(local)
        found[name] = [out.asnumpy().tolist(), gradient.asnumpy().tolist()]
    total, gradient = ms.value_and_grad(lambda x: (all_reduce(x, "sum", mesh) * (rank + 1)).sum(), 0)(local)
    found["functional"] = [float(total.asnumpy()), gradient.asnumpy().tolist()]
    x = Tensor(np.arange(4) + 10 * rank)
    only = Tensor(np.arange(4) + 10 * rank)
    reduce(only, dst=1)
    places = [Tensor(np.zeros(4, np.int64)) for _ in range(2)] if rank == 1 else None
    gather(x, places, dst=1)
    given = Tensor(np.zeros(2, np.int64))
    scatter(given, [x[:2], x[2:]] if rank == 1 else None, src=1)
    share = Tensor(np.zeros(2, np.int64))
    reduce_scatter(share, [x[:2], x[2:]])
    sizes = [[1, 3], [2, 2]]  # what each rank sends
    swapped = Tensor(np.zeros(sizes[0][rank] + sizes[1][rank], np.int64))
    all_to_all_single(swapped, x, [sizes[0][rank], sizes[1][rank]], sizes[rank])
    everyone: list[Any] = [None, None]
    all_gather_object(everyone, "r" * (rank + 1))
    at_root: list[Any] | None = [None, None] if rank == 0 else None
    gather_object(rank, at_root, dst=0)
    item: list[Any] = [None]
    scatter_object_list(item, ["a", {"b": 1}] if rank == 0 else None, src=0)
    found["exchanges"] = {
        "reduce": only.asnumpy().tolist(),
        "gather": None if places is None else [p.asnumpy().tolist() for p in places],
        "scatter": given.asnumpy().tolist(),
        "reduce_scatter": share.asnumpy().tolist(),
        "all_to_all": swapped.asnumpy().tolist(),
        "objects": [everyone, at_root, item],
    }
    try:
        parallelize_module(Linear(4, 3), mesh, ColwiseParallel())
    except ValueError as error:
        found["uneven"] = str(error)
    return found


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    dist.init_process_group("gloo")
    if "--fault" in sys.argv:  # gradients of replicated inputs are no longer added
        from ms_models.compat import tensor_parallel

        tensor_parallel.copy_to_ranks = lambda x, group: x
        return {"tensor": run("tensor")}
    return {**{kind: run(kind) for kind in PLANS}, "layouts": layouts()}


if __name__ == "__main__":
    report(work)
