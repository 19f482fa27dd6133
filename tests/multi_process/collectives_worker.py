"""One rank of the tests of collectives over two ranks, started by msrun; `grid` is for four, see four_ranks_worker.

Every rank knows what all ranks pass, and works out with numpy what it must get, bit for bit. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor, nn, ops

from mappings.layout import ParallelLayout
from ms_models.parallel import collectives as c
from ms_models.parallel.collectives import exchange, gather
from ms_models.parallel.mesh import Group, Mesh

Arrays = list[np.ndarray]
SHAPE = (4, 8)


def same_bits(found: Tensor, expected: np.ndarray) -> bool:
    """Equal in shape, dtype and every bit, so that 0.0 differs from -0.0."""
    if found.dtype == ms.bfloat16:  # numpy has none; the data are whole in it
        found = found.astype(ms.float32)
    array = found.asnumpy()
    expected = np.ascontiguousarray(expected)
    return array.dtype == expected.dtype and array.shape == expected.shape and array.tobytes() == expected.tobytes()


def compiled(jit: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    return ms.jit(function) if jit else function


def inputs(size: int) -> dict[str, Arrays]:
    """Per dtype what each rank passes. Sums are exact in any order.

    No subnormals: under ms.jit MindSpore's CPU arithmetic flushes them to zero, collectives or not.
    """
    rng = np.random.default_rng(0)
    floats = [rng.integers(-60, 60, SHAPE).astype(np.float32) / 8 for _ in range(size)]
    for rank, array in enumerate(floats):
        array[0, :4] = [0.0, -0.0, 1.5, -0.0] if rank == 0 else [-0.0, -0.0, -1.5, -0.0]
    floats[1][1, 0] = np.inf
    data = {"fp32": floats, "fp16": [array.astype(np.float16) for array in floats], "bf16": floats}
    for kind in (np.int32, np.int64):
        limits = np.iinfo(kind)
        whole = [rng.integers(limits.min, limits.max, SHAPE, kind, endpoint=True) for _ in range(size)]
        for rank, array in enumerate(whole):
            array[0, :3] = [limits.max, limits.min, -1] if rank == 0 else [limits.max, limits.min, 1]
        data[kind.__name__] = whole
    return data


def slices(array: np.ndarray, size: int, axis: int) -> Arrays:
    return np.split(array, size, axis)


def total(arrays: Arrays) -> np.ndarray:
    """The sum without a start value: zeros of both signs stay what they are."""
    result = arrays[0]
    for array in arrays[1:]:
        result = result + array
    return result


def exchanged(arrays: Arrays, me: int, split: int, concat: int) -> np.ndarray:
    return np.concatenate([slices(array, len(arrays), split)[me] for array in arrays], concat)


Cell = Callable[[Tensor], Tensor]
Case = tuple[Cell, Callable[[Arrays, int], np.ndarray]]


def forward_cases(group: Group, native: bool | None = None) -> dict[str, Case]:
    """Name -> Cell, and what rank `me` gets from it."""
    size = group.size
    last = size - 1

    def cell(kind: type[nn.Cell], *arguments: Any) -> Cell:
        return kind(group, *arguments, native=native)

    return {
        "all_reduce": (cell(c.AllReduce), lambda xs, me: total(xs)),
        "gather rows": (cell(c.GatherFromGroup, 0), lambda xs, me: np.concatenate(xs, 0)),
        "gather columns": (cell(c.GatherFromGroup, 1), lambda xs, me: np.concatenate(xs, 1)),
        "gather for sharded": (cell(c.GatherForSharded, 1), lambda xs, me: np.concatenate(xs, 1)),
        "reduce_scatter rows": (cell(c.ReduceScatterToGroup, 0), lambda xs, me: slices(total(xs), size, 0)[me]),
        "reduce_scatter columns": (cell(c.ReduceScatterToGroup, 1), lambda xs, me: slices(total(xs), size, 1)[me]),
        "all_to_all 0 1": (cell(c.AllToAll, 0, 1), lambda xs, me: exchanged(xs, me, 0, 1)),
        "all_to_all 1 0": (cell(c.AllToAll, 1, 0), lambda xs, me: exchanged(xs, me, 1, 0)),
        "all_to_all 1 1": (cell(c.AllToAll, 1, 1), lambda xs, me: exchanged(xs, me, 1, 1)),
        "shift 1": (cell(c.Shift, 1), lambda xs, me: xs[me - 1]),
        "shift back": (cell(c.Shift, -1), lambda xs, me: xs[(me + 1) % size]),
        "shift around": (cell(c.Shift, size + 1), lambda xs, me: xs[me - 1]),
        "shift whole turn": (cell(c.Shift, size), lambda xs, me: xs[me]),
        "broadcast": (cell(c.Broadcast, 1), lambda xs, me: xs[1]),
        "transfer": (cell(c.Transfer, last, 0), lambda xs, me: xs[last] if me == 0 else xs[me]),
    }


def run_all(cells: dict[str, Cell], mine: Tensor, jit: bool) -> dict[str, Tensor]:
    """The result of every Cell; in one compiled function, where each waits for the one before it."""

    def run(x: Tensor) -> tuple[Tensor, ...]:
        results = []
        for cell in cells.values():
            results.append(cell(x))
            x = ops.depend(x, results[-1])
        return tuple(results)

    return dict(zip(cells, compiled(jit, run)(mine), strict=True))


def compare_forward(group: Group, jit: bool, kinds: tuple[str, ...]) -> dict[str, bool]:
    """Every collective on every kind of data, and refusals."""
    result = {}
    data = inputs(group.size)
    cases = forward_cases(group)
    for kind in kinds:
        mine = Tensor(data[kind][group.index])
        if kind == "bf16":
            mine = mine.astype(ms.bfloat16)
        found = run_all({name: cell for name, (cell, _) in cases.items()}, mine, jit)
        for name, (_, expected) in cases.items():
            result[f"{name} {kind}"] = same_bits(found[name], expected(data[kind], group.index))
    result["bool refused"] = refuses(compiled(jit, cases["shift 1"][0]), Tensor([True]))
    result["fp64 refused"] = refuses(cases["shift 1"][0], Tensor([1.0], ms.float64))
    uneven = compiled(jit, cases["reduce_scatter rows"][0])
    result["uneven refused"] = refuses(uneven, Tensor(np.ones((5, 2), np.float32)), "cannot be cut over")
    return result


def refuses(function: Callable[[Tensor], Tensor], x: Tensor, reason: str = "cast other tensors first") -> bool:
    try:
        function(x).asnumpy()
    except (TypeError, ValueError) as error:
        return reason in str(error)
    return False


def gradient_cases(group: Group) -> dict[str, Case]:
    """Name -> collective as a function, and its gradient on rank `me` from the weights `ws` of all ranks' losses."""
    size = group.size

    def through_all_reduce(x: Tensor) -> Tensor:
        return c.all_reduce(x, group)

    def through_copy(x: Tensor) -> Tensor:
        return c.copy_to_group(x, group)

    def through_reduce(x: Tensor) -> Tensor:
        return c.reduce_from_group(x, group)

    def through_gather(x: Tensor) -> Tensor:
        return c.gather_from_group(x, group, 1)

    def through_sharded(x: Tensor) -> Tensor:
        return c.gather_for_sharded(x, group, 1)

    def through_scatter(x: Tensor) -> Tensor:
        return c.reduce_scatter_to_group(x, group, 1)

    def through_all_to_all(x: Tensor) -> Tensor:
        return c.all_to_all(x, group, 1, 0)

    def through_shift(x: Tensor) -> Tensor:
        return c.shift(x, group, 1)

    def through_broadcast(x: Tensor) -> Tensor:
        return c.broadcast(x, group, 0)

    def through_transfer(x: Tensor) -> Tensor:
        return c.transfer(x, group, 0, size - 1)

    def nothing(ws: Arrays, me: int) -> np.ndarray:
        return np.zeros(SHAPE, np.float32)

    return {
        "all_reduce": (through_all_reduce, lambda ws, me: total(ws)),
        "copy": (through_copy, lambda ws, me: total(ws)),
        "reduce": (through_reduce, lambda ws, me: ws[me]),
        "gather": (through_gather, lambda ws, me: slices(ws[me], size, 1)[me]),
        "gather for sharded": (through_sharded, lambda ws, me: slices(total(ws), size, 1)[me]),
        "reduce_scatter": (through_scatter, lambda ws, me: np.concatenate(ws, 1)),
        # Element (i, j) of rank me's block for rank r is element (i + me * rows, j) of what r holds.
        "all_to_all": (through_all_to_all, lambda ws, me: np.concatenate([slices(w, size, 0)[me] for w in ws], 1)),
        "shift": (through_shift, lambda ws, me: ws[(me + 1) % size]),
        "broadcast": (through_broadcast, nothing),
        "transfer": (through_transfer, nothing),
    }


