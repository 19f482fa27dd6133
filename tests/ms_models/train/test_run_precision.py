"""fp16 steps against PyTorch's autocast and fp32; which number format each operation sees; the loss scale."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import ParameterTuple, Tensor, nn, ops
from transformers import AutoModelForCausalLM as TorchAuto

from mappings.errors import UserError
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import Batch, TrainingLoader
from ms_models.families.causal_lm import CausalLM
from ms_models.layers import attention
from ms_models.layers.norm import RMSNorm
from ms_models.parallel import linear
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.place import COMPUTE
from ms_models.train.config import OptimizerConfig, PrecisionConfig
from ms_models.train.loss_scale import LossScale
from ms_models.train.step import Trainer
from tests.ms_models.train.run_helpers import write_data, write_model

SCALE = 1024.0
# A rounding to fp16 is 2**-11 = 4.9e-4 of a value at most; some of them add up on the way. Measured against fp32, in
# the Euclidean norm of each parameter's gradient: ours 6.8e-4 to 2.1e-3, torch.autocast 4.6e-4 to 1.7e-3, between both
# up to 2.4e-3 (bf16 in torch.autocast: 3.6e-3 to 1.3e-2).
TOLERANCE = 4e-3
CONFIG = OptimizerConfig(lr=0.01, weight_decay=0.1, clip_norm=1.0)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    ms.runtime.launch_blocking()
    root = tmp_path_factory.mktemp("precision")
    return write_model(root / "model"), write_data(root / "data")


def loader(paths: tuple[Path, Path]) -> TrainingLoader:
    return TrainingLoader(paths[1], seed=7, micro_batch_size=2, accumulation=2)


def gradients(model: CausalLM, batch: Batch, scale: float) -> tuple[float, dict[str, np.ndarray]]:
    parameters = ParameterTuple(model.trainable_params())

    def loss(ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return model.loss(ids, labels, mask)[0] * scale

    inputs = [Tensor(batch[name]) for name in ("input_ids", "labels", "attention_mask")]
    value, found = ms.value_and_grad(loss, None, parameters)(*inputs)
    assert {gradient.dtype for gradient in found} == {ms.float32}, "gradients of fp32 parameters are fp32"
    assert value.dtype == ms.float32
    return float(value.asnumpy()) / scale, {p.name: g.asnumpy() / scale for p, g in zip(parameters, found, strict=True)}


def autocast(path: Path, batch: Batch, scale: float) -> tuple[float, dict[str, np.ndarray]]:
    model = TorchAuto.from_pretrained(path, attn_implementation="eager")
    ids, mask, labels = (torch.from_numpy(batch[n]).long() for n in ("input_ids", "attention_mask", "labels"))
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
    total = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")
    (total * scale).backward()
    return float(total.detach()), {name: p.grad.numpy() / scale for name, p in model.named_parameters()}


def worst(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    assert found.keys() == expected.keys()
    return max(float(np.linalg.norm(found[n] - e) / np.linalg.norm(e)) for n, e in expected.items())


def test_fp16_gradients_are_those_of_fp32_and_of_autocast_up_to_rounding(paths: tuple[Path, Path]) -> None:
    batch = loader(paths).next_step()[0]
    exact_loss, exact = gradients(AutoModelForCausalLM.from_pretrained(paths[0]), batch, 1.0)
    model = AutoModelForCausalLM.from_pretrained(paths[0], compute="fp16")
    loss, found = gradients(model, batch, SCALE)
    theirs_loss, theirs = autocast(paths[0], batch, SCALE)
    assert loss == pytest.approx(exact_loss, rel=TOLERANCE) and loss == pytest.approx(theirs_loss, rel=TOLERANCE)
    assert loss != exact_loss, "something must have been rounded"
    assert 1e-4 < worst(found, exact) < TOLERANCE
    assert worst(found, theirs) < TOLERANCE
    # Without a scale small gradients vanish: that is seen.
    tiny = gradients(model, batch, 1e-6)[1]
    assert worst(tiny, exact) > 10 * TOLERANCE


def test_which_format_an_operation_sees(paths: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same code computes in bf16 on a device that can; here its policy is followed with fp16."""
    seen: dict[str, set[Any]] = {}

    def spy(name: str, function: Any, which: int = 0) -> Any:
        def called(*args: Any, **options: Any) -> Any:
            seen.setdefault(name, set()).update(a.dtype for a in args[: which or None] if isinstance(a, Tensor))
            return function(*args, **options)

        return called

    monkeypatch.setattr(linear, "multiply_transposed", spy("linear", linear.multiply_transposed))
    monkeypatch.setattr(attention, "multiply", spy("attention", attention.multiply))
    monkeypatch.setattr(attention, "multiply_transposed", spy("attention", attention.multiply_transposed))
    monkeypatch.setattr(attention, "softmax", spy("softmax", attention.softmax))
    model = AutoModelForCausalLM.from_pretrained(paths[0], compute="fp16")
    for name, cell in model.cells_and_names():
        if isinstance(cell, RMSNorm):
            cell.rows.register_forward_pre_hook(  # type: ignore[union-attr]
                lambda _, args: seen.setdefault("norm", set()).update(a.dtype for a in args if isinstance(a, Tensor))
            )
        if isinstance(cell, nn.Cell) and name == "cross_entropy":
            cell.register_forward_hook(lambda _, args, out: seen.setdefault("loss", set()).add(out.dtype))
        if name.startswith("body.layers.") and name.count(".") == 2:
            cell.register_forward_hook(lambda _, args, out: seen.setdefault("between layers", set()).add(out[0].dtype))
    batch = loader(paths).next_step()[0]
    model.loss(*(Tensor(batch[name]) for name in ("input_ids", "labels", "attention_mask")))
    half, full = {ms.float16}, {ms.float32}
    assert seen == {
        "linear": half, "attention": half, "softmax": full, "norm": full, "loss": full, "between layers": half,
    }  # fmt: skip
    assert {parameter.dtype for parameter in model.get_parameters()} == full, "masters, and what a checkpoint holds"


