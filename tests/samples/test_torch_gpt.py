"""The sample PyTorch repository learns, resumes exactly, and generates the same text with its KV cache as without."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

SAMPLE = Path(__file__).parents[2] / "samples" / "torch_gpt"
MODULES = ("config", "dataset", "generate", "model", "train")


def run(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a script of the sample as its user does, in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, str(SAMPLE / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)


def train(out: Path, *arguments: str) -> list[dict[str, Any]]:
    done = run("train.py", f"out_dir={out}", *arguments)
    assert done.returncode == 0, done.stderr
    return read_log(out)


def read_log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "losses.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 steps with the defaults; the directory also has the starting weights."""
    out = tmp_path_factory.mktemp("trained")
    train(out, "--save-init", str(out / "init.pt"))
    return out


@pytest.fixture(scope="module")
def sample() -> Iterator[dict[str, ModuleType]]:
    """The sample's flat modules, imported by bare name and removed again: `model` is a name others may want."""
    saved = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    sys.path.insert(0, str(SAMPLE))
    try:
        yield {name: __import__(name) for name in MODULES}
    finally:
        sys.path.remove(str(SAMPLE))
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(saved)


def test_the_loss_falls(trained: Path) -> None:
    log = read_log(trained)
    assert [line["step"] for line in log] == list(range(1, 21))
    # A uniform guess over 257 tokens costs ln 257 = 5.55. The start is a little better by luck of the tied head, and
    # the frequencies of the bytes alone bring 20 steps to about 3.1.
    assert abs(log[0]["loss"] - math.log(257)) < 0.6
    last = sum(line["loss"] for line in log[-5:]) / 5
    assert last < 3.4
    assert all(line["grad_norm"] > 0 for line in log)


def test_the_schedule_warms_up_and_decays(trained: Path) -> None:
    rates = [line["lr"] for line in read_log(trained)]
    assert rates[:5] == pytest.approx([4e-4, 8e-4, 1.2e-3, 1.6e-3, 2e-3], rel=1e-12)
    assert rates[19] == pytest.approx(2e-4, rel=1e-12)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_a_resumed_run_repeats_the_losses_exactly(trained: Path, tmp_path: Path) -> None:
    resumed = train(tmp_path, "--resume", str(trained / "ckpt_10.pt"))
    assert resumed == read_log(trained)[10:]  # same kernels, same order of sums: not one bit may differ

    wrong = train(tmp_path, "--resume", str(trained / "ckpt_10.pt"), "data.seed=43", "train.max_steps=12")
    assert wrong[0]["loss"] != resumed[0]["loss"]  # the comparison sees other batches


def test_resuming_in_place_keeps_the_earlier_lines(tmp_path: Path, sample: dict[str, ModuleType]) -> None:
    path = tmp_path / "losses.jsonl"
    for step in range(1, 8):
        sample["train"].append_log(path, {"step": step, "loss": 1.0})
    sample["train"].start_log(path, 5)
    assert [line["step"] for line in read_log(tmp_path)] == [1, 2, 3, 4, 5]
    sample["train"].start_log(path, 0)
    assert read_log(tmp_path) == []


def test_given_weights_replace_the_random_ones(trained: Path, tmp_path: Path, sample: dict[str, ModuleType]) -> None:
    init = trained / "init.pt"
    started = train(tmp_path, "seed=99", "--init-from", str(init), "train.max_steps=1", "train.eval_batches=1")
    assert started[0]["loss"] == read_log(trained)[0]["loss"]

    torch.manual_seed(99)  # without --init-from the seed would have given other weights
    own = sample["model"].GPT(sample["model"].GPTConfig()).state_dict()
    given = torch.load(init)
    assert own.keys() == given.keys()
    assert not torch.equal(own["tok_emb.weight"], given["tok_emb.weight"])


