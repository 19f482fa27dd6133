"""The model of a run: its directory is one of a known family, and its sizes fit the layout."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family, family_for_config
from mappings.formats.hf_directory import read_config
from mappings.holdings import check_trainable
from ms_models.parallel.schedules.orders import check_sizes
from ms_models.train.config import RunConfig
from ms_models.train.masking import masking_of
from ms_models.train.task import MASKED, check_encoder, check_task


@dataclass(frozen=True)
class Model:
    """The model a run starts from."""

    directory: Path
    config: Mapping[str, Any]
    family: Family

    @property
    def name(self) -> str:
        """For people."""
        return self.family.name

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(parameter.shape) for parameter in self.family.parameters(self.config))


def read_model(config: RunConfig) -> Model:
    """The model directory is there and of a family that ms_models knows.

    Raises:
        UserError: it is not.
    """
    assert config.model.path is not None
    directory = Path(config.model.path)
    raw = read_config(directory)
    return Model(directory, raw, family_for_config(raw, str(directory / "config.json")))


def check_model_task(config: RunConfig, model: Model) -> str:
    """The model can be trained for the task; tokens can be hidden from a masked language model.

    Raises:
        UserError: says what does not fit.
    """
    task = check_task(config, model.family)
    if task == MASKED:
        masking = masking_of(config, model.family.dims(model.config)["vocab"])
        return f"{task}: {100 * masking.rate:g} % of {len(masking.vocabulary.ordinary)} ordinary tokens are hidden"
    return task


def sizes_divide(config: RunConfig, model: Model) -> str:
    """The sizes of the model divide over the axes of the layout (C6): heads, layers, experts, rows.

    Raises:
        UserError: names the sizes that clash and, where there is one, a size that would fit.
    """
    check_trainable(model.family, model.config, config.layout)
    return f"{config.layout}: {config.layout.world_size} ranks, global batch {config.global_batch}"


def task_allows(config: RunConfig, model: Model) -> str:
    """Models of this task are built for these axes.

    Raises:
        UserError: they are not.
    """
    if check_task(config, model.family) == MASKED:
        check_encoder(config)
    return "the axes are ones that models of this task are built for"


def pipeline_is_fed(config: RunConfig, model: Model) -> str:
    """There are enough micro-batches, in a number that the schedule can order.

    Raises:
        UserError: names a number that would do.
    """
    layout = config.layout
    if layout.pp == 1:
        return "no pipeline"
    check_sizes(config.parallel.schedule_for(layout), layout, config.train.accumulation)
    return f"{config.parallel.schedule_for(layout)}: {config.train.accumulation} micro-batches, {layout.pp} stages"


def parameters_can_be_divided(config: RunConfig, model: Model) -> str:
    """Nothing stands against ZeRO stage 3 where it is asked for.

    Raises:
        UserError: says what does.
    """
    if config.layout.zero < 3:
        return f"zero={config.layout.zero}"
    if config.train.jit:
        raise UserError("layout: zero=3 changes the size of parameters, which needs train.jit: false; or take zero=2")
    if config.parallel.recompute != "none":
        raise UserError(
            f"parallel.recompute is {config.parallel.recompute!r}, but with zero=3 each layer is computed again "
            "anyway; set it to none"
        )
    return "zero=3: each layer is computed again"


LAYOUT_QUESTIONS: dict[str, Callable[[RunConfig, Model], str]] = {
    "layout": sizes_divide,
    "axes": task_allows,
    "pipeline": pipeline_is_fed,
    "optimizer sharding": parameters_can_be_divided,
}


def check_layout(config: RunConfig, model: Model) -> None:
    """Asks every question about the layout.

    Raises:
        UserError: the first thing that does not fit.
    """
    for question in LAYOUT_QUESTIONS.values():
        question(config, model)
