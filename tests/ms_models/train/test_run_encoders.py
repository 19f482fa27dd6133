"""Masked language models in the runner: steps against transformers, masks by position, resume, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM as TorchAuto

from mappings.errors import UserError
from mappings.families import families
from ms_models import auto, auto_masked_lm
from ms_models.data.loader import TrainingLoader, validation_batches
from ms_models.data.packing import IGNORED
from ms_models.parallel.mesh import Mesh
from ms_models.train import loop
from ms_models.train.batches import prepared_step, prepared_validation
from ms_models.train.config import OptimizerConfig, load
from ms_models.train.evaluation import Evaluation
from ms_models.train.launch import preflight, starting
from ms_models.train.launch.checks.model import read_model
from ms_models.train.launch.dry_run import judge
from ms_models.train.masking import masking_of
from ms_models.train.services.metrics_file import read_metrics
from ms_models.train.step import Trainer
from ms_models.train.subject import Subject, build
from ms_models.train.task import CAUSAL, MASKED, task_of
from tests.ms_models.train.encoder_helpers import SEP, VOCABULARY, write_encoder, write_rows, write_run
from tests.ms_models.train.run_helpers import read_tensors

CONFIG = OptimizerConfig(lr=0.01, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-6, clip_norm=1.0)
LRS = [0.004, 0.01, 0.008]
TOLERANCE = 1e-5  # fp32 in two frameworks; measured at most 6e-7 for loss and norm
UPDATE_TOLERANCE = 3e-4  # of the distance moved; see test_run_step.py


@pytest.fixture(scope="module", params=["bert", "roberta"])
def paths(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    ms.runtime.launch_blocking()
    root = tmp_path_factory.mktemp(request.param)
    return write_encoder(root / "model", request.param), write_rows(root / "data")


def make_loader(data: Path) -> TrainingLoader:
    return TrainingLoader(data, seed=5, micro_batch_size=2, accumulation=3)


def make_subject(paths: tuple[Path, Path], tmp_path: Path) -> Subject:
    return build(load(write_run(tmp_path / "run.yaml", *paths, tmp_path / "run")), Mesh.single(), None)


def torch_run(subject: Subject, paths: tuple[Path, Path]) -> tuple[list[float], list[float], dict[str, np.ndarray]]:
    """The same training in PyTorch: transformers' model, and the same hidden tokens."""
    model = TorchAuto.from_pretrained(paths[0], attn_implementation="eager")
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": CONFIG.weight_decay},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1.0, betas=CONFIG.betas, eps=CONFIG.eps)
    source, losses, norms = make_loader(paths[1]), [], []
    for lr in LRS:
        batches = prepared_step(subject, source)
        total = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        optimizer.zero_grad()
        step_loss = 0.0
        for batch in batches:
            ids, mask, labels = (torch.from_numpy(batch[n]).long() for n in ("input_ids", "attention_mask", "labels"))
            logits = model(input_ids=ids, attention_mask=mask).logits
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED, reduction="sum"
            )
            (loss / total).backward()
            step_loss += float(loss.detach()) / total
        losses.append(step_loss)
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), CONFIG.clip_norm)))
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
    return losses, norms, {name: p.detach().numpy() for name, p in model.named_parameters()}


def test_steps_equal_transformers(paths: tuple[Path, Path], tmp_path: Path) -> None:
    subject = make_subject(paths, tmp_path)
    trainer = Trainer(subject.model, Mesh.single(), CONFIG, jit=False, count_valid=subject.count_valid)
    source = make_loader(paths[1])
    results = [trainer.step(prepared_step(subject, source), lr) for lr in LRS]
    losses, norms, weights = torch_run(subject, paths)
    assert [r.loss for r in results] == pytest.approx(losses, rel=TOLERANCE)
    assert [r.grad_norm for r in results] == pytest.approx(norms, rel=TOLERANCE)
    ours = {p.name: p.asnumpy() for p in subject.model.get_parameters()}
    start = read_tensors(paths[0] / "model.safetensors")
    assert set(ours) == set(weights) == set(start)
    for name, expected in weights.items():
        if name.endswith("key.bias"):
            continue  # softmax is blind to it: its gradient is rounding noise, which AdamW blows up
        moved = np.linalg.norm(expected - start[name])
        assert moved > 0, name
        assert np.linalg.norm(ours[name] - expected) <= UPDATE_TOLERANCE * moved, name
    # Negative control: labels that are shifted, as a decoder's are, give another loss.
    wrong = Trainer(subject.model, Mesh.single(), CONFIG, jit=False)
    assert abs(wrong.step(prepared_step(subject, source), 0.0).loss / results[-1].loss - 1) > 100 * TOLERANCE