def weighted(function: Cell) -> Callable[[Tensor, Tensor], Tensor]:
    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return (function(x) * weight).sum()

    return loss


def compare_gradients(group: Group) -> dict[str, bool]:
    """Gradients of `sum(weight * collective(x))` with weights that differ per rank."""
    me, size = group.index, group.size
    result = {}
    x = Tensor(np.arange(32, dtype=np.float32).reshape(SHAPE) + 100 * me)
    for name, (function, expected) in gradient_cases(group).items():
        weights = per_rank(shapes(size).get(name, SHAPE), size)
        found = ms.grad(weighted(function))(x, Tensor(weights[me]))
        result[name] = same_bits(found, expected(weights, me))
    return result


def shapes(size: int) -> dict[str, tuple[int, int]]:
    """What a collective makes of SHAPE, where it makes something else."""
    return {
        "gather": (4, 8 * size),
        "gather for sharded": (4, 8 * size),
        "reduce_scatter": (4, 8 // size),
        "all_to_all": (4 * size, 8 // size),
    }


def per_rank(shape: tuple[int, ...], size: int) -> Arrays:
    return [np.arange(np.prod(shape), dtype=np.float32).reshape(shape) * (1 + rank) for rank in range(size)]


# Together they lead from SHAPE to SHAPE.
CHAIN = ("all_reduce", "copy", "gather for sharded", "reduce_scatter", "reduce", "shift", "gather", "reduce_scatter")


def compiled_gradient(group: Group) -> bool:
    """The gradient through a chain of all collectives that have one, in one compiled function."""
    cases = gradient_cases(group)
    functions = [cases[name][0] for name in CHAIN]
    last = cases["all_to_all"][0]

    def chain(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return last(x)

    weights = per_rank(shapes(group.size)["all_to_all"], group.size)
    found = ms.jit(ms.grad(weighted(chain)))(Tensor(np.ones(SHAPE, np.float32)), Tensor(weights[group.index]))
    for name in ("all_to_all", *CHAIN[::-1]):
        weights = [cases[name][1](weights, rank) for rank in range(group.size)]
    return same_bits(found, weights[group.index])


class ReduceScatterStandIn:
    """What the documentation of `ops.ReduceScatter` says: the sum, cut along the first axis."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.all_reduce = c.AllReduce(group, native=False)

    def __call__(self, x: Tensor) -> Tensor:
        return self.all_reduce(x).chunk(self.group.size, 0)[self.group.index]


class AlltoAllVStandIn:
    """What the documentation of `ops.AlltoAllV` says: flat tensors, and numbers of elements per member."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.gather = c.GatherFromGroup(group, 0, native=False)

    def __call__(self, x: Tensor, send: tuple[int, ...], receive: tuple[int, ...]) -> Tensor:
        size, me = self.group.size, self.group.index
        assert x.ndim == 1 and sum(send) == x.size and len(send) == len(receive) == size
        all_sent = self.gather(Tensor([send], ms.int32)).asnumpy()
        flat = np.split(self.gather(x.expand_dims(0)).asnumpy(), size, 0)
        assert tuple(all_sent[:, me]) == receive
        starts = all_sent[:, :me].sum(axis=1)
        parts = [flat[rank][0, starts[rank] :][: receive[rank]] for rank in range(size)]
        return Tensor(np.concatenate(parts))


def compare_native(group: Group, jit: bool) -> dict[str, bool]:
    """The native code on fp32, bit for bit what the AllReduce-only code gives; stand-ins where CPU has no kernel."""
    mine = Tensor(inputs(group.size)["fp32"][group.index])
    cells = {}
    for name, (cell, _) in forward_cases(group, native=True).items():
        stand_in = name.startswith(("reduce_scatter", "all_to_all", "shift"))
        if stand_in and jit:
            continue  # numpy does not compile
        for _, inner in cell.cells_and_names():
            if isinstance(inner, gather._ReduceScatter):
                inner.reduce_scatter = ReduceScatterStandIn(group)
            elif isinstance(inner, exchange._AllToAll | exchange._Shift):
                inner.exchange = AlltoAllVStandIn(group)
        cells[name] = cell
    built = run_all({name: cell for name, (cell, _) in forward_cases(group, native=False).items()}, mine, False)
    return {name: same_bits(y, built[name].asnumpy()) for name, y in run_all(cells, mine, jit).items()}


@contextmanager
def planted(kind: type, method: str, fault: Callable[..., Any]) -> Iterator[None]:
    """Replaces a method of a class for the time of the block, for Cells made in it."""
    right = getattr(kind, method)
    setattr(kind, method, fault)
    c.forget_cells()  # cached Cells must not outlive a fault
    try:
        yield
    finally:
        setattr(kind, method, right)
        c.forget_cells()


def kept(self: Any, x: Tensor) -> Tensor:
    return x


def doubled(self: Any, x: Tensor) -> Tensor:
    return self.sum(x) * 2


def unreduced(self: Any, x: Tensor) -> Tensor:
    return x.chunk(self.size, self.axis)[self.index]


def there_again(self: Any, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
    return (self.there(dout),)


def faults(group: Group) -> dict[str, list[str]]:
    """Per planted fault the cases that are wrong then."""
    result = {}
    plan = {
        "all-reduce dropped": (c.AllReduce, "construct", kept),
        "all-reduce doubled": (c.AllReduce, "construct", doubled),
        "reduction of a reduce-scatter dropped": (gather._ReduceScatter, "construct", unreduced),
        "shift stays": (exchange._Shift, "construct", kept),
    }
    for name, (kind, method, fault) in plan.items():
        with planted(kind, method, fault):
            found = {} if fault is kept else compare_forward(group, False, ("fp32",))
            found = {**found, **{f"{case} gradient": right for case, right in compare_gradients(group).items()}}
            result[name] = [case for case, right in found.items() if not right]
    return result


def pair() -> dict[str, Any]:
    """Two ranks, which are the world."""
    group = Mesh.from_environment(ParallelLayout(tp=2)).group("tp")
    return {
        "faults": faults(group),
        "forward": compare_forward(group, False, ("fp32", "fp16", "bf16", "int32", "int64")),
        "forward jit": compare_forward(group, True, ("fp32", "int32")),
        "gradient": compare_gradients(group),
        "gradient jit": {"chain": compiled_gradient(group)},
        "native": compare_native(group, False),
        "native jit": compare_native(group, True),
    }


def grid() -> dict[str, Any]:
    """Four ranks: the world, and sub-groups that are rows and columns of a grid."""
    mesh = Mesh.from_environment(ParallelLayout(tp=2, dp=2))
    result: dict[str, Any] = {}
    for axes in (("tp",), ("dp",), ("tp", "dp")):
        group = mesh.group(*axes)
        result[f"{'+'.join(axes)} forward"] = compare_forward(group, False, ("fp32", "int64"))
        result[f"{'+'.join(axes)} gradient"] = compare_gradients(group)
    world = mesh.group("tp", "dp")
    result["tp+dp native"] = compare_native(world, False)
    with planted(c.Shift, "bprop", there_again):
        fault = [name for name, right in compare_gradients(world).items() if not right]
    return {"coordinates": mesh.coordinates, "cases": result, "fault": fault}


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    return pair()


if __name__ == "__main__":
    report(work)
