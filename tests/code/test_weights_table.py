"""The table of weights: read off the constructors, it has the names and shapes of the modules that torch builds."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from mappings.errors import UserError
from mappings.formats.weights_table import FILE, Argument, Tie, WeightsTable, Wrapper
from migrate.code.analysis import analyse
from migrate.code.command import convert
from migrate.code.project import load_project
from migrate.code.weights_table.table import weights_table

SAMPLE = Path(__file__).parents[2] / "samples" / "torch_gpt"

SOURCE = '''
import copy
import math
from collections import OrderedDict

from einops.layers.torch import Rearrange
from transformers.pytorch_utils import Conv1D

import torch
import torch.nn as layers
from torch.nn import Parameter


class Scale(layers.Module):
    def __init__(self, dim, bias=False, *, groups=1):
        super().__init__()
        self.groups = groups
        self.weight = Parameter(torch.ones(dim // self.groups, groups) * 0.02)
        self.bias = Parameter(torch.zeros(dim)) if bias else None
        self.gain = Parameter(torch.tensor(1.0))
        self.register_buffer("mask", torch.tril(torch.ones(dim, dim)).view(1, 1, dim, dim))
        self.register_buffer("table", torch.arange(dim), persistent=False)
        self.register_buffer("later", None)
        self.plain = torch.zeros(3)


class Base(layers.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = layers.Linear(width, 2 * width)


class Block(Base):
    def __init__(self, config, index):
        super().__init__(config.width)
        hidden = config.width * config.ratio
        self.norm = layers.LayerNorm(config.width, elementwise_affine=config.affine)
        self.up, self.index = None, index
        self.up = layers.Linear(config.width, hidden, bias=config.bias)
        if config.gated:
            self.gate = layers.Linear(config.width, hidden, bias=False)
        else:
            self.skip = layers.Linear(hidden, hidden)
        self.conv = layers.Conv1d(config.width, hidden, 3, groups=2, bias=True)
        self.act = layers.GELU()
        self.scale = Scale(hidden, bias=True, groups=2)
        self.net = layers.Sequential(layers.Linear(4, 5), layers.ReLU(), layers.BatchNorm1d(5))


class Net(layers.Module):
    """Docstring."""

    def __init__(self, config, classes=7):
        super().__init__()
        self.config = config
        self.embed = layers.Embedding(config.vocab, config.width)
        self.position = Parameter(torch.zeros(1, config.length, config.width))
        self.blocks = layers.ModuleList([Block(config, i) for i in range(config.depth)])
        self.more = layers.ModuleList()
        for i in range(config.depth - 1):
            self.more.append(layers.Conv2d(3, 4, (3, 5)))
        self.heads = layers.ModuleDict({"a": layers.Linear(config.width, classes), "b": layers.PReLU()})
        self.norms = layers.Sequential(*[layers.RMSNorm(config.width) for _ in range(2)])
        self.two = layers.ModuleList([layers.Bilinear(2, 3, 4), layers.GroupNorm(2, 4)])
        self.two.append(layers.EmbeddingBag(5, 6))
        self.head = layers.Linear(config.width, config.vocab, bias=False)
        self.head.weight = self.embed.weight
        self.add_module("extra", layers.ConvTranspose1d(4, 6, 2))
        self.register_parameter("alpha", Parameter(torch.full((2, 3), 1.0 / math.sqrt(2))))


class Helped(layers.Module):
    def __init__(self, dim, hidden=None, deep=False):
        super().__init__()
        if hidden is None:
            hidden = 4 * dim
        self.size = dim
        if deep:
            self.size = 2 * dim
        self.a, self.b = layers.Linear(dim, hidden), layers.Linear(hidden, self.size)
        self._more(dim + 1)

    def _more(self, width):
        self.c = layers.Linear(width, self.size, bias=False)

    def forward(self, x):
        return x


class Small(layers.Module):
    def __init__(self, width, fused=True):
        super().__init__()
        self.w = layers.Linear(width, 2 * width)


class Parts(layers.Module):
    """Modules of libraries, a class that a condition chooses, copies."""

    def __init__(self, dim, kdim=None, cross=False, cells=3):
        super().__init__()
        self.attention = layers.MultiheadAttention(dim, 2, add_bias_kv=cross, kdim=kdim)
        self.rnn, self.gru = layers.RNNCell(dim, 5), layers.GRUCell(dim, 5, bias=cross)
        self.lstm = layers.LSTMCell(input_size=dim, hidden_size=6)
        self.fused = Conv1D(3 * dim, dim)
        self.settings = copy.deepcopy({"dim": dim})
        kind = Helped if cross else Small
        self.chosen = kind(dim)
        layer = Small(dim)
        self.copies = layers.ModuleList([copy.deepcopy(layer) for _ in range(cells)])
        self.split = layers.Sequential(Rearrange("b n -> n b"), layers.Linear(dim, dim))


class Grown(layers.Module):
    def __init__(self, dim, decoder=False, wide=False):
        super().__init__()
        self.layer = layers.ModuleList()
        self.layer.append(layers.Linear(dim, dim))
        if decoder:
            self.layer.append(layers.LayerNorm(dim))
        else:
            self.layer.append(layers.Linear(dim, 1))
            self.layer.append(layers.PReLU(dim))
        if wide:
            self.layer.append(layers.Linear(dim, 2))
        self.layer.append(layers.Linear(3, dim))
        if wide:
            self.again = layers.Linear(1, 1)
        else:
            self.again = layers.Linear(2, 2)
        self.again = layers.Linear(3, 3)
        if decoder:
            self.more = layers.ModuleList([layers.Linear(1, 1)])
            self.more.append(layers.Linear(1, 2))


class Opaque(layers.Module):
    def __init__(self, make, names):
        super().__init__()
        self.given = make
        self.made = make(3)
        self.rnn = layers.LSTM(3, 4)
        self.parts = layers.ModuleDict({name: layers.Linear(1, 1) for name in names})
        for name in names:
            setattr(self, name, layers.Linear(2, 2))
            self.register_buffer(name, torch.zeros(2))
        self.named = layers.Sequential(OrderedDict([("x", layers.Linear(1, 1))]))
        self.wrapped = torch.nn.utils.weight_norm(layers.Linear(2, 2))
        self.grown = layers.ModuleList()
        self.grown += [layers.Linear(3, 3)]
        self.parts["y"] = layers.Linear(4, 4)
        self.parts.update({"z": layers.Linear(5, 5)})
        while len(self.grown) < 3:
            self.grown.append(layers.Linear(6, 6))
        local = layers.Linear(7, 7)
        self.local = local

    def later(self):
        self.register_buffer("cache", torch.zeros(2))
        self.late = layers.Linear(8, 8)
'''


def table_of(tmp_path: Path, source: str = SOURCE) -> WeightsTable:
    (tmp_path / "net.py").write_text(source, encoding="utf-8")
    return weights_table(analyse(load_project(tmp_path)))


def expected(table: WeightsTable, name: str, arguments: dict[str, Any]) -> dict[str, tuple[int, ...] | None]:
    return {key: tensor.shape for key, tensor in table.of_class(name).state(arguments).items()}


def built(name: str, *args: Any, **kwargs: Any) -> dict[str, tuple[int, ...]]:
    """Names and shapes of what torch makes of the same source."""
    namespace: dict[str, Any] = {}
    exec(compile(SOURCE, "net.py", "exec"), namespace)
    return {key: tuple(value.shape) for key, value in namespace[name](*args, **kwargs).state_dict().items()}


def config(**changed: Any) -> SimpleNamespace:
    body = {"width": 8, "ratio": 2, "affine": True, "bias": True, "gated": True, "vocab": 11, "length": 6, "depth": 3}
    return SimpleNamespace(**{**body, **changed})


@pytest.mark.parametrize(
    "changed", [{}, {"gated": False}, {"bias": False, "affine": False}, {"depth": 1, "width": 4, "ratio": 3}]
)
def test_names_and_shapes_are_those_of_torch(tmp_path: Path, changed: dict[str, Any]) -> None:
    found = expected(table_of(tmp_path), "net.Net", {"config": config(**changed), "classes": 7})
    assert found == built("Net", config(**changed))


def test_defaults_and_parts_alone(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    arguments = {"dim": 6, "bias": False, "groups": 3}
    assert expected(table, "net.Scale", arguments) == built("Scale", 6, groups=3)
    assert expected(table, "net.Block", {"config": config(), "index": 0}) == built("Block", config(), 0)


@pytest.mark.parametrize("arguments", [(3, None, False), (3, 5, False), (3, None, True), (3, 7, True)])
def test_conditions_and_helper_methods(tmp_path: Path, arguments: tuple[int, int | None, bool]) -> None:
    named = dict(zip(("dim", "hidden", "deep"), arguments, strict=True))
    assert expected(table_of(tmp_path), "net.Helped", named) == built("Helped", *arguments)


@pytest.mark.parametrize(
    "arguments", [{"dim": 4}, {"dim": 4, "kdim": 6}, {"dim": 4, "kdim": 4, "cross": True}, {"dim": 8, "cells": 1}]
)
def test_modules_of_libraries_and_chosen_classes(tmp_path: Path, arguments: dict[str, Any]) -> None:
    assert expected(table_of(tmp_path), "net.Parts", arguments) == built("Parts", **arguments)


@pytest.mark.parametrize(("decoder", "wide"), [(False, False), (False, True), (True, False), (True, True)])
def test_lists_that_grow_under_conditions(tmp_path: Path, decoder: bool, wide: bool) -> None:
    arguments = {"dim": 4, "decoder": decoder, "wide": wide}
    assert expected(table_of(tmp_path), "net.Grown", arguments) == built("Grown", **arguments)


def test_what_a_table_says_beyond_shapes(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    net = table.of_class("net.Net")
    scale = {tensor.name: tensor for tensor in table.of_class("net.Scale").tensors}
    assert net.arguments == (Argument("config", None), Argument("classes", "7")) and net.file == "net.py"
    assert net.tied == (Tie("head.weight", "embed.weight", ()),) and net.not_known == ()
    assert set(net.repeated.values()) == {"config.depth", "config.depth - 1", "2"}
    assert (scale["table"].kind, scale["table"].persistent) == ("buffer", False)
    assert (scale["mask"].kind, scale["mask"].persistent) == ("buffer", True)
    assert scale["weight"].shape == ("dim // groups", "groups") and scale["gain"].shape == ()
    assert scale["bias"].when == ("bias",) and "later" not in scale and "plain" not in scale
    up = next(tensor for tensor in net.tensors if tensor.name.endswith("up.weight"))
    assert up.shape == ("config.width * config.ratio", "config.width") and up.layout == "[out, in]"
    assert SOURCE.splitlines()[int(up.source.split(":")[1]) - 1].strip().startswith("self.up = layers.Linear")
    for entry in table.classes:
        assert all(tensor.converted == tensor.name and tensor.permutation is None for tensor in entry.tensors)


def test_types_are_those_of_torch_where_they_are_said(tmp_path: Path) -> None:
    names = {torch.float32: "F32", torch.int64: "I64", torch.float16: "F16", torch.bool: "BOOL", torch.float64: "F64"}
    source = """
