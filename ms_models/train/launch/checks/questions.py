"""What is asked about a model and its data, whatever kind of model it is."""

from __future__ import annotations

from collections.abc import Callable

from ms_models.data.records import PreparedData
from ms_models.train.config import RunConfig
from ms_models.train.launch.checks import adapter
from ms_models.train.launch.checks.adapter import AdaptedSource
from ms_models.train.launch.checks.data import QUESTIONS, check_length
from ms_models.train.launch.checks.metrics import check_metrics
from ms_models.train.launch.checks.model import LAYOUT_QUESTIONS, Model, check_model_task, read_model
from ms_models.train.launch.checks.weights import check_weights

OF_ANY_MODEL = ("amount of data", "documents in rows", "epochs of sources", "validation data")
"""Questions about data that need no family."""

Source = Model | AdaptedSource


def read_source(config: RunConfig) -> Source:
    """What the run starts from.

    Raises:
        UserError: it cannot be read.
    """
    return read_model(config) if config.model.adapter is None else adapter.read_adapter(config)


def model_questions(config: RunConfig, source: Source) -> dict[str, Callable[[], str]]:
    """About the model; each raises a UserError where the answer is no."""
    metrics = {"metrics": lambda: check_metrics(config)}
    if isinstance(source, AdaptedSource):
        return adapter.questions(config, source) | metrics
    return {
        "task": lambda: check_model_task(config, source),
        **{name: lambda ask=ask: ask(config, source) for name, ask in LAYOUT_QUESTIONS.items()},
        "weights": lambda: check_weights(config, source),
        **metrics,
    }


def check_row_length(config: RunConfig, source: Source, seq_length: int) -> None:
    """Refuses sequences that the model has no positions for, or that ranks cannot share.

    Raises:
        UserError: says which.
    """
    if isinstance(source, Model):
        check_length(seq_length, source)
        config.parallel.check(source.family, source.config, config.layout, seq_length)


def data_questions(config: RunConfig, source: Source, data: PreparedData) -> dict[str, Callable[[], str]]:
    """About the data; each raises a UserError where the answer is no."""
    names = OF_ANY_MODEL if isinstance(source, AdaptedSource) else tuple(QUESTIONS)
    return {name: lambda name=name: QUESTIONS[name](config, source, data) for name in names}  # type: ignore[misc,arg-type]
