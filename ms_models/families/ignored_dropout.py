"""Dropout rates of `config.json` that are read and not applied, with a warning."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError

logger = logging.getLogger(__name__)


def warn_of_dropout(raw: Mapping[str, Any], rates: Mapping[str, float]) -> None:
    """Says once which dropout rates of a model are left out.

    Checkpoints of GPT-2's time carry rates of 0.1 from their pretraining. Refusing them would refuse the family: what
    these models compute outside training has no dropout, and pretraining that sees each token once does without it.

    Args:
        raw: `config.json`.
        rates: fields that are rates, each with what transformers takes where the field is left out.

    Raises:
        UserError: a rate is no number from 0 to below 1.
    """
    found = {field: raw.get(field, default) for field, default in rates.items()}
    for field, rate in found.items():
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate < 1:
            raise UserError(f"config.json: {field} must be a rate from 0 to below 1, found {rate!r}")
    if left_out := ", ".join(f"{field}={rate}" for field, rate in found.items() if rate):
        logger.warning("config.json: dropout is not applied, in training neither (%s); set it to 0 to agree", left_out)