import torch
from torch import nn


class Typed(nn.Module):
    def __init__(self, n=3, keep=True):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.half = nn.Linear(2, 2, dtype=torch.half)
        self.scale = nn.Parameter(torch.ones(2) / 3)
        self.register_buffer("mask", torch.ones(2, 2).tril().bool())
        self.register_buffer("steps", torch.arange(4))
        self.register_buffer("turns", torch.tensor([1, 2.5]))
        self.register_buffer("angles", torch.zeros(3, dtype=torch.float64).cos())
        self.register_buffer("places", torch.arange(n))
        self.register_buffer("maybe", torch.zeros(2).long(), persistent=keep)
"""
    namespace: dict[str, Any] = {}
    exec(compile(source, "typed.py", "exec"), namespace)
    want = {name: names[value.dtype] for name, value in namespace["Typed"]().state_dict().items()}
    typed = table_of(tmp_path, source).of_class("net.Typed")
    found = {name: tensor.dtype for name, tensor in typed.state({}).items()}
    assert found == {**want, "places": None}  # of `n` it is not known whether it is whole
    assert set(found) - set(typed.state({"keep": False})) == {"maybe"}


def test_ties_and_layers_of_one_configuration(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    state = table.of_class("net.Net").state({"config": config()})
    assert {name: t.same_as for name, t in state.items() if t.same_as} == {"head.weight": "embed.weight"}
    with pytest.raises(UserError, match=r"net\.Net: no argument 'colour'"):
        table.of_class("net.Net").state({"config": config(), "colour": 1})
    with pytest.raises(UserError, match="the value of config is not known"):
        table.of_class("net.Net").state({})


def test_wrappers_are_named(tmp_path: Path) -> None:
    source = """
import torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = torch.compile(torch.nn.Linear(2, 2))
model = DDP(model)
"""
    table = table_of(tmp_path, source)
    assert table.wrappers == (
        Wrapper("torch.compile", "_orig_mod", False, ("net.py:5",)),
        Wrapper("torch.nn.parallel.DistributedDataParallel", "module", True, ("net.py:6",)),
    )


def test_what_is_not_known_is_said(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    said = " ".join(item.what for item in table.of_class("net.Opaque").not_known)
    for words in (
        "make",
        "LSTM",
        "parts",
        'register_buffer("cache"',
        "OrderedDict",
        "setattr",
        "weight_norm",
        "self.grown +=",
        'self.parts["y"]',
        "self.parts.update",
        "grown.append",
        "local",
        "later() is called",
        "Linear(8, 8)",
    ):
        assert words in said, words
    with pytest.raises(UserError, match="use the names of a module that was built"):
        expected(table, "net.Opaque", {"make": None, "names": []})
    with pytest.raises(UserError, match="no class of the table"):
        expected(table, "net.Missing", {})


HANDED = """
from functools import partial

import torch
from torch import nn

from apex.normalization import FusedNorm

Bare = partial(nn.Linear, bias=False)


def default(value, make):
    return make() if value is None else value


class Wrapped(nn.Module):
    def __init__(self, dim, fn, norm=nn.LayerNorm, act=nn.GELU):
        super().__init__()
        self.norm = norm(dim)
        self.fn = fn
        self.act = act()

    def forward(self, x):
        return self.act(self.fn(self.norm(x)))


