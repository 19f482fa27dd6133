"""What the sections `metrics` and `profile` ask for can be had. Imports no MindSpore."""

from __future__ import annotations

from importlib.util import find_spec

from mappings.errors import UserError
from ms_models.train.config import RunConfig
from ms_models.train.texts import Texts


def check_metrics(config: RunConfig) -> str:
    """TensorBoard is installed, prompts can be tokenized, ranks that record exist, steps that are recorded come.

    Raises:
        UserError: one of these does not hold.
    """
    metrics, profile, world = config.metrics, config.profile, config.layout.world_size
    if metrics.tensorboard and find_spec("tensorboard") is None:
        raise UserError("metrics.tensorboard needs TensorBoard: pip install 'msmigrate[viz]', or leave it out")
    if metrics.prompts:
        texts = Texts.of(config)
        for text in metrics.prompts:
            texts.tokens(text)
    if profile.steps is not None:
        if profile.steps[1] > config.train.steps:
            raise UserError(f"profile.steps: {list(profile.steps)} goes beyond train.steps of {config.train.steps}")
        if beyond := [rank for rank in profile.ranks if not 0 <= rank < world]:
            raise UserError(f"profile.ranks: {beyond[0]} is no rank of the layout, which has 0 to {world - 1}")
    told = ["MFU of the stated peak" if metrics.peak_tflops else "no MFU, as metrics.peak_tflops is not stated"]
    told += ["event files for TensorBoard"] if metrics.tensorboard else []
    told += [f"profile of steps {profile.steps[0]} to {profile.steps[1]}"] if profile.steps else []
    return ", ".join(told)
