"""Which blocks `--shard auto` cuts, what becomes of them, and what it leaves whole for which reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from migrate.code.command import convert
from migrate.report import Report

HEAD = """\
import math

import torch
import torch.nn.functional as F
from torch import nn

"""


def converted(tmp_path: Path, text: str, shard: str = "auto") -> tuple[Report, str]:
    """The report and the file that a module becomes."""
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "model.py").write_text(HEAD + text, encoding="utf-8")
    report = convert(repo, tmp_path / "out", shard=shard)
    assert "M102" not in {f.code for f in report.findings}, report.findings
    return report, (tmp_path / "out" / "model.py").read_text(encoding="utf-8")


def cuts(report: Report) -> dict[str, str]:
    return {row["parameter"].split(".")[1]: row["cut"] for row in report.facts["sharding"]["cut"]}


def reasons(report: Report) -> str:
    return "\n".join(f.message for f in report.findings if f.code == "M701")


ATTENTION = """\
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.width = dim // heads
        {layers}

    def forward(self, x, mask=None):
        b, t, d = x.shape
        {split}
        {between}
        scores = q @ k.transpose(-2, -1) / math.sqrt(self.width)
        if mask is not None:
            scores = scores + mask
        y = scores.softmax(dim=-1) @ v
        y = y.transpose(1, 2).reshape({merged})
        return self.out(y)
"""
SEPARATE = """self.q, self.k, self.v = None, None, None
        self.wq = nn.Linear(dim, dim)
        self.wk = nn.Linear(dim, dim)
        self.wv = nn.Linear(dim, dim)
        self.out = nn.Linear(dim, dim)"""
THREE = "q, k, v = (w.view(b, t, self.heads, self.width).transpose(1, 2) for w in (self.wq(x), self.wk(x), self.wv(x)))"


def attention(layers: str = SEPARATE, split: str = THREE, between: str = "pass", merged: str = "b, t, d") -> str:
    return ATTENTION.format(layers=layers, split=split, between=between, merged=merged)


FUSED = "self.qkv = nn.Linear(dim, 3 * dim)\n        self.out = nn.Linear(dim, dim)"
CUT = {
    "separate": (attention(), {"wq": "column", "wk": "column", "wv": "column", "out": "row"}, ["heads=self.heads"]),
    "chunks of one layer": (
        attention(
            FUSED,
            "q, k, v = self.qkv(x).chunk(3, dim=-1)\n"
            "        q, k, v = [z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v)]",
        ),
        {"qkv": "column", "out": "row"},
        ["parts=3", "heads=self.heads", "self.enter_parallel(x)", "view(b, t, split_layers.local(self.heads), -1)"],
    ),
    "parts as an axis": (
        attention(
            FUSED,
            "q, k, v = self.qkv(x).view(b, t, 3, self.heads, self.width).permute(2, 0, 3, 1, 4).unbind(0)",
        ),
        {"qkv": "column", "out": "row"},
        ["parts=3, heads=self.heads", "view(b, t, 3, -1, self.width)"],
    ),
    "parts within heads": (
        attention(
            FUSED,
            "q, k, v = self.qkv(x).view(b, t, self.heads, 3 * self.width).transpose(1, 2).chunk(3, dim=-1)",
        ),
        {"qkv": "column", "out": "row"},
        ["ColumnParallelLinear(dim, 3 * dim, heads=self.heads)"],
    ),
    "shape of any input": (
        attention(
            split="shape = x.shape[:-1] + (-1, self.width)\n"
            "        q = self.wq(x).view(shape).transpose(1, 2)\n"
            "        k = self.wk(x).view(shape).transpose(1, 2)\n"
            "        v = self.wv(x).view(shape).transpose(1, 2)",
            merged="*x.shape[:-1], -1",
        ),
        {"wq": "column", "wk": "column", "wv": "column", "out": "row"},
        ["heads=dim // self.width"],
    ),
    "einsum": (
        attention(
            split="q, k, v = (w.view(b, t, self.heads, self.width) for w in (self.wq(x), self.wk(x), self.wv(x)))",
            between="a = torch.einsum('bqhd,bkhd->bhqk', q, k).softmax(-1)\n"
            "        return self.out(torch.einsum('bhqk,bkhd->bqhd', a, v).flatten(2))",
        ),
        {"wq": "column", "wk": "column", "wv": "column", "out": "row"},
        ["heads=self.heads"],
    ),
    "a registry of attention functions": (
        """from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS


def eager(module, query, key, value, attention_mask, scaling, **kwargs):
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask[:, :, :, : key.shape[-2]]
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