class Again(Wrapped):
    def __init__(self, dim, inner):
        super().__init__(dim, inner, partial(nn.LayerNorm, eps=1e-3))


class Net(nn.Module):
    def __init__(self, dim, wide=False, later=False):
        super().__init__()
        layer = nn.Linear
        own = partial(nn.Linear, bias=wide)
        self.q, self.k, self.v = Bare(dim, dim), Bare(dim, 3, bias=True), layer(dim, dim)
        self.o = own(dim, dim)
        self.deep = Wrapped(dim, Wrapped(dim, Bare(dim, dim), norm=nn.RMSNorm), act=partial(nn.PReLU, 2))
        self.again = nn.Sequential(Again(dim, Wrapped(dim, nn.Linear(dim, 2))), Wrapped(2, nn.Identity()))
        self.plain = Wrapped(dim, torch.sigmoid)
        if not later:
            self.register_buffer("scale", None)
            return
        self.register_buffer("scale", torch.ones(dim))
        self.late = Bare(dim, dim)

    def forward(self, x):
        return self.o(self.q(x))


class Open(nn.Module):
    def __init__(self, net, name, make=None):
        super().__init__()
        self.net, self.name, self.made = net, name, default(make, lambda: nn.Linear(2, 2))
        self.fused = FusedNorm(3)
        if name:
            for _ in range(3):
                if net is None:
                    return
        self.behind = nn.Linear(2, 2)

    def forward(self, x):
        return self.fused(self.net(self.made(x)))
