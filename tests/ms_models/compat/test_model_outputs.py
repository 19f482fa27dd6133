"""`ModelOutput` and the output classes, element by element against transformers."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers.modeling_outputs as reference
from mindspore import Tensor
from transformers.utils import ModelOutput as TorchOutput

from ms_models.compat import model_outputs
from ms_models.compat.backward import backward_of
from ms_models.compat.layers import Linear
from ms_models.compat.model_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast, ModelOutput
from ms_models.compat.module import Module

NAMES = [name for name, kind in vars(reference).items() if is_dataclass(kind) and hasattr(model_outputs, name)]


@pytest.mark.parametrize("name", NAMES)
def test_fields(name: str) -> None:
    ours, theirs = getattr(model_outputs, name), getattr(reference, name)
    assert [one.name for one in fields(ours)] == [one.name for one in fields(theirs)]
    assert ours.__name__ == name and ours.__module__ == model_outputs.__name__


def test_there_are_many() -> None:
    assert len(NAMES) >= 24


@dataclass
class Ours(ModelOutput):
    loss: Any = None
    logits: Any = None
    extra: Any = None


@dataclass
class Theirs(TorchOutput):
    loss: Any = None
    logits: Any = None
    extra: Any = None


@dataclass
class Older(ModelOutput):
    logits: Any = None
    past_key_values: Any = None


def arrays(output: Any) -> list[tuple[str, Any]]:
    return [
        (name, np.asarray(value.asnumpy() if isinstance(value, Tensor) else value).tolist())
        for name, value in output.items()
    ]


@pytest.mark.parametrize(
    "given",
    [
        {"loss": 1.5, "logits": [[2.0]]},
        {"logits": [[2.0]], "extra": [1.0]},
        {"loss": [3.0, 4.0]},
        {},
    ],
)
def test_keys_and_elements(given: dict[str, Any]) -> None:
    ours = Ours(**{name: Tensor(value, ms.float32) for name, value in given.items()})
    theirs = Theirs(**{name: torch.tensor(value) for name, value in given.items()})
    assert arrays(ours) == arrays(theirs)
    assert len(ours) == len(theirs) == len(ours.to_tuple())
    assert [ours[i].asnumpy().tolist() for i in range(len(ours))] == [value for _, value in arrays(theirs)]
    assert len(ours[:1]) == len(theirs[:1]) and isinstance(ours[:1], tuple)
    assert ours.extra is None or "extra" in ours
    assert ours.get("nothing", 5) == 5 and (ours.get("loss") is None) == (theirs.get("loss") is None)


def test_pairs_fill_the_fields() -> None:
    """`Output({"loss": ...})` and `Output([("loss", ...)])`."""
    for given in ({"logits": 2.0, "extra": 3.0}, [("logits", 2.0), ("extra", 3.0)]):
        ours, theirs = Ours(given), Theirs(given)
        assert list(ours.items()) == list(theirs.items()) == [("logits", 2.0), ("extra", 3.0)]
        assert ours.loss is theirs.loss is None and ours.logits == 2.0
    with pytest.raises(ValueError, match="no pair"):
        Ours([("logits", 2.0), 3.0])
    assert Ours([4.0, 5.0]).loss == Theirs([4.0, 5.0]).loss == [4.0, 5.0]


def test_assignments_reach_both_views() -> None:
    output = Ours(loss=1.0)
    output.logits = 2.0
    output["extra"] = 3.0
    assert list(output.items()) == [("loss", 1.0), ("logits", 2.0), ("extra", 3.0)] and output.extra == 3.0
    for change in (lambda: output.pop("loss"), lambda: output.update(loss=2), lambda: output.setdefault("loss", 2)):
        with pytest.raises(TypeError, match="cannot be removed"):
            change()
    with pytest.raises(TypeError, match="cannot be removed"):
        del output["loss"]
    with pytest.raises(AttributeError, match="nothing"):
        _ = output.nothing


def test_older_names_of_the_cache() -> None:
    output = CausalLMOutputWithPast(logits=1.0, past_key_values=(1, 2))
    assert output.cache == output.past_key_values == output["past_key_values"] == output[1] == (1, 2)
    assert list(output) == ["logits", "cache"] and "past_key_values" in output
    output.past_key_values = 7
    assert output.cache == output["cache"] == 7
    with pytest.raises(ValueError, match="are the same"):
        CausalLMOutputWithPast(cache=1, past_key_values=2)
    older = Older(logits=1.0, past_key_values=3)
    assert list(older.items()) == [("logits", 1.0), ("past_key_values", 3)] and older.past_key_values == 3


def test_copies_and_pickles() -> None:
    output = BaseModelOutputWithPast(last_hidden_state=[1.0], hidden_states=(2.0,))
    for again in (pickle.loads(pickle.dumps(output)), copy.deepcopy(output), copy.copy(output)):
        assert type(again) is BaseModelOutputWithPast and list(again.items()) == list(output.items())
        assert again.hidden_states == (2.0,) and again.cache is None


def test_subclasses_have_to_be_dataclasses() -> None:
    class Plain(ModelOutput):
        pass

    with pytest.raises(TypeError, match="@dataclass"):
        Plain(loss=1.0)


class Inner(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = Linear(3, 2)

    def construct(self, x: Tensor) -> Any:
        logits = self.layer(x)
        return CausalLMOutputWithPast(loss=(logits * logits).sum(), logits=logits, hidden_states=(x,))


class Outer(Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def construct(self, x: Tensor) -> Any:
        output = self.inner(x)
        return Ours(loss=output.loss + output[1].sum() + output["logits"].mean(), logits=output.logits)


def test_gradients_pass_through_outputs() -> None:
    model = Outer()
    x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    step = backward_of(lambda: model(x).loss, model)
    step()
    weight = torch.tensor(model.inner.layer.weight.asnumpy(), requires_grad=True)
    bias = torch.tensor(model.inner.layer.bias.asnumpy(), requires_grad=True)
    logits = torch.tensor(x.asnumpy()) @ weight.T + bias
    ((logits * logits).sum() + logits.sum() + logits.mean()).backward()
    np.testing.assert_allclose(model.inner.layer.weight.grad.asnumpy(), weight.grad, 1e-5)
    np.testing.assert_allclose(model.inner.layer.bias.grad.asnumpy(), bias.grad, 1e-5)
