"""Section `model.adapter`: how the runner uses a class that the code converter produced."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Literal

from mappings.errors import UserError
from ms_models.train.config.bounds import number

TARGET = "_target_"
"""Key of a mapping that stands for an object: its value names what makes it, the other entries are the arguments."""
INPUTS = ("input_ids", "labels", "attention_mask")
"""What a batch of the runner holds."""
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
REFERENCE = re.compile(rf"{DOTTED.pattern}:[A-Za-z_]\w*")


@dataclass(frozen=True)
class BatchesConfig:
    """Batches that a function of the converted repository yields, in place of prepared data.

    The rows of its batches, one after the other, are the stream of the run: micro-batches are dealt out from it, so a
    batch of the function may have any number of rows. Labels are taken as they are.
    """

    function: str
    """`module:name` of the function, e.g. `dataset:build_loaders`."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments; see `AdapterConfig.arguments`."""
    position: str | None = None
    """Name of the argument that takes how many rows were read already; None reads these rows again and drops them."""
    train: int | None = number(None, least=0)
    """Which of the things it returns yields the training batches; None: it returns that alone."""
    validation: int | None = number(None, least=0)
    """Which yields the validation batches; None: there are none."""


@dataclass(frozen=True)
class AdapterConfig:
    """A model class of converted code."""

    repository: str
    """Output directory of `msmigrate code`."""
    module: str
    """Importable name of the module, from the repository, e.g. `model`."""
    class_name: str
    """Name of the class in it."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of the constructor. A mapping with the key `_target_` (`module:name`, of the repository) is
    replaced by what that returns for the other entries."""
    inputs: dict[str, str] = field(default_factory=lambda: {"input_ids": "input_ids", "labels": "labels"})
    """What forward calls the token ids (`input_ids`), the `labels` and the `attention_mask`; only what is named is
    passed."""
    constants: dict[str, Any] = field(default_factory=dict)
    """Further keyword arguments of forward."""
    output: Literal["loss", "logits"] = "loss"
    """What is used of what forward returns: its loss, or logits `[B, S, V]`, of which the runner makes the
    cross-entropy."""
    select: Any = None
    """Where that is: a position (0, 1, ...) or the name of an attribute or key; None: forward returns nothing else."""
    logits: Any = None
    """Where forward returns logits `[B, S, V]` beside the loss, in the same way: evaluations then count the accuracy,
    and there may be samples. None: nowhere. What `output: logits` selects needs no second naming."""
    reduction: Literal["mean", "sum"] = "mean"
    """Whether forward's loss is the mean or the sum over the labels that are not `ignore_index`. A mean is multiplied
    by their number, so that every token of a step weighs the same."""
    labels: Literal["next", "same"] = "next"
    """What forward takes as the label of a position: the `next` token, or the `same` one, and shifts itself. Prepared
    data is shifted accordingly; `batches` has to yield what forward takes."""
    ignore_index: int = -100
    """Label that forward leaves out of its loss."""
    weights: str | None = None
    """File or directory of safetensors with the names of the converted model; None starts from what the constructor
    draws with `train.seed`."""
    blocks: str | None = None
    """Dotted name of the list of blocks, e.g. `blocks` or `model.layers`: for layout.pp, layout.zero=3 and
    parallel.recompute."""
    batches: BatchesConfig | None = None
    """Where batches come from; None takes prepared data."""

    def __post_init__(self) -> None:
        for name, place in (("select", self.select), ("logits", self.logits)):
            if place is not None and type(place) is not str and type(place) is not int:
                found = f"{type(place).__name__} {place!r}"
                raise UserError(f"config: 'model.adapter.{name}' must be a position or a name, found {found}")
            if type(place) is int and place < 0:
                raise UserError(f"config: 'model.adapter.{name}' must be at least 0, found {place}")
        if self.logits is not None and (self.output == "logits" or self.select is None):
            raise UserError(
                "config: 'model.adapter.logits' says where logits are beside a loss that 'select' names; "
                "with 'output: logits' say 'select' alone"
            )
        for name in self.inputs:
            if name not in INPUTS:
                raise UserError(f"config: 'model.adapter.inputs' knows {', '.join(INPUTS)}, found {name!r}")
        if "input_ids" not in self.inputs:
            raise UserError("config: 'model.adapter.inputs' must say what forward calls 'input_ids'")
        if self.output == "loss" and "labels" not in self.inputs:
            raise UserError(
                "config: 'model.adapter.inputs' must say what forward calls 'labels'; only for logits it may do without"
            )
        _check("model.adapter.module", self.module, DOTTED, "a dotted name")
        _check("model.adapter.class_name", self.class_name, re.compile(r"[A-Za-z_]\w*"), "the name of a class")
        if self.blocks is not None:
            _check("model.adapter.blocks", self.blocks, re.compile(r"\w+(\.\w+)*"), "a dotted name")
        for name in references(self.arguments):
            _check(f"model.adapter.arguments: {TARGET}", name, REFERENCE, "module:name")
        if self.batches is not None:
            _check("model.adapter.batches.function", self.batches.function, REFERENCE, "module:name")
            for name in references(self.batches.arguments):
                _check(f"model.adapter.batches.arguments: {TARGET}", name, REFERENCE, "module:name")


def references(value: Any) -> list[Any]:
    """Every `_target_` in plain data."""
    if isinstance(value, list | tuple):
        return [found for item in value for found in references(item)]
    if not isinstance(value, dict):
        return []
    own = [value[TARGET]] if TARGET in value else []
    return own + [found for item in value.values() for found in references(item)]


def _check(name: str, value: Any, form: re.Pattern[str], what: str) -> None:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise UserError(f"config: {name!r} must be {what}, found {value!r}")
