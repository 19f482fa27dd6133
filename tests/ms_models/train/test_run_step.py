"""Whole optimizer steps against a training loop in PyTorch with transformers' model: accumulation, unequal masks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from mindspore import Tensor, ops
from transformers import AutoModelForCausalLM as TorchAuto

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import TrainingLoader, validation_batches
from ms_models.data.packing import IGNORED
from ms_models.parallel.mesh import Mesh
from ms_models.train.config import OptimizerConfig
from ms_models.train.parameter_groups import decays
from ms_models.train.step import Trainer, count_valid
from tests.ms_models.train.run_helpers import read_tensors, write_data, write_model

STEPS = 5
CONFIG = OptimizerConfig(lr=0.01, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-6, clip_norm=2.4)
LRS = [0.004, 0.01, 0.008, 0.005, 0.001]
# fp32 in two frameworks; measured at most 4e-7 for loss and norm.
TOLERANCE = 1e-5
# Of the distance that a parameter moved in five steps, in the Euclidean norm: AdamW divides by the size of the
# gradient, so single elements whose gradient is rounding noise may differ. Measured at most 4e-5.
UPDATE_TOLERANCE = 3e-4


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("step")
    return write_model(root / "model"), write_data(root / "data")


def loader(data: Path, accumulation: int = 3) -> TrainingLoader:
    return TrainingLoader(data, seed=7, micro_batch_size=2, accumulation=accumulation)


def torch_run(
    model_path: Path, data: Path, *, mean_of_means: bool = False
) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """The same training, written as one would in PyTorch; `mean_of_means` is the usual mistake in accumulation."""
    model = TorchAuto.from_pretrained(model_path, attn_implementation="eager")
    groups = [
        {"params": [p for p in model.parameters() if decays(p.shape)], "weight_decay": CONFIG.weight_decay},
        {"params": [p for p in model.parameters() if not decays(p.shape)], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=CONFIG.betas, eps=CONFIG.eps)
    source, losses, norms = loader(data), [], []
    for lr in LRS:
        batches = source.next_step()
        total = sum(count_valid(batch["labels"]) for batch in batches)
        optimizer.zero_grad()
        step_loss = 0.0
        for batch in batches:
            ids, mask, labels = (torch.from_numpy(batch[n]).long() for n in ("input_ids", "attention_mask", "labels"))
            logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED, reduction="sum"
            )
            loss = loss / count_valid(batch["labels"]) / len(batches) if mean_of_means else loss / total
            loss.backward()
            step_loss += float(loss.detach())
        losses.append(step_loss)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.clip_norm)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return losses, norms, {name: p.detach().numpy() for name, p in model.named_parameters()}


@pytest.mark.parametrize("jit", [True, False])
def test_five_steps_equal_pytorch(paths: tuple[Path, Path], jit: bool) -> None:
    model = AutoModelForCausalLM.from_pretrained(paths[0])
    trainer, source = Trainer(model, Mesh.single(), CONFIG, jit=jit), loader(paths[1])
    results = [trainer.step(source.next_step(), lr) for lr in LRS]
    losses, norms, weights = torch_run(*paths)
    assert [r.loss for r in results] == pytest.approx(losses, rel=TOLERANCE)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=TOLERANCE)
    assert min(norms) < CONFIG.clip_norm < max(norms), "some steps must be clipped and some not"
    ours = {p.name: p.asnumpy() for p in model.get_parameters()}
    start = read_tensors(paths[0] / "model.safetensors")
    assert set(ours) == set(weights) == set(start)
    for name, expected in weights.items():
        moved = np.linalg.norm(expected - start[name])
        assert moved > 0
        assert np.linalg.norm(ours[name] - expected) <= UPDATE_TOLERANCE * moved, name
    # Negative control: with masks this unequal, averaging the averages of micro-batches is far outside.
    wrong_losses, wrong_norms, _ = torch_run(*paths, mean_of_means=True)
    assert abs(wrong_losses[0] / losses[0] - 1) > 10 * TOLERANCE
    assert abs(wrong_norms[0] / norms[0] - 1) > 10 * TOLERANCE


def test_evaluation_weighs_tokens_and_ignores_filling(paths: tuple[Path, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(paths[0])
    trainer = Trainer(model, Mesh.single(), CONFIG, jit=False)
    reference = TorchAuto.from_pretrained(paths[0], attn_implementation="eager")

    def batches(size: int, dp: int = 1, rank: int = 0) -> list[dict[str, np.ndarray]]:
        """The validation split; every other label is what the model says, so that there is something to hit."""
        found = []
        for batch in validation_batches(paths[1], micro_batch_size=size, dp=dp, dp_rank=rank):
            labels = batch["labels"].copy()
            said = likeliest(batch)
            known = (labels[:, 1::2] != IGNORED) & (batch["input_ids"][:, :1] % 2 == 0)
            labels[:, 1::2] = np.where(known, said[:, ::2], labels[:, 1::2])
            found.append({**batch, "labels": labels})
        return found

    def logits_of(batch: Mapping[str, np.ndarray]) -> torch.Tensor:
        ids, mask = (torch.from_numpy(batch[name]).long() for name in ("input_ids", "attention_mask"))
        with torch.no_grad():
            return reference(input_ids=ids, attention_mask=mask).logits[:, :-1]

    def likeliest(batch: Mapping[str, np.ndarray]) -> np.ndarray:
        return logits_of(batch).argmax(-1).numpy()

    by_size = {size: trainer.evaluate(batches(size)) for size in (1, 2, 5)}  # 5 rows: size 2 fills up one row
    total, count, hits = 0.0, 0, 0
    for batch in batches(1):
        logits, targets = logits_of(batch), torch.from_numpy(batch["labels"]).long()[:, 1:]
        total += float(torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum"))
        count += count_valid(batch["labels"])
        hits += int((logits.argmax(-1) == targets).sum())
    assert 0 < hits < count
    for found in by_size.values():
        assert (found.tokens, found.hits) == (count, hits)
        assert found.loss == pytest.approx(total / count, rel=1e-6)
        assert found.perplexity == pytest.approx(np.exp(total / count), rel=1e-5)
    shares = [batches(2, dp=2, rank=rank) for rank in (0, 1)]
    assert [len(share) for share in shares] == [2, 2], "as many batches on both ranks, though there are 5 rows"
    assert trainer.evaluate(shares[0] + shares[1]).hits == hits


def test_a_step_that_is_not_finite_updates_nothing(paths: tuple[Path, Path]) -> None:
    model = AutoModelForCausalLM.from_pretrained(paths[0])
    trainer = Trainer(model, Mesh.single(), CONFIG, jit=False)
    embedding = next(p for p in model.get_parameters() if p.name == "model.embed_tokens.weight")
    healthy = embedding.asnumpy().copy()
    poisoned = healthy.copy()
    batches = loader(paths[1]).next_step()
    poisoned[batches[1]["input_ids"][0, 0]] = np.nan
    ops.assign(embedding, Tensor(poisoned))
    before = {p.name: p.asnumpy().copy() for p in model.get_parameters()}
    result = trainer.step(batches, 0.1)
    assert not result.is_finite
    assert trainer.optimizer.step == 0
    assert all(np.array_equal(p.asnumpy(), before[p.name], equal_nan=True) for p in model.get_parameters())
    # and leaves no trace in the next step
    ops.assign(embedding, Tensor(healthy))
    again = trainer.step(batches, 0.01)
    fresh = Trainer(AutoModelForCausalLM.from_pretrained(paths[0]), Mesh.single(), CONFIG, jit=False)
    assert again == fresh.step(batches, 0.01)


def test_divided_parameters_are_whole_only_while_they_are_used(paths: tuple[Path, Path]) -> None:
    """ZeRO 3 with a single replica, which computes what is computed without; two are in tests/multi_process."""
    alone = Trainer(AutoModelForCausalLM.from_pretrained(paths[0]), Mesh.single(), CONFIG, jit=False)
    mesh = Mesh(ParallelLayout(zero=3))
    divided = Trainer(AutoModelForCausalLM.from_pretrained(paths[0], mesh), mesh, CONFIG, jit=False)
    source = loader(paths[1])
    for lr in LRS[:3]:
        batches = source.next_step()
        expected, found = alone.step(batches, lr), divided.step(batches, lr)
        assert found.loss == pytest.approx(expected.loss, rel=1e-6)
        assert found.grad_norm == pytest.approx(expected.grad_norm, rel=1e-6)
        assert {parameter.size for parameter in divided.model.trainable_params()} == {1}
    batches = list(validation_batches(paths[1], micro_batch_size=2))
    assert divided.evaluate(batches).loss == pytest.approx(alone.evaluate(batches).loss, rel=1e-6)
    assert {parameter.size for parameter in divided.model.trainable_params()} == {1}
    assert divided.divided is not None
    weights = divided.sharding.whole(divided.divided.kept)
    for parameter in alone.model.get_parameters():
        found_value, expected_value = weights[parameter.name], parameter.asnumpy()
        assert np.linalg.norm(found_value - expected_value) <= 1e-6 * np.linalg.norm(expected_value), parameter.name


def test_a_batch_without_targets_is_refused(paths: tuple[Path, Path]) -> None:
    trainer = Trainer(AutoModelForCausalLM.from_pretrained(paths[0]), Mesh.single(), CONFIG, jit=False)
    batch = loader(paths[1], accumulation=1).next_step()[0]
    with pytest.raises(UserError, match="no token to learn from"):
        trainer.step([{**batch, "labels": np.full_like(batch["labels"], IGNORED)}], 0.1)