def rotated(q, cos, sin):
    half = q.shape[-1] // 2
    other = torch.cat((-q[..., half:], q[..., :half]), dim=-1)
    return q * cos.unsqueeze(1) + other * sin.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.width = config.width
        self.q_proj = nn.Linear(config.dim, config.heads * self.width)
        self.k_proj = nn.Linear(config.dim, config.heads * self.width)
        self.v_proj = nn.Linear(config.dim, config.heads * self.width)
        self.o_proj = nn.Linear(config.heads * self.width, config.dim)

    def forward(self, hidden_states, position_embeddings, attention_mask=None, past_key_values=None, **kwargs):
        input_shape = hidden_states.shape[:-1]
        hidden_shape = (*input_shape, -1, self.width)
        q = self.q_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(hidden_shape).transpose(1, 2)
        cos, sin = position_embeddings
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if past_key_values is not None:
            k, v = past_key_values.update(k, v, 0)
        attend = eager
        if self.config._attn_implementation != "eager":
            attend = ALL_ATTENTION_FUNCTIONS[self.config._attn_implementation]
        y, weights = attend(self, q, k, v, attention_mask, scaling=self.width**-0.5, **kwargs)
        y = y.reshape(*input_shape, -1).contiguous()
        return self.o_proj(y), weights
""",
        {"q_proj": "column", "k_proj": "column", "v_proj": "column", "o_proj": "row"},
        ["heads=config.heads", "position_embeddings = self.enter_parallel(position_embeddings)"],
    ),
    "residual inside the block": (
        """class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)  # comment stays
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))
""",
        {"up": "column", "down": "row"},
        ["self.up(self.enter_parallel(self.norm(x)))", "# comment stays"],
    ),
    "a block of two classes": (
        """class Inner(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)

    def forward(self, x):
        return torch.relu(self.up(x))


