"""Everything about a run that can be checked before a process is started. Imports no MindSpore."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.families import Family, family_for_config
from mappings.formats.hf_directory import read_config, read_tensors
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest, hash_file
from mappings.holdings import check_trainable
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.tokenization import FILE as TOKENIZER
from ms_models.parallel.schedules.orders import check_sizes
from ms_models.train.checkpoints.run_directory import complete_checkpoints
from ms_models.train.config import RunConfig
from ms_models.train.task import MASKED, check_encoder, check_task, longest_sequence

BYTES_PER_PARAMETER = 12
"""Of a checkpoint: fp32 weight and two moments."""


@dataclass(frozen=True)
class Model:
    """The model a run starts from."""

    directory: Path
    config: Mapping[str, Any]
    family: Family

    @property
    def parameters(self) -> int:
        """Number of parameters."""
        return sum(math.prod(parameter.shape) for parameter in self.family.parameters(self.config))


def check_model(config: RunConfig) -> Model:
    """The model directory exists, holds weights, and fits the layout.

    Raises:
        UserError: says what does not fit.
    """
    assert config.model.path is not None
    directory = Path(config.model.path)
    raw = read_config(directory)
    family = family_for_config(raw, str(directory / "config.json"))
    task = check_task(config, family)
    check_trainable(family, raw, config.layout)
    if task == MASKED:
        check_encoder(config)
    if config.layout.pp > 1:
        check_sizes(config.parallel.schedule_for(config.layout), config.layout, config.train.accumulation)
    if config.layout.zero == 3:
        if config.train.jit:
            raise UserError(
                "layout: zero=3 changes the size of parameters, which needs train.jit: false; or take zero=2"
            )
        if config.parallel.recompute != "none":
            raise UserError(
                f"parallel.recompute is {config.parallel.recompute!r}, but with zero=3 each layer is computed again "
                "anyway; set it to none"
            )
    if (directory / MANIFEST).is_file():
        manifest = Manifest.read(directory)
        for axis in ("tp", "pp", "vpp", "ep"):
            have, want = getattr(manifest.layout, axis), getattr(config.layout, axis)
            if have != want:
                raise UserError(
                    f"{directory}: sharded for {axis}={have}, the run has {axis}={want}; "
                    "start from the Hugging Face directory, or convert it for this layout"
                )
    else:
        read_tensors(directory)
    return Model(directory, raw, family)


def check_data(config: RunConfig, model: Model, data: PreparedData) -> list[str]:
    """The data fits the model and is enough for a batch.

    Returns:
        Lines that say how much data there is for the steps.

    Raises:
        UserError: sequence length, vocabulary, tokenizer or number of sequences do not fit.
    """
    where, train = config.data_directory, data.splits[TRAIN]
    if config.data.seq_length is not None and config.data.seq_length != data.seq_length:
        raise UserError(
            f"data.seq_length is {config.data.seq_length}, but {where} holds sequences of {data.seq_length}"
        )
    check_length(data.seq_length, model)
    config.parallel.check(model.family, model.config, config.layout, data.seq_length)
    vocabulary = model.family.dims(model.config)["vocab"]
    if data.tokenizer["largest_id"] >= vocabulary:
        raise UserError(
            f"{where}: holds token id {data.tokenizer['largest_id']}, the model's vocabulary has {vocabulary}; "
            "tokenize with the model's own tokenizer"
        )
    own = model.directory / TOKENIZER
    if own.is_file() and hash_file(own).sha256 != data.tokenizer["sha256"]:
        raise UserError(f"{where}: was tokenized with another {TOKENIZER} than {own}; prepare the data with the latter")
    if train.rows < config.global_batch:
        raise UserError(f"{where}: {train.rows} sequences do not fill a global batch of {config.global_batch}")
    if config.train.eval_every and not data.splits[VALIDATION].rows:
        raise UserError(
            f"{where}: train.eval_every is set, but there is no validation split; prepare the data with one"
        )
    needed = config.train.steps * config.global_batch
    return [f"data: {train.rows:,} sequences of {data.seq_length}; the run reads {needed / train.rows:.2f} epochs"]


def check_length(seq_length: int, model: Model) -> None:
    """Refuses sequences longer than the positions the model knows.

    Raises:
        UserError: they are longer.
    """
    limit = longest_sequence(model.family, model.config)
    if limit is not None and seq_length > limit:
        raise UserError(
            f"sequences of {seq_length} tokens are longer than the {limit} that the model's max_position_embeddings of "
            f"{model.config['max_position_embeddings']} allows"
        )


def check_output(config: RunConfig, model: Model) -> None:
    """The run directory can be written, holds no other run, and its disk has room for the checkpoints.

    Raises:
        UserError: says which of these fails.
    """
    run = Path(config.output.directory)
    parent = next(path for path in (run, *run.absolute().parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"output.directory {run}: cannot be written")
    if (saved := complete_checkpoints(run)) and not config.checkpoint.is_resumed:
        raise UserError(
            f"{run}: holds a run with checkpoints up to step {saved[-1][0]}; use --resume or another directory"
        )
    count = max(1, config.checkpoint.count(config.train.steps) - len(saved))
    need = BYTES_PER_PARAMETER * model.parameters * count
    free = shutil.disk_usage(parent).free
    if free < need:
        raise UserError(
            f"output.directory {run}: {need / 1e9:.2f} GB are needed for checkpoints ({count}, with the one that is "
            f"being written), {free / 1e9:.2f} GB are free; lower checkpoint.keep or choose another disk"
        )