def test_the_cache_does_not_change_the_text(trained: Path, sample: dict[str, ModuleType]) -> None:
    generate = sample["generate"]
    model = generate.load_model(trained / "ckpt_20.pt", "cpu")
    idx = torch.tensor([sample["dataset"].encode("def main("), sample["dataset"].encode("import os")])

    for options in ({"temperature": 0}, {"temperature": 1.0, "top_k": 20}):
        texts = []
        for use_cache in (True, False):
            torch.manual_seed(0)
            texts.append(generate.generate(model, idx, 40, use_cache=use_cache, **options))
        assert torch.equal(*texts)
    assert len(texts[0].unique()) > 10  # sampling gives a real text, not one repeated byte


@pytest.mark.parametrize("pieces", [(1,) * 12, (5, 1, 6), (12,)])
def test_the_cache_gives_the_logits_of_the_whole_text(pieces: tuple[int, ...], sample: dict[str, ModuleType]) -> None:
    model, cache = seeded_model(sample)
    idx = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        start = 0
        for length in pieces:
            with_cache, _ = model(idx[:, start : start + length], cache=cache)
            start += length
            whole, _ = model(idx[:, :start])
            # the same sums over other block sizes: a few units in the last place of fp32
            torch.testing.assert_close(with_cache, whole, rtol=1e-5, atol=1e-5)


def test_a_misaligned_mask_is_detected(sample: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = seeded_model(sample)
    idx = torch.randint(0, 257, (2, 12), generator=torch.Generator().manual_seed(1))
    plain = torch.Tensor.tril
    monkeypatch.setattr(torch.Tensor, "tril", lambda self, diagonal=0: plain(self))
    with torch.no_grad():
        model(idx[:, :5], cache=cache)
        with_cache, _ = model(idx[:, 5:], cache=cache)
        monkeypatch.undo()
        whole, _ = model(idx)
    assert (with_cache - whole).abs().max() > 1e-2


def seeded_model(sample: dict[str, ModuleType]) -> tuple[Any, Any]:
    """A small model with weights large enough for attention to matter, and its empty cache."""
    torch.manual_seed(0)
    config = sample["model"].GPTConfig(n_layer=2, n_embd=32, hidden_dim=48)
    model = sample["model"].GPT(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model, sample["model"].KVCache(config.n_layer)


def test_batches_depend_on_the_seed_and_the_position_only(sample: dict[str, ModuleType]) -> None:
    sampler = sample["dataset"].ResumableSampler

    def take(count: int, **options: int) -> list[int]:
        indices = iter(sampler(7, **options))
        return [next(indices) for _ in range(count)]

    torch.manual_seed(0)
    first = take(21, seed=3)
    torch.manual_seed(1)
    assert take(21, seed=3) == first
    assert take(11, seed=3, start=10) == first[10:]
    assert take(21, seed=4) != first
    epochs = [first[i : i + 7] for i in (0, 7, 14)]
    assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
    assert epochs[0] != epochs[1]


def test_targets_are_the_next_tokens(sample: dict[str, ModuleType]) -> None:
    train_tokens, val_tokens = sample["dataset"].load_corpus(1_000_000)
    assert train_tokens.max() == sample["dataset"].EOT and len(val_tokens) > 1000
    data = sample["dataset"].ByteDataset(train_tokens, 16)
    x, y = data[3]
    assert torch.equal(x[1:], y[:-1])
    assert y[-1] == data[4][0][0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.lrr=3", "unknown config key 'train.lrr'"),
        ("train=3", "unknown config key 'train'"),
        ("train.lr=fast", "train.lr: could not convert"),
        ("model.tie_weights=1", "model.tie_weights: expected true or false"),
        ("oops", "not of the form key=value"),
    ],
)
def test_bad_overrides_are_refused(override: str, message: str, sample: dict[str, ModuleType]) -> None:
    with pytest.raises(ValueError, match=message):
        sample["config"].load_config(SAMPLE / "config.yaml", [override])


def test_generate_prints_text(trained: Path) -> None:
    done = run("generate.py", str(trained / "ckpt_20.pt"), "--prompt", "def ", "--max-new-tokens", "8", "--top-k", "5")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("def ")
