"""Whether this device and this model can compute in a number format."""

from __future__ import annotations

from typing import Any

import mindspore as ms

from mappings.errors import UserError
from ms_models.train.config import PrecisionConfig


def check_precision(precision: PrecisionConfig, model: Any) -> None:
    """Refuses a format that the model was not built for, or that the device does not compute in.

    Args:
        precision: of the run.
        model: of this rank; its place knows the format that it was built for.

    Raises:
        UserError: says which and what to set.
    """
    built = getattr(model.place, "compute", "fp32")
    if built != precision.compute:
        raise UserError(
            f"precision.compute is {precision.compute!r}, but this model computes in {built}; models of converted code "
            "compute as their own code says: set precision.compute to fp32"
        )
    check_device(precision)


def check_device(precision: PrecisionConfig) -> None:
    """Refuses a format that this device does not compute in.

    Raises:
        UserError: says which to set.
    """
    if precision.compute == "bf16" and ms.get_current_device()[0] == "CPU":
        raise UserError(
            "precision.compute is 'bf16', which MindSpore does not compute in on CPU; set fp16 or fp32 here"
        )
