"""Prints the figures of an encoder's card: `python tests/ms_models/measure_encoders.py FAMILY`.

Errors are against transformers on the tiny models of the tests. The step (loss and all gradients, no optimizer) is
timed on a 4-layer, 256-wide model on 4 x 256 tokens, the shortest of 20, with the threads OMP_NUM_THREADS allows; with
the published dropout of 0.1 and without.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import tiny_encoders
import torch
import transformers
from measure import shortest
from tiny_models import logits_error

from ms_models.auto_masked_lm import AutoModelForMaskedLM

SIZES = {
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "max_position_embeddings": 512,
}


def errors(family: str, folder: Path) -> None:
    """Largest errors over the family's tiny models."""
    for name, config in tiny_encoders.CONFIGS.items():
        if config.model_type != family:
            continue
        case = tiny_encoders.make_case(name, folder / name)
        for jit in (False, True):
            answer = tiny_encoders.run(tiny_encoders.load(case), case, tiny_encoders.segments(name), jit=jit)
            worst = max(tiny_encoders.gradient_errors(answer, case).values())
            print(
                f"{name} {'jit' if jit else 'pynative'}: logits {logits_error(answer, case):.1e}, "
                f"gradient {worst:.1e}, loss {abs(answer.loss / case.loss - 1):.1e}"
            )


def times(family: str, folder: Path) -> None:
    """Step time in transformers, PyNative and jit."""
    config = transformers.AutoConfig.for_model(family, **SIZES)
    reference: Any = transformers.AutoModelForMaskedLM.from_config(config)
    reference.save_pretrained(folder / "timed")
    rng = np.random.default_rng(0)
    ids = rng.integers(4, SIZES["vocab_size"], (4, 256))
    labels = np.where(rng.random(ids.shape) < 0.15, ids, -100)
    tokens, targets = torch.tensor(ids), torch.tensor(labels)

    def torch_step() -> None:
        reference.zero_grad()
        reference(tokens, labels=targets).loss.backward()

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    inputs, wanted = ms.Tensor(ids, ms.int32), ms.Tensor(labels, ms.int32)
    for train in (False, True):
        reference.train(train)
        model = AutoModelForMaskedLM.from_pretrained(folder / "timed")
        model.set_train(train)
        print(f"step {'with' if train else 'without'} dropout: transformers {shortest(torch_step):.0f} ms", end="")
        for kind, run in (("jit", ms.jit(gradient(model))), ("pynative", gradient(model))):

            def finish(run: Any = run) -> None:
                (total, _), _ = run(inputs, wanted)
                total.asnumpy()
                ms.runtime.synchronize()

            print(f", {kind} {shortest(finish):.0f} ms", end="")
        print()


def gradient(model: Any) -> Any:
    """Loss, count and all gradients as a function of ids and labels."""

    def loss(ids: ms.Tensor, labels: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        return model.loss(ids, labels)

    return ms.value_and_grad(loss, None, list(model.trainable_params()), has_aux=True)


if __name__ == "__main__":
    (chosen,) = sys.argv[1:]
    with tempfile.TemporaryDirectory() as scratch:
        errors(chosen, Path(scratch))
        times(chosen, Path(scratch))