def test_bf16_is_cast_alike_and_refused_where_the_device_cannot(paths: tuple[Path, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(paths[0], compute="bf16")
    assert COMPUTE["bf16"] == ms.bfloat16
    model.body.embed_tokens.padding_id = (
        None  # what keeps a pad token from learning is a Select, which takes no bf16 here
    )
    assert model.body.embed(Tensor([[3, 4]], ms.int32)).dtype == ms.bfloat16
    rounded = linear.like(model.lm_head.weight, Tensor([1.0], ms.bfloat16)).astype(ms.float32).asnumpy()
    expected = torch.from_numpy(model.lm_head.weight.asnumpy()).bfloat16().float().numpy()
    assert np.array_equal(rounded, expected)
    with pytest.raises(UserError, match="'bf16', which MindSpore does not compute in on CPU"):
        Trainer(model, Mesh.single(), CONFIG, jit=False, precision=PrecisionConfig(compute="bf16"))
    with pytest.raises(UserError, match="this model computes in bf16"):
        Trainer(model, Mesh.single(), CONFIG, jit=False)


@pytest.mark.parametrize("jit", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_training_in_fp16_follows_fp32(paths: tuple[Path, Path], jit: bool) -> None:
    """The scale leaves no trace: its factors are powers of two."""
    curves = {}
    for scale in (None, 4096.0, 256.0):
        compute: Any = "fp32" if scale is None else "fp16"
        model = AutoModelForCausalLM.from_pretrained(paths[0], compute=compute)
        precision = PrecisionConfig(compute=compute, loss_scale=scale or 1.0)
        trainer, source = Trainer(model, Mesh.single(), CONFIG, jit=jit, precision=precision), loader(paths)
        results = [trainer.step(source.next_step(), 0.003) for _ in range(4)]
        assert all(result.is_updated for result in results)
        curves[scale] = [result.loss for result in results]
        assert {result.loss_scale for result in results} == {scale or 1.0}
    assert curves[4096.0] == pytest.approx(curves[None], rel=TOLERANCE)
    assert curves[256.0] == pytest.approx(curves[4096.0], rel=TOLERANCE / 4)
    assert curves[4096.0] != curves[None]


def test_an_overflow_is_left_out_and_lowers_the_scale_until_the_floor(paths: tuple[Path, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(paths[0], compute="fp16")
    precision = PrecisionConfig(
        compute="fp16", loss_scale=2.0**40, loss_scale_backoff=2.0**-12, loss_scale_floor=2.0**28
    )
    trainer, source = Trainer(model, Mesh.single(), CONFIG, jit=False, precision=precision), loader(paths)
    before = {p.name: p.asnumpy().copy() for p in model.get_parameters()}
    results = [trainer.step(source.next_step(), 0.003) for _ in range(2)]
    assert [(r.outcome, r.loss_scale) for r in results] == [("overflow", 2.0**40), ("non_finite", 2.0**28)]
    assert all(np.isfinite(r.loss) for r in results) and trainer.optimizer.step == 0
    assert all(np.array_equal(p.asnumpy(), before[p.name]) for p in model.get_parameters())


def test_a_resumed_fp16_run_is_the_uninterrupted_one(paths: tuple[Path, Path]) -> None:
    """From fp32 weights, moments, and the plain states of a manifest: the next step is the same in every digit."""
    precision = PrecisionConfig(compute="fp16", loss_scale=1024.0, loss_scale_window=3)
    first, second = (
        Trainer(
            AutoModelForCausalLM.from_pretrained(paths[0], compute="fp16"), Mesh.single(), CONFIG, jit=False,
            precision=precision,
        )
        for _ in range(2)
    )  # fmt: skip
    source = loader(paths)
    for _ in range(2):
        first.step(source.next_step(), 0.003)
    for own, other in zip(second.model.get_parameters(), first.model.get_parameters(), strict=True):
        ops.assign(own, Tensor(other.asnumpy()))
    second.optimizer.load_state(first.optimizer.state(), 2, "file")
    states = json.loads(json.dumps({name: one.state() for name, one in first.states().items()}))
    for name, one in second.states().items():
        one.load_state(states[name])
    for scale in (1024.0, 2048.0):
        batches = source.next_step()
        expected, found = first.step(batches, 0.003), second.step(batches, 0.003)
        assert found == expected and found.loss_scale == scale and found.is_updated
    for own, other in zip(second.model.get_parameters(), first.model.get_parameters(), strict=True):
        assert np.array_equal(own.asnumpy(), other.asnumpy()), own.name


def test_the_scale_takes_the_course_of_torchs(paths: tuple[Path, Path]) -> None:
    """Planted overflows, the same numbers: initial 2**10, window 3, growth 2, backoff 1/2."""
    rng = np.random.default_rng(0)
    overflows = [bool(x < 0.2) for x in rng.random(60)]
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    theirs = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=3)
    config = PrecisionConfig(compute="fp16", loss_scale=1024.0, loss_scale_window=3, loss_scale_floor=2.0**-40)
    ours, course = LossScale(config), []
    for number, overflowed in enumerate(overflows):
        assert ours.factor == theirs.get_scale()
        course.append(ours.factor)
        parameter.grad = torch.tensor([float("inf") if overflowed else 1.0]) * theirs.get_scale()
        theirs.scale(torch.zeros(1))
        theirs.step(optimizer)
        theirs.update()
        ours.update(overflowed=overflowed)
        if number == 30:  # a checkpoint between
            again = LossScale(config)
            again.load_state(ours.state())
            ours = again
    assert len(set(course)) > 5 and sum(overflows) > 8
    floored = LossScale(PrecisionConfig(compute="fp16", loss_scale=8.0, loss_scale_floor=3.0))
    for _ in range(3):
        floored.update(overflowed=True)
    assert floored.factor == 3.0 and not floored.can_shrink


def test_a_scale_below_its_floor_is_refused() -> None:
    with pytest.raises(UserError, match=r"'precision\.loss_scale' is 2, below"):
        PrecisionConfig(compute="fp16", loss_scale=2.0, loss_scale_floor=4.0)
