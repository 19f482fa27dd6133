"""`evaluate_once`: an evaluation without a training, on one rank of any layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor

from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Pipeline
from ms_models.train.backward import Backward
from ms_models.train.config import RunConfig
from ms_models.train.evaluation import Passes, evaluate
from ms_models.train.host_thread import wait_quietly
from ms_models.train.phases import enter
from ms_models.train.subject import build
from ms_models.train.validation import Validation


def evaluate_once(config: RunConfig, *, resume: Path | None, result: Path) -> None:
    """Evaluates on the validation split, and continues the prompts; every rank calls it.

    Args:
        config: names the model, the data, the layout and the prompts; ZeRO is not used, as nothing is trained.
        resume: checkpoint whose weights are taken; None for the model of the configuration.
        result: file for the figures, written by the first rank.

    Raises:
        UserError: model, data or checkpoint do not fit.
    """
    wait_quietly()
    mesh = Mesh.from_environment(config.layout)
    enter("evaluate")
    subject = build(config, mesh, resume)
    compiled: Callable[[Any], Any] = ms.jit if config.train.jit else _as_it_is
    passes: Passes = (Pipeline if config.layout.pp > 1 else Backward)(subject.model, _adds_nothing, compiled)
    measure = partial(evaluate, subject.model, passes, mesh, count_valid=subject.count_valid)
    validation = Validation(config, mesh, subject, measure)
    record = validation.record(0)
    del record["step"]
    if validation.refusal is not None:
        record["samples_left_out"] = validation.refusal
    if mesh.rank == 0:
        temporary = result.with_name(f"{result.name}.tmp")
        temporary.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        temporary.replace(result)


def _adds_nothing(parameters: Sequence[Parameter]) -> Callable[[Sequence[Tensor]], None]:
    """In place of gradients, of which there are none."""

    def add(gradients: Sequence[Tensor]) -> None:
        raise AssertionError("an evaluation has no gradients")

    return add


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function
