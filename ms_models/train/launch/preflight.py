"""What a start checks before it starts a process; `checks` has a file for each subject. Imports no MindSpore.

A start stops at the first thing that does not fit. `dry_run.judge` asks the same questions and lists all of them.
"""

from __future__ import annotations

from ms_models.train.config import RunConfig
from ms_models.train.launch.checks.data import check_data, check_length
from ms_models.train.launch.checks.model import Model
from ms_models.train.launch.checks.output import check_output
from ms_models.train.launch.checks.questions import Source, model_questions, read_source

__all__ = ["Model", "check_data", "check_length", "check_model", "check_output"]


def check_model(config: RunConfig) -> Source:
    """The model is there, fits task and layout, and holds every tensor.

    Raises:
        UserError: says what does not fit.
    """
    model = read_source(config)
    for question in model_questions(config, model).values():
        question()
    return model
