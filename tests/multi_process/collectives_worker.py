"""One rank of the tests of collectives over two ranks, started by msrun; `grid` is for four, see four_ranks_worker.

Every rank knows what all ranks pass, and works out with numpy what it must get, bit for bit. Nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mindspore as ms
import numpy as np
from collective_cases import SHAPE, Cell, forward_cases, gradient_cases, inputs, per_rank, shapes
from harness import report
from mindspore import Tensor, ops

from mappings.layout import ParallelLayout
from ms_models.parallel import collectives as c
from ms_models.parallel.collectives import exchange, gather
from ms_models.parallel.mesh import Group, Mesh


def same_bits(found: Tensor, expected: np.ndarray) -> bool:
    """Equal in shape, dtype and every bit, so that 0.0 differs from -0.0."""
    if found.dtype == ms.bfloat16:  # numpy has none; the data are whole in it
        found = found.astype(ms.float32)
    array = found.asnumpy()
    expected = np.ascontiguousarray(expected)
    return array.dtype == expected.dtype and array.shape == expected.shape and array.tobytes() == expected.tobytes()


def compiled(jit: bool, function: Callable[..., Any]) -> Callable[..., Any]:
    return ms.jit(function) if jit else function


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
