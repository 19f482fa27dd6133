"""The model of a run: its directory is one of a known family, and its sizes fit the layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
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


def check_layout(config: RunConfig, model: Model) -> str:
    """The sizes of the model fit the layout (C6): heads, layers, experts, micro-batches.

    Raises:
        UserError: names the sizes that clash and, where there is one, a size that would fit.
    """
    layout = config.layout
    check_trainable(model.family, model.config, layout)
    if check_task(config, model.family) == MASKED:
        check_encoder(config)
    if layout.pp > 1:
        check_sizes(config.parallel.schedule_for(layout), layout, config.train.accumulation)
    if layout.zero == 3:
        if config.train.jit:
            raise UserError(
                "layout: zero=3 changes the size of parameters, which needs train.jit: false; or take zero=2"
            )
        if config.parallel.recompute != "none":
            raise UserError(
                f"parallel.recompute is {config.parallel.recompute!r}, but with zero=3 each layer is computed again "
                "anyway; set it to none"
            )
    return f"{layout}: {layout.world_size} ranks, global batch {config.global_batch}"
