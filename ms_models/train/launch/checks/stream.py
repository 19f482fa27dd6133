"""The stream of training rows: whether the model keeps documents apart, and how often each source is read."""

from __future__ import annotations

from typing import Any

from mappings.errors import UserError
from ms_models.data.blend import BlendedOrder
from ms_models.data.records import TRAIN, PreparedData
from ms_models.train.config import RunConfig
from ms_models.train.task import MASKED, task_of


def documents_are_kept_apart(config: RunConfig, model: Any, data: PreparedData) -> str:
    """Where the attention mask numbers the documents of a row, the model is one that understands it.

    Raises:
        UserError: it is an encoder or a model of somebody else, for which every number but 0 means a token.
    """
    if not data.isolates:
        return "documents of a row see each other" if data.packing == "concatenate" else "one document a row"
    kind = None
    if config.model.adapter is not None:
        kind = "models behind an adapter"
    elif task_of(model.family) == MASKED:
        kind = "encoders"
    if kind is not None:
        raise UserError(
            f"{config.data_directory}: was packed with packing={data.packing}, whose attention mask numbers documents; "
            f"{kind} do not read it so: prepare with packing concatenate or pad"
        )
    return "documents of a row do not see each other"


def sources_suffice(config: RunConfig, model: Any, data: PreparedData) -> str:
    """No source is read oftener than `data.max_epochs`.

    Raises:
        UserError: one is.
    """
    lines, limit = [], config.data.max_epochs
    for name, epochs in source_epochs(config, data).items():
        if limit is not None and epochs > limit:
            raise UserError(
                f"{name}: the run would read it {epochs:.2f} times, data.max_epochs is {limit:g}; "
                "give more data, fewer train.steps or a smaller weight"
            )
        lines.append(f"{name} {epochs:.2f}")
    return f"epochs: {', '.join(lines)}"


def source_epochs(config: RunConfig, data: PreparedData) -> dict[str, float]:
    """How often a run reads each source, by its directory."""
    blended = [source for source in data.sources if "weight" in source]
    needed = config.train.steps * config.global_batch
    if not blended:
        return {str(config.data_directory): needed / data.splits[TRAIN].rows}
    rows = [source["rows"][TRAIN] for source in blended]
    drawn = BlendedOrder(rows, [source["weight"] for source in blended], config.train.seed).drawn(needed)
    return {source["name"]: count / own for source, count, own in zip(blended, drawn, rows, strict=True)}
