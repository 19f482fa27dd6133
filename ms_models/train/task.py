"""What a model directory is trained to predict. Imports no MindSpore."""

from __future__ import annotations

from mappings.errors import UserError
from mappings.families import Family
from ms_models.train.config import MaskingConfig, RunConfig

CAUSAL, MASKED = "causal", "masked"


def task_of(family: Family) -> str:
    """What a family is for: `masked` for encoders, else `causal`."""
    return MASKED if any(name.endswith("ForMaskedLM") for name in family.architectures) else CAUSAL


def check_task(config: RunConfig, family: Family) -> str:
    """The task of a run: the configured one where the family can do it, by default what the family is for.

    Raises:
        UserError: another task than the family's, or settings of masking that a decoder has no use for.
    """
    able = task_of(family)
    if config.model.task not in (None, able):
        raise UserError(
            f"model.task is {config.model.task!r}, but models of family {family.name} are trained for {able!r}; "
            "leave model.task out"
        )
    if able == CAUSAL and config.masking != MaskingConfig():
        raise UserError(f"config: section 'masking' is for masked language models, {family.name} predicts next tokens")
    return able


def check_encoder(config: RunConfig) -> None:
    """Refuses what encoders are not built for; the ranks would, after their start (`BertSharding`).

    Raises:
        UserError: names the setting.
    """
    layout = config.layout
    if layout.pp > 1 or layout.cp > 1:
        raise UserError(f"layout: {layout}: encoders are cut over tp and replicated over dp, nothing else")
    if layout.zero == 3:
        raise UserError("layout: zero=3 is not supported for encoders; take zero=2")
    if config.parallel.recompute != "none":
        raise UserError(f"parallel.recompute is {config.parallel.recompute!r}; encoders know 'none' only")
    if config.metrics.prompts or config.metrics.prefixes:
        raise UserError("metrics.prompts and metrics.prefixes ask for texts that go on, which encoders do not write")
