"""A first batch through an adapted model, before anything is trained.

What does forward return, and can its blocks be taken apart? PyNative, whatever the run is.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import ParameterTuple, Tensor, ops

from mappings.errors import UserError
from ms_models.compat.device import synchronize
from ms_models.data.loader import Batch
from ms_models.train.adapter.model import AdaptedModel
from ms_models.train.adapter.wording import kind_of

SAME = 1e-5
"""Relative difference of two losses up to which they are the same: the same operations, perhaps in threads."""


def attempt(model: AdaptedModel, batch: Batch, *, jit: bool) -> None:
    """Runs a batch forward; every rank calls it with the same model, weights and batch.

    Args:
        model: with all of its blocks.
        batch: of the run.
        jit: whether forward has to compile.

    Raises:
        UserError: forward fails, returns something else than the configuration says, changes buffers, or does not have
            what the layout and the options need.
    """
    inputs = Tensor(batch["input_ids"]), Tensor(batch["labels"]), Tensor(batch["attention_mask"])
    before = {name: value.tobytes() for name, value in model.origin.buffers.items()}
    value = _loss(model, *inputs)
    changed = [name for name, data in before.items() if model.buffers()[name].tobytes() != data]
    if changed:
        raise UserError(
            f"model.adapter: forward changes the buffer {changed[0]} while it trains, which the runner does not keep; "
            "freeze it (evaluation mode of that layer)"
        )
    layout, options = model.mesh.layout, model.place.options
    again = {
        "layout.pp": layout.pp > 1, "layout.zero=3": layout.zero == 3,
        "parallel.recompute": options.recompute != "none",
    }  # fmt: skip
    if causes := [name for name, holds in again.items() if holds]:
        other = _loss(model, *inputs)
        if not _same(other, value):
            raise UserError(
                f"model.adapter: forward draws random numbers (one batch gives {value:.6g} and {other:.6g}); with "
                f"{' and '.join(causes)} the backward pass computes it again and would draw others; set dropout to 0"
            )
    if model.takes_turns:
        _take_apart(model, value, *inputs)
    if jit:
        _compile(model, value, *inputs)


def _loss(model: AdaptedModel, input_ids: Tensor, labels: Tensor, mask: Tensor) -> float:
    config, forward = model.adapter, model.forward_of
    name = f"forward of {config.class_name}"
    try:
        output = forward.call(input_ids, labels, mask)
        synchronize()
    except UserError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"model.adapter: {name} failed on a batch: {type(error).__name__}: {text}") from error
    selected = _part(model, output, "select", forward.selected)
    if config.output == "loss" and selected.size != 1:
        raise UserError(f"model.adapter.output: the loss of {name} is not one number but has shape {selected.shape}")
    if config.output == "logits":
        _check_logits(f"model.adapter.output: the logits of {name}", selected, input_ids)
    elif config.logits is not None:
        logits = _part(model, output, "logits", forward.logits)
        _check_logits(f"model.adapter.logits: what is at {config.logits!r} of {name}", logits, input_ids)
    return float(forward(input_ids, labels, mask)[0].asnumpy())


def _part(model: AdaptedModel, output: object, field: str, select: Callable[[Any], Any]) -> Tensor:
    """What a field of the configuration selects of what forward returned."""
    name, place = f"forward of {model.adapter.class_name}", getattr(model.adapter, field)
    try:
        found = select(output)
    except (LookupError, TypeError, AttributeError) as error:
        raise UserError(f"model.adapter.{field}: {name} returns {kind_of(output)}, which has no {place!r}") from error
    if not isinstance(found, Tensor) or not found.is_floating_point():
        kind = model.adapter.output if field == "select" else "logits"
        returned = f"{name} returns {kind_of(output)}"
        raise UserError(f"model.adapter.{field}: {returned}; {kind_of(found)} is no floating-point tensor of {kind}")
    return found


def _check_logits(what: str, logits: Tensor, input_ids: Tensor) -> None:
    if logits.ndim != 3 or tuple(logits.shape[:-1]) != tuple(input_ids.shape):
        raise UserError(f"{what} have shape {logits.shape}, expected {(*input_ids.shape, 'V')}")


def _compile(model: AdaptedModel, value: float, input_ids: Tensor, labels: Tensor, mask: Tensor) -> None:
    def total(input_ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        return model.loss(input_ids, labels, mask)[0]

    name = f"forward of {model.adapter.class_name}"
    try:
        compiled = float(ms.jit(total)(input_ids, labels, mask).asnumpy())
    except Exception as error:
        text = str(error)
        inside = str(Path(model.adapter.repository).resolve())
        places = [(file, line) for file, line in re.findall(r"[Ff]ile \"?([^\s\"]+?)\"?(?::|, line )(\d+)", text)]
        own = [f"{file.removeprefix(inside + '/')}:{line}" for file, line in places if file.startswith(inside)]
        where = f" at {own[-1]}" if own else ""
        first = " ".join(text.split("\n", 1)[0].split())[:200]
        raise UserError(
            f"model.adapter: {name} does not compile{where} ({type(error).__name__}: {first}); set train.jit: false"
        ) from error
    if not _same(compiled, value) and _same(_loss(model, input_ids, labels, mask), value):  # else it draws numbers
        raise UserError(
            f"model.adapter: {name} gives {compiled:.8g} compiled and {value:.8g} operator by operator; set train.jit: "
            "false"
        )


def _take_apart(model: AdaptedModel, value: float, input_ids: Tensor, labels: Tensor, mask: Tensor) -> None:
    """Checks that the stages, one after the other, compute what forward computes; sets the width between them."""
    blocks, count = model.blocks, model.place.tensors.blocks
    assert blocks is not None and count
    x: Tensor | None = None
    pieces = max(2, model.mesh.layout.pp * model.mesh.layout.vpp)
    borders = [count * piece // pieces for piece in range(pieces + 1)] if count >= pieces else [0, count]
    for first, last in pairwise(borders):
        y = model.through(range(first, last), x, input_ids, labels, mask, is_last=last == count)
        if first == 0 and last < count:
            _check_hidden(model, y, input_ids)
        x = y
    assert x is not None
    total = float(x.asnumpy())
    if not _same(total, value):
        raise UserError(
            f"model.adapter.blocks: {blocks.name!r} taken apart gives the loss {total:.8g}, forward {value:.8g}; "
            "blocks pass on more than one tensor of hidden states, take dp or tp instead"
        )
    _check_extras(model, input_ids, labels, mask)


def _check_hidden(model: AdaptedModel, x: Tensor, input_ids: Tensor) -> None:
    if x.ndim != 3 or tuple(x.shape[:2]) != tuple(input_ids.shape) or x.dtype != ms.float32:
        raise UserError(
            f"model.adapter.blocks: hidden states are {x.dtype} {list(x.shape)}, between stages they must be Float32 "
            f"{[*input_ids.shape, 'width']}"
        )
    model.config.hidden_size = x.shape[2]


def _check_extras(model: AdaptedModel, input_ids: Tensor, labels: Tensor, mask: Tensor) -> None:
    """What blocks take beside hidden states must not be trained: its gradient would be lost between the stages."""
    assert model.blocks is not None
    channel = model.blocks.channel
    parameters = ParameterTuple(
        [p for p in model.trainable_params() if model.place.tensors.by_name[p.name].block is None]
    )
    if not parameters:
        return

    def total() -> Tensor:
        model.through(range(0, 1), None, input_ids, labels, mask, is_last=False)
        tensors = [one for one in _flat(channel.extras) if one.is_floating_point()]
        result = ops.zeros((), ms.float32)
        for one in tensors:
            weight = Tensor(np.random.default_rng(0).standard_normal(one.shape).astype(np.float32))
            # Masks hold -inf, or the lowest number there is.
            result = result + (ops.clamp(one.astype(ms.float32), -1e4, 1e4) * weight).sum()
        return result

    _, gradients = ms.value_and_grad(total, None, parameters)()
    trained = [
        p.name for p, gradient in zip(parameters, gradients, strict=True) if np.abs(gradient.asnumpy()).max() > 0
    ]
    if trained:
        raise UserError(
            f"model.adapter.blocks: blocks take a tensor made of {trained[0]} beside hidden states, whose gradient "
            "stages would not pass back; take dp or tp instead"
        )


def _flat(values: object) -> list[Tensor]:
    if isinstance(values, Tensor):
        return [values]
    if isinstance(values, dict):
        return _flat(list(values.values()))
    if isinstance(values, list | tuple):
        return [found for value in values for found in _flat(value)]
    return []


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME * max(abs(one), abs(other)) or (np.isnan(one) and np.isnan(other))
