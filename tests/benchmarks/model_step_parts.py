"""What the parts of the step of `model_step.py` take, compiled and in torch, on one core.

    OMP_NUM_THREADS=1 python tests/benchmarks/model_step_parts.py

Milliseconds of CPU time, the shortest of six: the operation alone, and with the gradients of all its inputs. The last
column is what a whole step takes more than torch does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import psutil
import torch
from mindspore import Tensor, ops
from model_step_worker import BATCH, LENGTH, SIZES
from torch.nn import functional

from ms_models.layers.attention import causal_bias, grouped_attention
from ms_models.layers.norm import RMSNorm
from ms_models.layers.rotary import rotate
from ms_models.parallel.linear import affine
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.vocabulary import VocabParallelCrossEntropy
from ms_models.train.host_thread import wait_quietly

wait_quietly()  # before the first operation, or it has no effect
VOCAB, WIDTH, FFN = SIZES["vocab_size"], SIZES["hidden_size"], SIZES["intermediate_size"]
HEADS, GROUPS = SIZES["num_attention_heads"], SIZES["num_key_value_heads"]
HEAD = WIDTH // HEADS
rng = np.random.default_rng(0)
ids = rng.integers(0, VOCAB, (BATCH, LENGTH)).astype(np.int32)
tokens, labels = Tensor(ids), Tensor(ids.reshape(-1))
torch_tokens = torch.from_numpy(ids.astype(np.int64))
angles = rng.standard_normal((2, 1, LENGTH, 1, HEAD // 2)).astype(np.float32)
cos, sin = Tensor(angles[0]), Tensor(angles[1])
torch_cos, torch_sin = (torch.cat([torch.from_numpy(a)] * 2, -1) for a in angles)
loss = VocabParallelCrossEntropy(VOCAB, VOCAB, Mesh.single().group("tp"))
norm = RMSNorm(WIDTH, 1e-5)
causal = causal_bias(LENGTH, LENGTH, Tensor(np.ones((BATCH, LENGTH), np.int32)))


def linear(x: Tensor, weight: Tensor) -> Tensor:
    return affine(x, weight)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return grouped_attention(q, k, v, causal)


def torch_attention(q: Any, k: Any, v: Any) -> Any:
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return y.transpose(1, 2).reshape(BATCH, LENGTH, -1)


def root_mean_square(x: Tensor, weight: Tensor) -> Tensor:
    return norm.rows(x, weight, norm.eps)


def torch_root_mean_square(x: Any, weight: Any) -> Any:
    return weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps))


def gated(gate: Tensor, up: Tensor) -> Tensor:
    return ops.silu(gate) * up


def torch_gated(gate: Any, up: Any) -> Any:
    return functional.silu(gate) * up


def rotated(q: Tensor) -> Tensor:
    return rotate(q, cos, sin)


def torch_rotated(q: Any) -> Any:
    first, second = q.chunk(2, -1)
    return q * torch_cos + torch.cat((-second, first), -1) * torch_sin


def embedding(weight: Tensor) -> Tensor:
    return ops.gather(weight, tokens, 0)


def torch_embedding(weight: Any) -> Any:
    return functional.embedding(torch_tokens, weight)


def cross_entropy(logits: Tensor) -> Tensor:
    return loss(logits, labels)


def torch_cross_entropy(logits: Any) -> Any:
    return functional.cross_entropy(logits, torch_tokens.reshape(-1), reduction="none")


X, HIDDEN, QUERIES = (BATCH, LENGTH, WIDTH), (BATCH, LENGTH, FFN), (BATCH, LENGTH, HEADS, HEAD)
KEYS = (BATCH, LENGTH, GROUPS, HEAD)
# What, how often in a step, MindSpore, torch, shapes of the inputs.
PARTS: list[tuple[str, int, Callable[..., Any], Callable[..., Any], list[tuple[int, ...]]]] = [
    ("gate, up", 16, linear, functional.linear, [X, (FFN, WIDTH)]),
    ("down", 8, linear, functional.linear, [HIDDEN, (WIDTH, FFN)]),
    ("q, o", 16, linear, functional.linear, [X, (WIDTH, WIDTH)]),
    ("k, v", 16, linear, functional.linear, [X, (GROUPS * HEAD, WIDTH)]),
    ("lm_head", 1, linear, functional.linear, [X, (VOCAB, WIDTH)]),
    ("attention", 8, attention, torch_attention, [QUERIES, KEYS, KEYS]),
    ("RMS norm", 17, root_mean_square, torch_root_mean_square, [X, (WIDTH,)]),
    ("silu(gate) * up", 8, gated, torch_gated, [HIDDEN, HIDDEN]),
    ("rotation of q", 8, rotated, torch_rotated, [QUERIES]),
    ("embedding", 1, embedding, torch_embedding, [(VOCAB, WIDTH)]),
    ("cross-entropy", 1, cross_entropy, torch_cross_entropy, [(BATCH * LENGTH, VOCAB)]),
]


def shortest(run: Callable[[], Any]) -> float:
    """Milliseconds of CPU time of the fastest of six calls, after one that compiles."""
    run()
    times = []
    for _ in range(6):
        ms.runtime.synchronize()
        start = time.process_time()
        run()
        ms.runtime.synchronize()
        times.append(time.process_time() - start)
    return 1e3 * min(times)


def mindspore_times(function: Callable[..., Any], arrays: list[np.ndarray], upper: np.ndarray) -> tuple[float, float]:
    """Forward, and forward with gradients."""
    inputs = [Tensor(array) for array in arrays]
    count = len(inputs)

    def both(*values: Tensor) -> tuple[Any, ...]:
        y, pull_back = ms.vjp(function, *values[:count])
        return y, pull_back(values[count])  # the result is wanted, so that nothing of the forward pass is left out

    forward, both = ms.jit(function), ms.jit(both)
    weights = Tensor(upper)
    return shortest(lambda: forward(*inputs)), shortest(lambda: both(*inputs, weights))


def torch_times(function: Callable[..., Any], arrays: list[np.ndarray], upper: np.ndarray) -> tuple[float, float]:
    """Forward, and forward with backward."""
    inputs = [torch.from_numpy(array).requires_grad_() for array in arrays]
    weights = torch.from_numpy(upper)

    def both() -> None:
        for value in inputs:
            value.grad = None
        function(*inputs).backward(weights)

    return shortest(lambda: function(*inputs)), shortest(both)


def main() -> None:
    """Prints a table, in the form of `docs/model-step.md`."""
    process = psutil.Process()
    process.cpu_affinity(process.cpu_affinity()[:1])
    torch.set_num_threads(1)
    print("| part | times | forward | torch | with gradients | torch | ms a step |\n|---|---|---|---|---|---|---|")
    for name, count, ours, theirs, shapes in PARTS:
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
        with torch.no_grad():
            shape = theirs(*(torch.from_numpy(array) for array in arrays)).shape
        upper = rng.standard_normal(shape).astype(np.float32)
        found, expected = mindspore_times(ours, arrays, upper), torch_times(theirs, arrays, upper)
        print(
            f"| {name} | {count} | {found[0]:.1f} | {expected[0]:.1f} | {found[1]:.1f} | {expected[1]:.1f} | "
            f"{count * (found[1] - expected[1]):+.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