@pytest.mark.parametrize("paths", ["bert"], indirect=True)
def test_masks_follow_from_the_position_alone(paths: tuple[Path, Path], tmp_path: Path) -> None:
    subject = make_subject(paths, tmp_path)
    one = [batch for _ in range(3) for batch in prepared_step(subject, make_loader(paths[1]))][:3]
    first = np.concatenate([batch["input_ids"] for batch in one])
    # Two ranks with one micro-batch of three rows each see the same six rows, hidden alike.
    two = [
        TrainingLoader(paths[1], seed=5, micro_batch_size=3, accumulation=1, dp=2, dp_rank=rank) for rank in range(2)
    ]
    other = np.concatenate([batch["input_ids"] for source in two for batch in prepared_step(subject, source)])
    assert np.array_equal(first, other)
    # The next step hides others, and so does the next epoch, where the rows come again.
    source = make_loader(paths[1])
    prepared_step(subject, source)
    assert not np.array_equal(np.concatenate([b["input_ids"] for b in prepared_step(subject, source)]), first)
    batch = one[0]
    again = subject.prepare(next(iter(make_loader(paths[1]).next_step())), np.array([0, 1]), "train")
    later = subject.prepare(next(iter(make_loader(paths[1]).next_step())), np.array([29, 30]), "train")
    assert np.array_equal(again["labels"], batch["labels"])
    assert not np.array_equal(later["labels"], batch["labels"])
    assert not np.isin(batch["labels"], [SEP]).any(), "special tokens are never to be guessed"


@pytest.mark.parametrize("paths", ["bert"], indirect=True)
def test_evaluation_hides_the_same_whatever_the_layout_and_drops_nothing(
    paths: tuple[Path, Path], tmp_path: Path
) -> None:
    def evaluate(model: Path, size: int, dp: int, rank: int) -> Evaluation:
        subject = make_subject((model, paths[1]), tmp_path)
        trainer = Trainer(subject.model, Mesh.single(), CONFIG, jit=False, count_valid=subject.count_valid)
        source = TrainingLoader(paths[1], seed=5, micro_batch_size=size, dp=dp, dp_rank=rank)
        rows = validation_batches(paths[1], micro_batch_size=size, dp=dp, dp_rank=rank)
        found = trainer.evaluate(prepared_validation(subject, rows, source))
        assert subject.model.training, "the next step drops again"
        return found

    dropping = write_encoder(tmp_path / "dropping", hidden_dropout_prob=0.5)
    whole, again = evaluate(paths[0], 2, 1, 0), evaluate(dropping, 3, 1, 0)
    shares = [evaluate(paths[0], 2, 2, rank) for rank in range(2)]
    assert whole.tokens == again.tokens == shares[0].tokens + shares[1].tokens > 0
    assert again.loss == pytest.approx(whole.loss, rel=1e-6)
    assert sum(one.loss * one.tokens for one in shares) / whole.tokens == pytest.approx(whole.loss, rel=1e-6)


