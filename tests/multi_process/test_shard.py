"""Converted projects whose layers `--shard` cut over two ranks, against the same projects in one torch process."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Launch, launch

from migrate.code.command import convert

RANKS = 2
# float32 sums of a few dozen terms in another order, the halves added over ranks
RTOL, ATOL = 1e-5, 2e-6
ROOT = Path(__file__).parents[2]
PROJECTS = ROOT / "tests" / "code" / "projects"
pytestmark = pytest.mark.multi_process


def tokens(batch: int, length: int, below: int) -> list[list[int]]:
    return np.random.default_rng(5).integers(0, below, (batch, length)).tolist()


COLUMNS = ("self_attn.q", "self_attn.k", "self_attn.v", "mlp.gate", "mlp.up")
PLAN = {f"layers.*.{name}_proj": "colwise" for name in COLUMNS}
PLAN |= {"layers.*.self_attn.o_proj": "rowwise", "layers.*.mlp.down_proj": "rowwise"}
JOBS: dict[str, dict[str, Any]] = {
    # grouped queries, a tied head, a vocabulary that two ranks do not divide
    "torch_gpt": {
        "source": ROOT / "samples" / "torch_gpt",
        "module": "model",
        "build": "GPT(GPTConfig(vocab_size=37, n_layer=2, n_embd=32, hidden_dim=44, max_seq_len=16))",
        "inputs": [tokens(2, 9, 37), tokens(2, 9, 37)],
        "alone": True,
        "config": "GPTConfig(vocab_size=37, n_embd=32, hidden_dim=44)",
        "dropout": "GPT(GPTConfig(vocab_size=37, n_layer=2, n_embd=32, hidden_dim=44, max_seq_len=16, dropout=0.5))",
    },
    # Llama as published: rotary positions as complex numbers, caches made in the constructor, an additive mask
    "complex_rope": {
        "source": PROJECTS / "complex_rope",
        "module": "model",
        "build": "Transformer(ModelArgs())",
        "inputs": [tokens(2, 9, 47)],
    },
    "cached complex_rope": {
        "source": PROJECTS / "complex_rope",
        "module": "model",
        "build": "Transformer(ModelArgs())",
        "inputs": [tokens(2, 9, 47), 0],
        "training": False,
        "gradients": False,
    },
    # q, k and v in one layer, split by widths that differ
    "kv_cache": {
        "source": PROJECTS / "kv_cache",
        "module": "model",
        "build": "Transformer(ModelArgs())",
        "before": ["model.setup_caches(2, 16, use_cache=False)"],
        "inputs": [tokens(2, 9, 53)],
    },
    # blocks whose layers stand in two classes; biases everywhere; neither vocabulary nor head
    "bert_classifier": {
        "source": PROJECTS / "bert_classifier",
        "module": "model",
        "build": "BertForSequenceClassification(dict(vocab_size=19, hidden_size=16, num_hidden_layers=2, "
        "num_attention_heads=4, intermediate_size=20, max_position_embeddings=9, type_vocab_size=2, "
        "layer_norm_eps=1e-12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), 3)",
        "inputs": [tokens(2, 7, 19)],
        "classes": ["attention", "ffn"],
    },
    # remote code with a declared plan, helper methods, a padding token, weights tied by name
    "hf_remote_code": {
        "source": PROJECTS / "hf_remote_code",
        "declare": {
            "tiny/configuration_tiny.py": (
                '    model_type = "tiny_remote"\n',
                f"    base_model_tp_plan = {PLAN!r}\n",
            ),
            "tiny/modeling_tiny.py": (
                '    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}\n',
                '    _tp_plan = {"lm_head": "colwise_gather_output"}\n',
            ),
        },
        "module": "tiny.modeling_tiny",
        "build": 'TinyForCausalLM(TinyConfig(attn_implementation="eager", use_cache=False))',
        "inputs": [tokens(2, 9, 61)],
        "pretrained": "TinyForCausalLM",
    },
}


def forget(root: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{root}{os.sep}"):
            del sys.modules[name]


def reference(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What torch computes; writes the weights that both sides take."""
    sys.path.insert(0, str(job["source"]))
    try:
        torch.manual_seed(3)
        module = importlib.import_module(job["module"])
        model = eval(job["build"], vars(module))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)  # no two heads and no two norms are alike
        np.savez(folder / "weights.npz", **{n: v.numpy() for n, v in model.state_dict().items()})
        model.train(job.get("training", True))
        for call in job.get("before", ()):
            eval(call, {"model": model})
        inputs = [torch.tensor(v) if isinstance(v, list) else v for v in job["inputs"]]
        with torch.set_grad_enabled(job.get("gradients", True)):
            out = model(*inputs)
            logits = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
            weights = torch.from_numpy(np.random.default_rng(1).standard_normal(logits.shape).astype(np.float32))
            loss = (logits * weights).sum()
        if job.get("gradients", True):
            loss.backward()
        return {
            "loss": loss.item(),
            "logits": logits.detach().numpy(),
            "gradients": {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None},
            "loss_weights": weights.tolist(),
        }
    finally:
        sys.path.remove(str(job["source"]))
        forget(job["source"])


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = {}
    for name, job in JOBS.items():
        folder = tmp_path_factory.mktemp(name.replace(" ", "_"))
        if "declare" in job:
            job["source"] = Path(shutil.copytree(job["source"], folder / "source"))
            for path, (line, more) in job.pop("declare").items():
                text = (job["source"] / path).read_text(encoding="utf-8")
                assert text.count(line) == 1
                (job["source"] / path).write_text(text.replace(line, line + more), encoding="utf-8")
        converted = convert(job["source"], folder / "converted", shard="auto")
        found[name] = {**reference(job, folder), "folder": folder, "report": converted}
    return found


