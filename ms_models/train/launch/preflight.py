"""What a start checks before it starts a process; `checks` has a file for each subject. Imports no MindSpore.

A start stops at the first thing that does not fit. `dry_run.judge` asks the same questions and lists all of them.
"""

from __future__ import annotations

from ms_models.train.config import RunConfig
from ms_models.train.launch.checks.data import check_data, check_length
from ms_models.train.launch.checks.model import Model, check_layout, check_model_task, read_model
from ms_models.train.launch.checks.output import check_output
from ms_models.train.launch.checks.weights import check_weights

__all__ = ["Model", "check_data", "check_length", "check_model", "check_output"]


def check_model(config: RunConfig) -> Model:
    """The model directory exists, fits task and layout, and holds every tensor.

    Raises:
        UserError: says what does not fit.
    """
    model = read_model(config)
    check_model_task(config, model)
    check_layout(config, model)
    check_weights(config, model)
    return model