@pytest.mark.parametrize("paths", ["bert"], indirect=True)
def test_a_resumed_run_is_the_uninterrupted_one(paths: tuple[Path, Path], tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", hidden_dropout_prob=0.1)
    short = {"steps": 4, "accumulation": 1, "eval_every": 2}
    configs = {
        name: load(write_run(tmp_path / f"{name}.yaml", model, paths[1], tmp_path / name, train=short))
        for name in ("whole", "cut")
    }
    for config in configs.values():
        (Path(config.output.directory) / "logs").mkdir(parents=True)
    loop.run(configs["whole"])
    loop.run(configs["cut"], stop_after=2)
    loop.run(configs["cut"], resume=tmp_path / "cut" / "step_00000002")
    whole, cut = (tmp_path / name / "step_00000004" for name in ("whole", "cut"))
    for file in ("model-rank00000.safetensors", "optimizer-rank00000.safetensors"):
        first, second = read_tensors(whole / file), read_tensors(cut / file)
        assert first.keys() == second.keys()
        assert all(np.array_equal(first[name], second[name]) for name in first)
    curves = [
        [
            (r["step"], key, r[key])
            for r in read_metrics(tmp_path / name / "metrics.jsonl")
            for key in ("loss", "eval_loss")
            if key in r
        ]
        for name in ("whole", "cut")
    ]
    assert curves[0] == curves[1]
    assert len(curves[0]) == 6, "four steps and two evaluations"


def test_every_family_has_the_task_of_its_registry() -> None:
    kinds = {kind: task_of(family) for family in families().values() for kind in family.model_types}
    assert {kind for kind in auto_masked_lm.registered() if kinds[kind] != MASKED} == set()
    assert {kind for kind in auto.registered() if kinds[kind] != CAUSAL} == set()


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"model": {"task": "causal"}}, "model.task is 'causal', but models of family bert are trained for 'masked'"),
        ({"layout": {"pp": 2}}, "encoders are cut over tp and replicated over dp"),
        ({"layout": {"dp": 2, "zero": 3}}, "take zero=2"),
        ({"parallel": {"recompute": "block"}}, "parallel.recompute is 'block'"),
        ({"metrics": {"prefixes": 2}}, "which encoders do not write"),
    ],
)
def test_what_encoders_cannot_do_is_refused_before_the_start(
    sections: dict[str, dict[str, object]], message: str, tmp_path: Path
) -> None:
    model, data = write_encoder(tmp_path / "model"), write_rows(tmp_path / "data")
    config = write_run(tmp_path / "run.yaml", model, data, tmp_path / "run", **sections)
    with pytest.raises(UserError, match=message):
        starting.launch(config, echo=lambda line: None)
    assert message in "\n".join(judge(load(config)).lines())


def test_masking_settings_are_checked(tmp_path: Path) -> None:
    model, data = write_encoder(tmp_path / "model"), write_rows(tmp_path / "data")
    path = write_run(tmp_path / "run.yaml", model, data, tmp_path / "run")
    for override, message in (
        ("masking.rate=0", "'masking.rate' must be above 0"),
        ("masking.random_share=0.5", "add up to more than 1"),
        ("masking.lexicon=words.txt", "needs masking.whole_words"),
        ("masking.raet=0.2", "did you mean 'rate'"),
    ):
        with pytest.raises(UserError, match=message):
            load(path, [override])
    config = load(path)
    assert masking_of(config, VOCABULARY).rate == 0.5
    with pytest.raises(UserError, match=f"tokenizer has {VOCABULARY} tokens, the model knows 40"):
        masking_of(config, 40)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": "[HIDE]"}))
    with pytest.raises(UserError, match="HIDE"):
        masking_of(config, VOCABULARY)


def test_roberta_counts_its_positions_behind_the_padding(tmp_path: Path) -> None:
    model = preflight.check_model(
        load(write_run(tmp_path / "run.yaml", write_encoder(tmp_path / "model", "roberta", pad_token_id=3),
                       write_rows(tmp_path / "data"), tmp_path / "run"))
    )  # fmt: skip
    preflight.check_length(16, model)
    with pytest.raises(UserError, match="of which 16 can be used"):
        preflight.check_length(17, model)
    preflight.check_length(20, read_model(load(write_run(tmp_path / "bert.yaml", write_encoder(tmp_path / "bert"),
                                                         tmp_path / "data", tmp_path / "run"))))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("paths", ["bert"], indirect=True)
def test_compiled_steps_drop_and_evaluations_between_them_do_not(paths: tuple[Path, Path], tmp_path: Path) -> None:
    """What is compiled knows whether it trains: evaluating does not change what the next step drops."""
    sizes = {"num_hidden_layers": 1, "hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2}
    model = write_encoder(tmp_path / "model", **sizes)
    curves = []
    for jit in (False, True):
        subject = make_subject((model, paths[1]), tmp_path)
        trainer = Trainer(subject.model, Mesh.single(), CONFIG, jit=jit, count_valid=subject.count_valid)
        source, found = make_loader(paths[1]), []
        for lr in LRS[:2]:
            found.append(trainer.step(prepared_step(subject, source), lr).loss)
            rows = validation_batches(paths[1], micro_batch_size=2)
            found.append(trainer.evaluate(prepared_validation(subject, rows, source)).loss)
        curves.append(found)
    assert curves[1] == pytest.approx(curves[0], rel=TOLERANCE)