@pytest.fixture(scope="module")
def run(expected: dict[str, dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Launch:
    jobs: dict[str, Any] = {}
    for name, job in JOBS.items():
        plain = {key: value for key, value in job.items() if key != "source"}
        jobs[name] = {**plain, "folder": str(expected[name]["folder"]), "loss_weights": expected[name]["loss_weights"]}
    jobs["missing reduce"] = {**jobs["torch_gpt"], "fault": "reduce", "alone": False}
    jobs["missing enter"] = {**jobs["torch_gpt"], "fault": "enter", "alone": False}
    jobs["odd heads"] = {**jobs["torch_gpt"], "refused": "GPT(GPTConfig(n_layer=1, n_head=3, n_kv_head=3, n_embd=48))"}
    jobs["one kv head"] = {**jobs["torch_gpt"], "refused": "GPT(GPTConfig(n_layer=1, n_kv_head=1))"}
    folder = tmp_path_factory.mktemp("shard")
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    script = Path(__file__).with_name("shard_worker.py")
    result = launch(script, RANKS, folder, str(folder / "jobs.json"), timeout=200)
    result.check(RANKS)
    return result


def worst(found: dict[str, Any], wanted: dict[str, Any], name: str) -> dict[str, float]:
    """The excess over the bound, by tensor; at most 0 when everything agrees."""
    pairs = {"logits": (found["logits"], wanted["logits"]), "loss": ([found["loss"]], np.array([wanted["loss"]]))}
    if JOBS[name].get("gradients", True):
        assert sorted(found["gradients"]) == sorted(wanted["gradients"])
        pairs.update({f"gradient of {n}": (found["gradients"][n], g) for n, g in wanted["gradients"].items()})
    return {
        key: float((np.abs(np.array(have) - want) - RTOL * np.abs(want).max() - ATOL).max())
        for key, (have, want) in pairs.items()
    }


@pytest.mark.parametrize("name", JOBS)
def test_two_ranks_compute_what_torch_computes(run: Launch, expected: dict[str, Any], name: str) -> None:
    for rank in range(RANKS):
        excess = worst(run.ranks[rank][name]["cut"], expected[name], name)
        assert max(excess.values()) <= 0, {key: value for key, value in excess.items() if value > 0}


@pytest.mark.parametrize("name", JOBS)
def test_each_rank_holds_its_share_and_the_state_is_whole(run: Launch, expected: dict[str, Any], name: str) -> None:
    rows = expected[name]["report"].facts["sharding"]
    classes = JOBS[name].get("classes", ["attention", "embedding", "ffn", "lm_head"])
    assert sorted({row["class"] for row in rows["cut"]}) == classes
    with np.load(expected[name]["folder"] / "weights.npz") as whole:
        for rank in range(RANKS):
            found = run.ranks[rank][name]["cut"]
            assert max(found["state"].values()) == 0
            assert set(found["state"]) == set(whole)
            cut = {n for n, shape in found["shapes"].items() if shape != list(whole[n].shape)}
            kept = {n for n in found["shapes"] if n not in cut}
            assert all("norm" in n or "bias" in n for n in kept) or "embedding" not in classes, kept
            assert all(np.prod(found["shapes"][n]) <= np.ceil(whole[n].shape[0] / 2) * 2 * whole[n].size for n in cut)


def test_initial_values_do_not_depend_on_the_ranks(run: Launch) -> None:
    first, second = (run.ranks[rank]["torch_gpt"] for rank in range(RANKS))
    assert first["cut"]["initial"] == second["cut"]["initial"] == first["alone"]["initial"]


def test_directories_of_transformers_are_written_and_read_whole(run: Launch) -> None:
    assert [run.ranks[rank]["hf_remote_code"]["cut"]["pretrained"] for rank in range(RANKS)] == [0.0] * RANKS


def test_dropout_of_a_program_that_never_seeds_is_the_same_on_all_ranks(run: Launch) -> None:
    first, second = run.ranks[0]["unseeded"], run.ranks[1]["unseeded"]
    assert first == second
    assert first[0] != first[1]


def test_cut_layers_compile(run: Launch) -> None:
    for rank in range(RANKS):
        assert run.ranks[rank]["compiled"] <= ATOL


def test_one_rank_holds_everything(run: Launch, expected: dict[str, Any]) -> None:
    alone = run.ranks[0]["torch_gpt"]["alone"]
    with np.load(expected["torch_gpt"]["folder"] / "weights.npz") as whole:
        assert all(shape == list(whole[n].shape) for n, shape in alone["shapes"].items())
    assert max(worst(alone, expected["torch_gpt"], "torch_gpt").values()) <= 0


@pytest.mark.parametrize("fault", ["missing reduce", "missing enter"])
def test_a_missing_sum_is_found(run: Launch, expected: dict[str, Any], fault: str) -> None:
    excess = worst(run.ranks[0][fault]["cut"], expected["torch_gpt"], "torch_gpt")
    assert max(excess.values()) > 1e-3


def test_heads_that_the_ranks_do_not_divide_are_refused(run: Launch) -> None:
    for rank in range(RANKS):
        assert run.ranks[rank]["odd heads"] == "UserError: tensor parallel: 2 ranks do not divide the 3 heads; 1 would"
        assert "do not divide the 1 heads" in run.ranks[rank]["one kv head"]
