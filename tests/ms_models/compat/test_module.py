"""Modules as people use them: state, modes, ties, and a training step with and without `ms.jit`."""

from __future__ import annotations

import ast
import copy
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models import compat
from ms_models.compat import activations, containers, layers, normalization
from ms_models.compat.attention import scaled_dot_product_attention
from ms_models.compat.backward import backward_of
from ms_models.compat.losses import cross_entropy
from ms_models.compat.module import Module
from ms_models.compat.optim import AdamW


class TorchModel(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = torch.nn.Embedding(11, 8)
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(8) for _ in range(2))
        self.qkv = torch.nn.ModuleDict({"proj": torch.nn.Linear(8, 24)})
        self.mlp = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("table", torch.arange(8).float() / 8)

    def forward(self, idx: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = self.emb(idx) + self.table
        q, k, v = self.qkv["proj"](self.norms[0](x)).chunk(3, dim=-1)
        x = (
            x
            + torch.nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        )
        x = x + self.mlp(self.norms[1](x))
        return torch.nn.functional.cross_entropy(self.head(x).view(-1, 11), target.view(-1))


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.emb = layers.Embedding(11, 8)
        self.norms = containers.ModuleList(normalization.LayerNorm(8) for _ in range(2))
        self.qkv = containers.ModuleDict({"proj": layers.Linear(8, 24)})
        self.mlp = containers.Sequential(layers.Linear(8, 16), activations.GELU(), layers.Linear(16, 8))
        self.head = layers.Linear(8, 11, bias=False)
        self.head.weight = self.emb.weight
        self.register_buffer("table", ms.ops.arange(8).float() / 8)

    def construct(self, idx: ms.Tensor, target: ms.Tensor) -> ms.Tensor:
        x = self.emb(idx) + self.table
        q, k, v = self.qkv["proj"](self.norms[0](x)).chunk(3, -1)
        x = x + scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0]
        x = x + self.mlp(self.norms[1](x))
        return cross_entropy(self.head(x).view(-1, 11), target.view(-1))


def both() -> tuple[TorchModel, Model]:
    torch.manual_seed(0)
    theirs, ours = TorchModel(), Model()
    ours.load_state_dict({name: ms.Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    return theirs, ours


def batch(step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(step)
    return rng.integers(0, 11, (2, 6)), rng.integers(0, 11, (2, 6))


def test_state_names_and_parameters() -> None:
    theirs, ours = both()
    assert list(theirs.state_dict()) == list(ours.state_dict())
    assert [n for n, _ in theirs.named_parameters()] == [n for n, _ in ours.named_parameters()]
    assert [n for n, _ in theirs.named_modules()] == [n for n, _ in ours.named_modules()]
    assert len({p.name for p in ours.parameters()}) == len(list(ours.parameters()))


@pytest.mark.parametrize("jit", [False, True])
def test_ten_training_steps(jit: bool) -> None:
    theirs, ours = both()
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    optimizer = AdamW(ours.parameters(), lr=0.01)

    def forward(idx: ms.Tensor, target: ms.Tensor) -> ms.Tensor:
        return ours(idx, target)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    gradient = ms.jit(gradient) if jit else gradient
    for step in range(10):
        idx, target = batch(step)
        loss = theirs(torch.tensor(idx), torch.tensor(target))
        reference.zero_grad()
        loss.backward()
        reference.step()
        value, grads = gradient(ms.Tensor(idx), ms.Tensor(target))
        optimizer(grads)
        # sums over 12 tokens and 16 features in float32, carried over ten updates
        assert np.isclose(loss.item(), value.asnumpy(), rtol=2e-6 if step == 0 else 2e-5), step


def test_gradients_left_in_parameters_accumulate() -> None:
    theirs, ours = both()
    optimizer = AdamW(ours.parameters(), lr=0.01)
    run = backward_of(lambda idx, target: ours(idx, target) / 2, ours)
    for step in range(2):
        idx, target = batch(step)
        (theirs(torch.tensor(idx), torch.tensor(target)) / 2).backward()
        run(ms.Tensor(idx), ms.Tensor(target))
    for (name, parameter), own in zip(theirs.named_parameters(), ours.parameters(), strict=True):
        assert np.allclose(parameter.grad.numpy(), own.grad.asnumpy(), rtol=1e-4, atol=1e-6), name
    optimizer.step()
    optimizer.zero_grad()
    assert all(p.grad is None for p in ours.parameters())


def test_load_state_dict_names_what_is_wrong() -> None:
    _, ours = both()
    state = dict(ours.state_dict())
    state["mlp.1.weight"] = state.pop("mlp.0.weight")
    with pytest.raises(RuntimeError) as caught:
        ours.load_state_dict(state)
    assert "mlp.0.weight" in str(caught.value) and "mlp.1.weight" in str(caught.value)
    with pytest.raises(RuntimeError, match="emb"):
        ours.load_state_dict({**ours.state_dict(), "emb.weight": ms.ops.ones((3, 8))})


def test_buffers_can_be_replaced_and_stay_buffers() -> None:
    _, ours = both()
    ours.table = ms.ops.ones(8)
    assert float(ours.state_dict()["table"].sum()) == 8.0 and len(list(ours.buffers())) == 1


def test_dropout_follows_the_mode() -> None:
    layer = layers.Dropout(0.5)
    ones = ms.ops.ones((1000,))
    assert float((layer(ones) == 0).float().mean()) > 0.3
    assert float((layer.eval()(ones) == 0).float().mean()) == 0.0
    assert set(np.unique(layer.train()(ones).asnumpy())) == {0.0, 2.0}


def test_helper_files_stand_alone() -> None:
    """A vendored file may import MindSpore, numpy, the standard library and its siblings only."""
    folder = Path(compat.__file__).parent
    siblings = {path.stem for path in folder.glob("*.py")}
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                roots = {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                roots = {str(node.module).split(".")[0]}
            elif isinstance(node, ast.ImportFrom):
                names = [node.module] if node.module else [alias.name for alias in node.names]
                assert node.level == 1 and set(names) <= siblings, path.name
                continue
            else:
                continue
            assert roots <= {"mindspore", "numpy"} | sys.stdlib_module_names, f"{path.name}: {roots}"


def test_train_reaches_classes_that_made_it_their_own() -> None:
    calls = []

    class Own(Module):
        def train(self, mode: bool = True) -> Module:
            calls.append(mode)
            return Module.train(self, mode)

    class Outer(Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ms.nn.SequentialCell(Own())

    outer = Outer().eval()
    assert calls == [False]
    assert not outer.training and not outer.inner[0].training
    outer.train()
    assert calls == [False, True] and outer.inner[0].training


def test_a_deep_copy_has_memory_of_its_own() -> None:
    tensor = ms.ops.zeros((3,))
    copied = copy.deepcopy({"a": [tensor, tensor]})["a"]
    tensor[0] = 5
    assert copied[0] is copied[1]
    assert copied[0].asnumpy().tolist() == [0, 0, 0]


def test_children_may_have_any_name_that_torch_takes() -> None:
    class Torch(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.routes = torch.nn.ModuleDict({"2->1": torch.nn.Linear(2, 3), "a b": torch.nn.LayerNorm(2)})

    class Mine(Module):
        def __init__(self) -> None:
            super().__init__()
            self.routes = containers.ModuleDict({"2->1": layers.Linear(2, 3), "a b": normalization.LayerNorm(2)})

    model, reference = Mine(), Torch()
    assert list(model.state_dict()) == list(reference.state_dict())
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in reference.named_parameters()]
    assert [parameter.name for parameter in model.parameters()] == list(reference.state_dict())
