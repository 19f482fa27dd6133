"""Prints the figures of a family's card: `python tests/ms_models/measure.py FAMILY`.

Errors are against transformers on the tiny models of the tests. The step (loss and all gradients, no optimizer) is
timed on a 4-layer, 256-wide model on 4 x 256 tokens, the shortest of 20, with the threads OMP_NUM_THREADS allows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import tiny_decoders
import tiny_models
import torch
import transformers

from ms_models import AutoModelForCausalLM

STEPS = 20
SIZES = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "pad_token_id": None,  # the families' own may lie outside this vocabulary
}
CONFIGS = {**tiny_models.CONFIGS, **tiny_decoders.CONFIGS}


def shortest(step: Callable[[], Any]) -> float:
    """Milliseconds of the fastest of `STEPS` calls."""
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return 1e3 * min(times)


def errors(family: str, folder: Path) -> None:
    """Largest errors over the family's tiny models."""
    for name, config in CONFIGS.items():
        if config.model_type != family:
            continue
        case = tiny_models.answers_of(tiny_models.build(config, folder / name), folder / name)
        for jit in (False, True):
            answer = tiny_models.run(tiny_models.load(case), case, jit=jit)
            worst = max(tiny_models.gradient_errors(answer, case).values())
            print(
                f"{name} {'jit' if jit else 'pynative'}: logits {tiny_models.logits_error(answer, case):.1e}, "
                f"gradient {worst:.1e}, loss {abs(answer.loss / case.loss - 1):.1e}"
            )


def times(family: str, folder: Path) -> None:
    """Step time in transformers, PyNative and jit."""
    config = transformers.AutoConfig.for_model(family, **SIZES)
    reference = transformers.AutoModelForCausalLM.from_config(config)
    reference.save_pretrained(folder / "timed")
    ids = np.random.default_rng(0).integers(0, SIZES["vocab_size"], (4, 256))
    tokens = torch.tensor(ids)

    def torch_step() -> None:
        reference.zero_grad()
        reference(tokens, labels=tokens).loss.backward()

    model = AutoModelForCausalLM.from_pretrained(folder / "timed")
    inputs = ms.Tensor(ids, ms.int32)

    def loss(ids: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        return model.loss(ids, ids)

    step = ms.value_and_grad(loss, None, list(model.trainable_params()), has_aux=True)
    compiled = ms.jit(step)

    def finish(run: Callable[[ms.Tensor], Any]) -> None:
        (total, _), _ = run(inputs)
        total.asnumpy()
        ms.runtime.synchronize()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(
        f"step: transformers {shortest(torch_step):.0f} ms, jit {shortest(lambda: finish(compiled)):.0f} ms, "
        f"pynative {shortest(lambda: finish(step)):.0f} ms"
    )


if __name__ == "__main__":
    (chosen,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        errors(chosen, Path(scratch))
        times(chosen, Path(scratch))
