"""Warnings about runs that would start but are likely to disappoint, by stable codes (docs/dry-run.md).

| code | about |
|---|---|
| R101 | a pipeline with few micro-batches idles |
| R102 | tensor parallelism that leaves a node (`NodePlace.warnings`) |
| R103 | warmup outside 1-5 % of the steps |
| R104 | a run that is never evaluated, or seldom |
| R105 | no checkpoint before the end |
| R106 | data that is read many times |
| R107 | gradients that are not clipped |
| R108 | steps that are not compiled |
| R109 | replicas that all keep the whole optimizer state |
| R110 | threads that share cores |
| R111 | an encoder whose rows do not begin and end with its special tokens |
| R112 | a validation split outside 1-5 % of the data |
| R113 | a format that this machine does not compute in |
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from mappings.parallel_options import MICRO_BATCHES_PER_STAGE
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.train.config import RunConfig
from ms_models.train.launch.checks.data import epochs
from ms_models.train.launch.checks.devices import has_npu
from ms_models.train.launch.checks.model import Model
from ms_models.train.launch.checks.output import Sized
from ms_models.train.task import MASKED, task_of

Warning_ = tuple[str, str]
"""Code and text."""
WARMUP = (0.01, 0.05)
EVALUATION_STEPS = 1000
"""Longest usual distance between evaluations, in steps; the usual range is 500 to 1000."""
EPOCHS = 4
"""Repetitions up to which repeated text teaches nearly as much as new text (Muennighoff et al. 2023)."""
VALIDATION_SHARE = (0.01, 0.05)
MANY_TOKENS = 1_000_000
"""Tokens below which a share says little."""
LARGE = 1_000_000_000
"""Parameters from which whole optimizer states on every replica are a waste worth a word."""
SHORT = 100
"""Steps below which a run is a trial, of which advice about long runs says nothing."""


def warnings_of(config: RunConfig, model: Sized | None, data: PreparedData | None) -> Iterator[Warning_]:
    """Everything worth a word about a configuration.

    Args:
        config: of the run.
        model: where it could be read.
        data: where it is prepared.
    """
    yield from _layout(config, model)
    yield from _schedule(config)
    if data is not None:
        yield from _data(config, model, data)
    if config.precision.compute == "bf16" and not has_npu():
        yield (
            "R113",
            "precision.compute is 'bf16', which MindSpore computes in on NPUs only; this machine has none, and the run "
            "would end at its start here: set fp16 or fp32",
        )
    threads = config.train.threads
    cores, ranks = os.cpu_count() or 1, config.layout.world_size // config.launch.nodes
    if threads is not None and threads * ranks > cores:
        yield "R110", f"{ranks} ranks of {threads} threads share {cores} cores; lower train.threads"


def _data(config: RunConfig, model: Sized | None, data: PreparedData) -> Iterator[Warning_]:
    if (passes := epochs(config, data)) > EPOCHS:
        yield "R106", f"the run reads its data {passes:.1f} times; beyond {EPOCHS} times repetition teaches little"
    if isinstance(model, Model) and task_of(model.family) == MASKED and data.packing != "pad":
        yield (
            "R111",
            f"{config.data_directory} was packed with packing={data.packing}, without the tokenizer's special tokens; "
            "encoders read [CLS] ... [SEP]: prepare with packing pad",
        )
    held_out, trained = data.splits[VALIDATION].tokens, data.splits[TRAIN].tokens
    share = held_out / max(1, held_out + trained)
    if config.train.eval_every and trained >= MANY_TOKENS and not VALIDATION_SHARE[0] <= share <= VALIDATION_SHARE[1]:
        yield "R112", f"{100 * share:.2f} % of the tokens are held out for validation; 1-5 % are usual"


def _layout(config: RunConfig, model: Sized | None) -> Iterator[Warning_]:
    layout = config.layout
    micro_batches, least = config.train.accumulation, MICRO_BATCHES_PER_STAGE * layout.pp
    if layout.pp > 1 and micro_batches < least:
        yield (
            "R101",
            f"{micro_batches} micro-batches for pp={layout.pp} stages leave the pipeline idle; "
            f"{least} to {2 * least} (train.accumulation) keep it busy",
        )
    if model is not None and layout.dp > 1 and layout.zero == 0 and model.parameters >= LARGE:
        yield "R109", f"each of dp={layout.dp} replicas keeps all optimizer states; layout.zero=1 divides them"


def _schedule(config: RunConfig) -> Iterator[Warning_]:
    train, steps = config.train, config.train.steps
    if not config.optimizer.clip_norm:
        yield "R107", "optimizer.clip_norm is 0: one bad batch can throw the weights far off; 1.0 is usual"
    if not train.jit and config.layout.zero < 3:
        yield "R108", "train.jit is false: steps are run operator by operator, several times slower"
    if steps < SHORT:
        return
    share = config.schedule.warmup_steps / steps
    if config.schedule.kind != "constant" and not WARMUP[0] <= share <= WARMUP[1]:
        low, high = (max(1, round(bound * steps)) for bound in WARMUP)
        yield (
            "R103",
            f"schedule.warmup_steps is {config.schedule.warmup_steps}, {100 * share:.1f} % of the steps; "
            f"{low} to {high} (1-5 %) are usual",
        )
    if not train.eval_every:
        yield "R104", "train.eval_every is 0: nobody will see whether the run learns or memorises; 500 to 1000 is usual"
    elif train.eval_every > EVALUATION_STEPS and train.eval_every < steps:
        yield "R104", f"train.eval_every is {train.eval_every}; 500 to {EVALUATION_STEPS} is usual"
    if not config.checkpoint.every:
        yield "R105", "checkpoint.every is 0: a failure loses the whole run"
