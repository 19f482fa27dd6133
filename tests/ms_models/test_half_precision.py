"""Every family in fp16 against transformers in fp32: nothing on the way falls back to fp32, and gradients agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
import tiny_decoders
import tiny_deepseek
import tiny_encoders
import tiny_gpts
import tiny_models
import tiny_moe
from mindspore import Tensor

from ms_models import AutoModelForCausalLM, AutoModelForMaskedLM
from ms_models.parallel import linear

# Three layers of roundings of 2**-11; measured in the norm of each gradient: at most 6.6e-3 (a key's bias in GLM-4),
# in the logits 2.0e-3.
GRADIENT, LOGITS, LOSS = 1.5e-2, 5e-3, 1e-3
CASES: dict[str, Callable[[Path], tiny_models.Case]] = {
    **{name: lambda path, n=name: tiny_models.make_case(n, path) for name in tiny_models.CONFIGS},  # type: ignore[misc]
    **{
        name: lambda path, c=config: tiny_models.answers_of(tiny_models.build(c, path), path)  # type: ignore[misc]
        for name, config in tiny_decoders.CONFIGS.items()
    },
    **{name: lambda path, n=name: tiny_gpts.make_gpt_case(n, path) for name in tiny_gpts.CONFIGS},  # type: ignore[misc]
    **{name: lambda path, n=name: tiny_moe.make_case(n, path) for name in tiny_moe.CONFIGS},  # type: ignore[misc]
    **{
        f"deepseek_v3, {name}": lambda path, c=config: tiny_deepseek.make_case(c, path)  # type: ignore[misc]
        for name, config in tiny_deepseek.CONFIGS.items()
    },
}
IN_CI = ("llama", "gemma2", "gpt2", "mixtral")


@pytest.mark.parametrize("name", [n if n in IN_CI else pytest.param(n, marks=pytest.mark.slow) for n in CASES])
def test_a_decoder_in_fp16(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ms.runtime.launch_blocking()
    case = CASES[name](tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(case.directory, compute="fp16")
    multiplied: list[Any] = []
    product = linear.multiply_transposed

    def multiply(x: Tensor, weight: Tensor) -> Tensor:
        multiplied.append(x.dtype)
        return product(x, weight)

    monkeypatch.setattr(linear, "multiply_transposed", multiply)
    left: list[Any] = []
    for layer in model.body.layers:
        layer.register_forward_hook(lambda cell, inputs, output: left.append((inputs[0].dtype, output[0].dtype)))
    answer = tiny_models.run(model, case, jit=False)
    assert left and set(left) == {(ms.float16, ms.float16)}
    # GPT-2's products are elsewhere; routers multiply in fp32.
    routers = sum(name.endswith("gate.logits") for name, _ in model.cells_and_names())
    assert multiplied.count(ms.float32) == 2 * routers, "once for the logits, once for the loss"
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    assert tiny_models.logits_error(answer, case) < LOGITS
    errors = tiny_models.gradient_errors(answer, case)
    assert 1e-4 < max(errors.values()) < GRADIENT, max(errors, key=lambda one: errors[one])


@pytest.mark.parametrize(
    "name", [n if n == "bert" else pytest.param(n, marks=pytest.mark.slow) for n in tiny_encoders.CONFIGS]
)
def test_an_encoder_in_fp16(name: str, tmp_path: Path) -> None:
    ms.runtime.launch_blocking()
    case = tiny_encoders.make_case(name, tmp_path / "model")
    model = AutoModelForMaskedLM.from_pretrained(case.directory, compute="fp16")
    model.set_train(False)
    answer = tiny_encoders.run(model, case, tiny_encoders.segments(name), jit=False)
    assert answer.loss == pytest.approx(case.loss, rel=LOSS)
    errors = tiny_encoders.gradient_errors(answer, case)
    assert 1e-4 < max(errors.values()) < GRADIENT, max(errors, key=lambda one: errors[one])