class Outer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = Inner(dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(self.inner(x))
""",
        {"up": "column", "down": "row"},
        ["self.up(self.enter_parallel(x))"],
    ),
    "scale that is learned": (
        attention(between="q = q * self.scale", layers=SEPARATE + "\n        self.scale = nn.Parameter(torch.ones(1))"),
        {"wq": "column", "wk": "column", "wv": "column", "out": "row"},
        ["q = q * self.enter_parallel(self.scale)"],
    ),
}


@pytest.mark.parametrize("name", CUT)
def test_a_block_that_is_proved_is_cut(tmp_path: Path, name: str) -> None:
    text, wanted, lines = CUT[name]
    report, out = converted(tmp_path, text)
    assert cuts(report) == wanted, reasons(report)
    for line in lines:
        assert line in out, out


WHOLE = {
    "norm over the cut features": (
        attention(SEPARATE + "\n        self.norm = nn.LayerNorm(dim)", "q = self.norm(self.wq(x))\n"
                  "        k, v = self.wk(x), self.wv(x)\n"
                  "        q, k, v = [z.view(b, t, self.heads, -1).transpose(1, 2) for z in (q, k, v)]"),
        "LayerNorm is applied to a cut tensor",
    ),
    "norm with weights over each head": (
        attention(SEPARATE + "\n        self.norm = nn.LayerNorm(dim // heads)", between="q = self.norm(q)"),
        "LayerNorm is applied to a cut tensor",
    ),
    "reshape that is not proved": (attention(merged="b * t, -1"), "do not prove where the cut axis goes"),
    "softmax over heads": (attention(between="q = q.softmax(dim=1)"), "softmax runs along the axis that is cut"),
    "sum over heads": (attention(between="q = q + q.mean(dim=1, keepdim=True)"), "along the axis that is cut"),
    "heads mixed by a layer": (
        attention(SEPARATE + "\n        self.mix = nn.Conv1d(heads, heads, 1)", between="q = self.mix(q)"),
        "Conv1d is applied to a cut tensor",
    ),
    "an operation that is not known": (attention(between="q = torch.flip(q, (1,))"), "flip of a cut tensor"),
    "a condition on the data of a rank": (
        attention(between="if q.abs().max() > 1:\n            q = q / 2"),
        "over all elements of a cut tensor|a condition|max of a cut tensor",
    ),
    "a weight used by itself": (
        attention(between="q = q + F.linear(x, self.wq.weight).view(b, t, self.heads, -1).transpose(1, 2)"),
        "uses the weight of wq itself",
    ),
    "layers that share a weight": (
        attention(SEPARATE + "\n        self.wq.weight = self.wk.weight"),
        "gives w[qk] and another layer one weight",
    ),
    "a layer called from another method": (
        attention() + "\n    def keys(self, x):\n        return self.wk(x)\n",
        "calls wk in a method that was not followed",
    ),
    "the cut tensor is returned": (
        attention().replace("return self.out(y)", "return y, self.out(y)"),
        "the result is cut",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_block_that_is_not_proved_stays_whole_and_says_why(tmp_path: Path, name: str) -> None:
    text, reason = WHOLE[name]
    report, out = converted(tmp_path, text)
    assert "row" not in cuts(report).values()
    found = reasons(report)
    assert re.search(reason, found), found
    assert "TODO(msmigrate:M701)" in out and "ColumnParallelLinear" not in out
    assert any(row["why"] for row in report.facts["sharding"]["whole"])


SHARED = """class Inner(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.up = nn.Linear(dim, 4 * dim)

    def forward(self, x):
        return torch.relu(self.up(x))


class Outer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = Inner(dim)
        self.down = nn.Linear(4 * dim, dim)

    def forward(self, x):
        return x + self.down(self.inner(x))


def alone():
    return Inner(3)
"""


def test_a_class_that_others_make_as_well_is_not_cut(tmp_path: Path) -> None:
    report, _ = converted(tmp_path, SHARED)
    assert cuts(report) == {}
    assert len(report.facts["sharding"]["whole"]) == 2


LANGUAGE = """
class Model(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.table = nn.Embedding(vocab, dim)
        self.places = nn.Embedding(32, dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        {tie}

    def forward(self, ids):
        x = self.table(ids) + self.places(torch.arange(ids.shape[1]))
        return self.head(x)
"""


def test_table_and_head_are_cut_along_the_vocabulary(tmp_path: Path) -> None:
    report, out = converted(tmp_path, LANGUAGE.format(tie="self.head.weight = self.table.weight"))
    assert cuts(report) == {"table": "vocabulary", "head": "vocabulary"}
    assert "self.places = Embedding(32, dim)" in out


def test_a_tie_with_a_layer_that_stays_whole_keeps_both_whole(tmp_path: Path) -> None:
    text = LANGUAGE.format(tie="self.head.weight = self.table.weight")
    text = text.replace("nn.Embedding(vocab, dim)", "nn.Embedding(vocab, dim, max_norm=1.0)")
    report, out = converted(tmp_path, text)
    assert cuts(report) == {}
    assert "VocabParallel" not in out


def test_a_second_run_changes_nothing(tmp_path: Path) -> None:
    _, out = converted(tmp_path, attention())
    again = convert(tmp_path / "out", tmp_path / "again", shard="auto")
    assert again.facts["files_changed"] == 0
    assert (tmp_path / "again" / "model.py").read_text(encoding="utf-8") == out


def test_the_output_stands_alone(tmp_path: Path) -> None:
    converted(tmp_path, attention())
    folder = tmp_path / "out" / "ms_compat"
    files = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    assert {
        "split_layers.py",
        "pieces.py",
        "collectives/__init__.py",
        "collectives/all_reduce.py",
        "mesh.py",
        "layout.py",
        "errors.py",
    } <= set(files)
    for name, text in files.items():
        imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", text, re.MULTILINE)
        assert not [m for m in imported if m.split(".")[0] in ("ms_models", "mappings", "migrate", "torch")], name
        for dots, module in re.findall(r"^from (\.+)([\w.]+) import", text, re.MULTILINE):
            above = [*Path(name).parent.parts][: len(Path(name).parent.parts) - len(dots) + 1]
            path = "/".join([*above, *module.split(".")])
            assert f"{path}.py" in files or f"{path}/__init__.py" in files, (name, dots + module)


DATA_PARALLEL = """

def train(model, loader):
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adafactor(model.parameters())
    return model, optimizer
"""


def test_replicas_and_optimizers_of_whole_gradients_are_found(tmp_path: Path) -> None:
    report, _ = converted(tmp_path, attention() + DATA_PARALLEL)
    found = [f.message for f in report.findings if f.code == "M703"]
    assert len(found) == 2 and "replicas" in found[0] + found[1] and "Adafactor looks at whole" in found[0] + found[1]


def test_without_the_option_nothing_is_cut(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    (repo / "model.py").write_text(HEAD + attention(), encoding="utf-8")
    report = convert(repo, tmp_path / "out")
    assert "sharding" not in report.facts
    assert not (tmp_path / "out" / "ms_compat" / "split_layers.py").exists()


LEARNED = {
    "an attribute registered by name": (
        'self.register_parameter("gain", nn.Parameter(torch.ones(1)))',
        "q = q * self.gain",
    ),
    "a list of parameters": ("self.gains = nn.ParameterList([nn.Parameter(torch.ones(1))])", "q = q * self.gains[0]"),
    "a module without inputs": ("self.bias = Bias()", "q = q + self.bias()"),
    "a parameter or nothing": ("self.gain = nn.Parameter(torch.ones(1)) if heads > 1 else None", "q = q * self.gain"),
    "a function of a library": ("pass", "q = q * library.gain()"),
}
BIAS = """import library


class Bias(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.zeros(1))

    def forward(self):
        return self.table


"""


@pytest.mark.parametrize("name", LEARNED)
def test_what_may_be_learned_never_meets_a_cut_tensor_unseen(tmp_path: Path, name: str) -> None:
    made, used = LEARNED[name]
    report, out = converted(tmp_path, BIAS + attention(f"{SEPARATE}\n        {made}", between=used))
    # its gradient is summed, or the block stays whole
    assert "self.enter_parallel(self.gain)" in out or cuts(report) == {}
