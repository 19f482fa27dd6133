"""The data of a run fits its model and is enough; each question on its own, so that a dry run can ask all of them."""

from __future__ import annotations

from collections.abc import Callable

from mappings.errors import UserError
from mappings.families.positions import longest_sequence
from mappings.formats.manifest import hash_file
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.tokenization import FILE as TOKENIZER
from ms_models.train.config import RunConfig
from ms_models.train.launch.checks.model import Model
from ms_models.train.launch.checks.stream import documents_are_kept_apart, sources_suffice

Question = Callable[[RunConfig, Model, PreparedData], str]


def check_length(seq_length: int, model: Model) -> None:
    """Refuses sequences longer than the positions the model knows.

    Raises:
        UserError: they are longer.
    """
    known = longest_sequence(model.config)
    if known is not None and seq_length > known[0]:
        limit, field = known
        stated = model.config[field]
        raise UserError(
            f"sequences of {seq_length} tokens exceed the model's {field} of {stated}"
            + (f", of which {limit} can be used" if limit != stated else "")
        )


def length_fits(config: RunConfig, model: Model, data: PreparedData) -> str:
    """Sequences are as long as the configuration says, and no longer than the model's positions.

    Raises:
        UserError: they are not.
    """
    if config.data.seq_length is not None and config.data.seq_length != data.seq_length:
        raise UserError(
            f"data.seq_length is {config.data.seq_length}, but {config.data_directory} holds sequences of "
            f"{data.seq_length}"
        )
    check_length(data.seq_length, model)
    return f"sequences of {data.seq_length} tokens"


def length_divides(config: RunConfig, model: Model, data: PreparedData) -> str:
    """The ranks can share the sequences and the heads.

    Raises:
        UserError: names a size that would fit.
    """
    config.parallel.check(model.family, model.config, config.layout, data.seq_length)
    return "sequences and heads divide over the ranks"


def vocabulary_fits(config: RunConfig, model: Model, data: PreparedData) -> str:
    """Every token of the data is in the model's table.

    Raises:
        UserError: one is not.
    """
    vocabulary, largest = model.family.dims(model.config)["vocab"], data.tokenizer["largest_id"]
    if largest >= vocabulary:
        raise UserError(
            f"{config.data_directory}: holds token id {largest}, the model's vocabulary has {vocabulary}; "
            "tokenize with the model's own tokenizer"
        )
    return f"largest token id {largest} of {vocabulary}"


def tokenizer_is_the_models(config: RunConfig, model: Model, data: PreparedData) -> str:
    """The data was tokenized with the model's tokenizer, where it has one.

    Raises:
        UserError: with another.
    """
    own = model.directory / TOKENIZER
    if not own.is_file():
        return f"the model directory has no {TOKENIZER} to compare with"
    if hash_file(own).sha256 != data.tokenizer["sha256"]:
        raise UserError(
            f"{config.data_directory}: was tokenized with another {TOKENIZER} than {own}; prepare the data with the "
            "latter"
        )
    return f"tokenized with the model's {TOKENIZER}"


def rows_suffice(config: RunConfig, model: Model, data: PreparedData) -> str:
    """There is at least one global batch; says how often the run reads the data.

    Raises:
        UserError: there is not.
    """
    rows = data.splits[TRAIN].rows
    if rows < config.global_batch:
        raise UserError(
            f"{config.data_directory}: {rows} sequences do not fill a global batch of {config.global_batch}"
        )
    return f"{rows:,} sequences of {data.seq_length}; the run reads {epochs(config, data):.2f} epochs"


def validation_is_there(config: RunConfig, model: Model, data: PreparedData) -> str:
    """There are rows to evaluate on, where the run evaluates.

    Raises:
        UserError: there are none.
    """
    rows = data.splits[VALIDATION].rows
    if config.train.eval_every and not rows:
        raise UserError(
            f"{config.data_directory}: train.eval_every is set, but there is no validation split; prepare the data "
            "with one"
        )
    return f"{rows:,} validation sequences"


QUESTIONS: dict[str, Question] = {
    "sequence length": length_fits,
    "shared sequences": length_divides,
    "vocabulary": vocabulary_fits,
    "tokenizer": tokenizer_is_the_models,
    "amount of data": rows_suffice,
    "documents in rows": documents_are_kept_apart,
    "epochs of sources": sources_suffice,
    "validation data": validation_is_there,
}


def check_data(config: RunConfig, model: Model, data: PreparedData) -> list[str]:
    """Asks every question.

    Returns:
        Lines that say how much data there is for the steps.

    Raises:
        UserError: the first thing that does not fit.
    """
    answers = {name: question(config, model, data) for name, question in QUESTIONS.items()}
    lines = [f"data: {answers['amount of data']}"]
    return lines + ([f"data: {answers['epochs of sources']}"] if config.data.blend else [])


def epochs(config: RunConfig, data: PreparedData) -> float:
    """How often a run reads its training data."""
    return config.train.steps * config.global_batch / data.splits[TRAIN].rows
