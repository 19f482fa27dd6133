"""Prints the figures of the families with experts: `python tests/ms_models/measure_moe.py FAMILY`, or `layer`.

A family: see `measure.py`; the timed model has 8 experts, 2 per token, of width 344 each. `layer`: forward and all
gradients of one such stack of experts on 1024 tokens, in blocks (`moe_blocks`) and in the obvious other ways.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import mindspore as ms
import numpy as np
import tiny_models
import tiny_moe
from mindspore import Tensor, nn, ops

from ms_models.layers.moe import Experts
from ms_models.parallel.mesh import Mesh

TOKENS, EXPERTS, CHOSEN, HIDDEN, FFN = 1024, 8, 2, 256, 344
measure.SIZES |= {
    "num_local_experts": EXPERTS,
    "num_experts": EXPERTS,
    "num_experts_per_tok": CHOSEN,
    "intermediate_size": FFN,
    "moe_intermediate_size": FFN,
}
Compute = Callable[[Tensor, Tensor, Tensor], Tensor]


def errors(family: str, folder: Path) -> None:
    """Largest errors over the family's tiny models."""
    for name, config in tiny_moe.CONFIGS.items():
        if config.model_type != family:
            continue
        case = tiny_moe.make_case(name, folder / name)
        for jit in (False, True):
            answer = tiny_models.run(tiny_models.load(case), case, jit=jit)
            worst = max(tiny_models.gradient_errors(answer, case).values())
            print(
                f"{name} {'jit' if jit else 'pynative'}: logits {tiny_models.logits_error(answer, case):.1e}, "
                f"gradient {worst:.1e}, loss {abs(answer.loss / case.loss - 1):.1e}"
            )


def feed_forward(experts: Experts, index: int, x: Tensor) -> Tensor:
    gate, up = ops.split(ops.dense(x, experts.gate_up_proj[index]), FFN, -1)
    return ops.dense(ops.silu(gate) * up, experts.down_proj[index])


def alternatives(experts: Experts) -> dict[str, tuple[Compute, tuple[bool, ...]]]:
    """Ways to compute the same, and in which modes they run (True: compiled)."""

    def every_expert_on_every_token(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        y = ops.zeros_like(x)
        for index in range(EXPERTS):
            share = (weights * (chosen == index).astype(ms.float32)).sum(-1, keepdims=True)
            y = y + feed_forward(experts, index, x) * share
        return y

    def add(index: int, at: Tensor, y: Tensor, x: Tensor, weights: Tensor) -> Tensor:
        token = ops.floor_div(at, CHOSEN).astype(ms.int32)
        share = ops.gather(weights.reshape(-1), at, 0).expand_dims(-1)
        return ops.index_add(y, token, feed_forward(experts, index, ops.gather(x, token, 0)) * share, 0)

    def dynamic_shapes(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        y = ops.zeros_like(x)
        for index in range(EXPERTS):
            y = add(index, ops.nonzero(chosen.reshape(-1) == index).reshape(-1), y, x, weights)
        return y

    def counts_on_the_host(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        y, flat = ops.zeros_like(x), chosen.asnumpy().reshape(-1)
        for index in range(EXPERTS):
            y = add(index, Tensor(np.flatnonzero(flat == index).astype(np.int32)), y, x, weights)
        return y

    return {
        "blocks": (experts.compute, (True, False)),
        "every expert on every token": (every_expert_on_every_token, (True, False)),
        "dynamic shapes": (dynamic_shapes, (True,)),
        "counts on the host": (counts_on_the_host, (False,)),
    }


def layer() -> None:
    """Times of one stack of experts."""
    alone, rng = Mesh.single().group("tp"), np.random.default_rng(0)
    experts = Experts(EXPERTS, HIDDEN, FFN, tp=alone, ep=alone, enter=nn.Identity(), leave=nn.Identity())
    parameters = list(experts.trainable_params())
    for parameter in parameters:
        parameter.set_data(Tensor((rng.standard_normal(parameter.shape) * 0.05).astype(np.float32)))
    chosen = np.argsort(rng.standard_normal((TOKENS, EXPERTS)), 1)[:, :CHOSEN].astype(np.int32)
    weights = rng.dirichlet(np.ones(CHOSEN), TOKENS).astype(np.float32)
    inputs = [Tensor(rng.standard_normal((TOKENS, HIDDEN)).astype(np.float32)), Tensor(weights), Tensor(chosen)]
    for name, (compute, modes) in alternatives(experts).items():
        for jit in modes:
            milliseconds, total = timed(compute, parameters, inputs, jit)
            print(f"{name} {'jit' if jit else 'pynative'}: {milliseconds:.0f} ms (sum of squares {total:.3f})")


def timed(compute: Compute, parameters: list[Any], inputs: list[Tensor], jit: bool) -> tuple[float, float]:
    def loss(x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return (compute(x, weights, chosen) ** 2).sum()

    step: Any = ms.value_and_grad(loss, (0, 1), parameters)
    run = ms.jit(step) if jit else step

    def once() -> float:
        total, _ = run(*inputs)
        ms.runtime.synchronize()
        return float(total.asnumpy())

    total = once()
    return measure.shortest(once), total


if __name__ == "__main__":
    (chosen_part,) = sys.argv[1:]
    if chosen_part == "layer":
        layer()
    else:
        with tempfile.TemporaryDirectory() as scratch:
            errors(chosen_part, Path(scratch))
            measure.times(chosen_part, Path(scratch))