"""


@pytest.mark.parametrize("more", [{}, {"wide": True}, {"later": True}])
def test_partials_modules_that_are_handed_in_and_early_returns(tmp_path: Path, more: dict[str, bool]) -> None:
    namespace: dict[str, Any] = {}
    exec(compile(HANDED.replace("from apex.normalization import FusedNorm", ""), "net.py", "exec"), namespace)
    want = {key: tuple(value.shape) for key, value in namespace["Net"](5, **more).state_dict().items()}
    found = table_of(tmp_path, HANDED).of_class("net.Net")
    assert found.not_known == ()
    assert {key: tensor.shape for key, tensor in found.state({"dim": 5, **more}).items()} == want


def test_modules_that_come_from_outside_are_said(tmp_path: Path) -> None:
    table = table_of(tmp_path, HANDED)
    said = [item.what for item in table.of_class("net.Open").not_known]
    assert [what.split(",")[0] for what in said] == [
        "net is net",
        "made is default(make",
        "fused is FusedNorm(3)",
        "what is done behind the return under `if name` is not known",
    ]
    assert any("fn" in item.what for item in table.of_class("net.Wrapped").not_known)


LOAD = """
import sys
import numpy as np
import mindspore as ms
from safetensors.numpy import load_file
from model import GPT, GPTConfig

ms.runtime.launch_blocking()
model = GPT(GPTConfig(**eval(sys.argv[2])))
result = model.load_state_dict({name: ms.Tensor(value) for name, value in load_file(sys.argv[1]).items()})
model.eval()
logits, _ = model(ms.Tensor(np.arange(12).reshape(2, 6) % 13), None)
np.save(sys.argv[3], logits.asnumpy())
"""


def test_a_checkpoint_goes_over_by_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's model -> file by the table's names -> the converted model; the logits agree."""
    out = tmp_path / "out"
    convert(SAMPLE, out)
    table = WeightsTable.read(out / FILE)
    monkeypatch.syspath_prepend(str(SAMPLE))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    import model as source

    sizes = {"vocab_size": 13, "n_layer": 2, "n_head": 4, "n_kv_head": 2, "n_embd": 32, "hidden_dim": 48}
    settings = source.GPTConfig(**sizes)
    torch.manual_seed(0)
    reference = source.GPT(settings).eval()
    state = {name: value.numpy() for name, value in reference.state_dict().items()}
    names = expected(table, "model.GPT", {"config": dataclasses.asdict(settings)})
    assert {name: value.shape for name, value in state.items()} == names
    save_file({t: np.ascontiguousarray(state[t]) for t in names}, tmp_path / "weights.safetensors")
    assert table.of_class("model.GPT").tied == (Tie("lm_head.weight", "tok_emb.weight", ("config.tie_weights",)),)
    arguments = [str(tmp_path / "weights.safetensors"), repr(sizes), str(tmp_path / "logits.npy")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *arguments], cwd=out, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    with torch.no_grad():
        want, _ = reference(torch.arange(12).reshape(2, 6) % 13, None)
    have = np.load(tmp_path / "logits.npy")
    # fp32, two layers: the order of sums
    assert np.abs(have - want.numpy()).max() <= 1e-5 * np.abs(want.numpy()).max()
    monkeypatch.delitem(sys.modules, "model", raising=False)
