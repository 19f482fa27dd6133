"""CPU time of bare kernels, forward and backward, in a MindSpore graph and in PyTorch, at the shapes of step_time.py.

    OMP_NUM_THREADS=1 python tests/benchmarks/kernel_time.py [--repeat 30]

What a compiled step cannot get below: both sides run in this process, on one core, in turn; the least of all
repetitions counts. The last rows are chains of operations on eight numbers: what starting an operation costs.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F
from mindspore import ops

from ms_models.compat.cpu_threads import limit_kernel_threads

CHAIN = 200
COPIES = 8
ROWS, WIDTH, HIDDEN = 1024, 256, 688  # batch 8 x 128
_product = ops.MatMul(transpose_b=True)
_batch_product = ops.BatchMatMul(transpose_b=True)


def _chain(x: Any, y: Any) -> Any:
    for _ in range(CHAIN):
        x = x + y
    return x


def _linear(x: ms.Tensor, w: ms.Tensor) -> ms.Tensor:
    return _product(x, w)


def _scores(q: ms.Tensor, k: ms.Tensor) -> ms.Tensor:
    return _batch_product(q, k)


def _softmax(x: ms.Tensor) -> ms.Tensor:
    return ops.softmax(x, -1)


def _log_softmax(x: ms.Tensor) -> ms.Tensor:
    return ops.log_softmax(x, -1)


def _silu(x: ms.Tensor) -> ms.Tensor:
    return ops.silu(x)


def _transposed(x: ms.Tensor) -> ms.Tensor:
    return x.swapaxes(1, 2) * 2


def _multiplied(x: Any, y: Any) -> Any:
    return x * y


def _layer_norm(x: ms.Tensor, w: ms.Tensor, b: ms.Tensor) -> ms.Tensor:
    return ops.LayerNorm(-1, -1, 1e-5)(x, w, b)[0]


def _gelu(x: ms.Tensor) -> ms.Tensor:
    return ops.gelu(x, approximate="none")


CASES: list[tuple[str, list[tuple[int, ...]], Callable[..., Any], Callable[..., Any]]] = [
    ("linear", [(ROWS, WIDTH), (HIDDEN, WIDTH)], _linear, F.linear),
    ("q k^T", [(8, 4, 128, 64), (8, 4, 128, 64)], _scores, lambda q, k: q @ k.transpose(-1, -2)),
    ("softmax", [(4096, 128)], _softmax, lambda x: torch.softmax(x, -1)),
    ("log_softmax", [(ROWS, 2000)], _log_softmax, lambda x: torch.log_softmax(x, -1)),
    ("silu", [(8, 128, HIDDEN)], _silu, F.silu),
    ("gelu", [(8, 128, 1024)], _gelu, F.gelu),
    ("layer norm", [(ROWS, WIDTH), (WIDTH,), (WIDTH,)], _layer_norm, lambda x, w, b: F.layer_norm(x, (WIDTH,), w, b)),
    ("transpose", [(8, 128, 4, 64)], _transposed, lambda x: x.transpose(1, 2).contiguous() * 2),
    ("product", [(8, 128, HIDDEN), (8, 128, HIDDEN)], _multiplied, _multiplied),
    (f"{CHAIN} sums of 8 numbers", [(8,), (8,)], _chain, _chain),
]


def runs(shapes: list[tuple[int, ...]], ours: Callable[..., Any], theirs: Callable[..., Any]) -> dict[str, Any]:
    """Forward and backward of `COPIES` independent inputs on both sides; what starting a graph costs is shared out."""
    rng = np.random.default_rng(0)
    of_result = tuple(theirs(*(torch.zeros(shape) for shape in shapes)).shape)
    sets = [[rng.normal(size=s).astype(np.float32) for s in (*shapes, of_result)] for _ in range(COPIES)]
    count = len(shapes) + 1
    gradient = ops.GradOperation(get_all=True, sens_param=True)(ours)

    @ms.jit
    def graph(*inputs: ms.Tensor) -> Any:
        results = []
        for n in range(0, COPIES * count, count):
            results.append(ours(*inputs[n : n + count - 1]))
            results.append(gradient(*inputs[n : n + count]))
        return results

    held = [ms.Tensor(array) for arrays in sets for array in arrays]
    leaves = [[torch.from_numpy(array).requires_grad_() for array in arrays] for arrays in sets]

    def of_mindspore() -> list[ms.Tensor]:
        results = graph(*held)
        results[0].asnumpy()  # the graph has ended
        return [results[0], *results[1]]

    def of_torch() -> list[torch.Tensor]:
        found = []
        for *inputs, sens in leaves:
            result = theirs(*inputs)
            found.append([result, *torch.autograd.grad(result, inputs, sens)])
        return found[0]

    for have, want in zip(of_mindspore(), of_torch(), strict=True):  # or it would be no comparison
        np.testing.assert_allclose(have.asnumpy(), want.detach().numpy(), 1e-3, 1e-4)
    return {"mindspore": of_mindspore, "torch": of_torch}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    limit_kernel_threads()
    print("| forward and backward | MindSpore ms | torch ms | ratio |\n|---|---|---|---|")
    for name, shapes, ours, theirs in CASES:
        least = {"mindspore": float("inf"), "torch": float("inf")}
        sides = runs(shapes, ours, theirs)
        for _ in range(options.repeat):
            for side, run in sides.items():
                begin = time.process_time()
                run()
                least[side] = min(least[side], 1e3 * (time.process_time() - begin) / COPIES)
        sizes = ", ".join("x".join(map(str, shape)) for shape in shapes[:2])
        ratio = least["mindspore"] / least["torch"]
        print(f"| {name} {sizes} | {least['mindspore']:.2f} | {least['torch']:.2f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
