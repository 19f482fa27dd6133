"""Masked language models in the runner: the model, and the tokens that are hidden from it."""

from __future__ import annotations

from pathlib import Path

from ms_models.auto_masked_lm import AutoModelForMaskedLM
from ms_models.parallel.mesh import Mesh
from ms_models.train.config import RunConfig
from ms_models.train.masking import masking_of
from ms_models.train.subject import Subject


def build_encoder(config: RunConfig, mesh: Mesh, resume: Path | None) -> Subject:
    """An encoder with its head of masked words, and the masking of its batches.

    Raises:
        UserError: the directory or its tokenizer does not fit.
    """
    assert config.model.path is not None
    recut = resume is not None and config.checkpoint.reshard
    model = AutoModelForMaskedLM.from_pretrained(
        resume or config.model.path, mesh, config.parallel, compute=config.precision.compute, recut=recut
    )
    model.set_train()
    return Subject(model, model.count_valid, masking_of(config, model.vocab))
