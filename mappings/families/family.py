"""A model family read from its file: the parameters a `config.json` implies, their shapes, and how they may be cut."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.expressions import evaluate

CLASSES = ("embedding", "attention", "ffn", "lm_head", "norm")


@dataclass(frozen=True)
class Parameter:
    """One parameter of a concrete model, under its Hugging Face name."""

    name: str
    shape: tuple[int, ...]
    layer_class: str
    """What the layer is to a parallel plan: one of `CLASSES`."""
    cut: int | None
    """Axis that tensor parallelism divides; None is a replicated parameter."""
    unit: int
    """Length along `cut` that must stay whole (a head)."""
    padded: bool
    """Whether the rows along `cut` may be padded with zeros (vocabulary)."""
    layer: int | None
    """Index of the decoder layer it belongs to."""


@dataclass(frozen=True)
class Family:
    """Facts about one architecture, as written in `mappings/families/<family>.yaml`."""

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    dimensions: Mapping[str, Mapping[str, Any]]
    flags: Mapping[str, Mapping[str, Any]]
    rows: tuple[Mapping[str, Any], ...]
    ignored: tuple[str, ...]
    tied: Mapping[str, Mapping[str, str]]

    def dims(self, config: Mapping[str, Any]) -> dict[str, int]:
        """Dimension symbols of a model, from its `config.json`.

        Raises:
            UserError: a field is missing, null without a default, or no positive whole number.
        """
        values: dict[str, int] = {}
        for symbol, source in self.dimensions.items():
            value = config.get(source["field"])
            if value is None:
                if "default" not in source:
                    raise UserError(f"config.json: {source['field']!r} is missing, the {self.name} family needs it")
                value = evaluate(source["default"], values)
            if type(value) is not int or value < 1:
                raise UserError(f"config.json: {source['field']} must be a positive whole number, found {value!r}")
            values[symbol] = value
        return values

    def flag(self, config: Mapping[str, Any], name: str) -> bool:
        """A boolean of `config.json` that parameters depend on.

        Raises:
            UserError: the field holds something that is no boolean.
        """
        source = self.flags[name]
        value = config.get(source["field"])
        if value is None:
            value = source["default"]
        if not isinstance(value, bool):
            raise UserError(f"config.json: {source['field']} must be true or false, found {value!r}")
        return value

    def parameters(self, config: Mapping[str, Any]) -> list[Parameter]:
        """Every parameter of the model, in file order with layers ascending."""
        dims = self.dims(config)
        result: list[Parameter] = []
        per_layer: list[Mapping[str, Any]] = []
        for row in self.rows:
            if not self._present(row, config):
                continue
            if "{layer}" in row["name"]:
                per_layer.append(row)
                continue
            result += self._layers(per_layer, dims)
            per_layer = []
            result.append(self._parameter(row, dims, None))
        return result + self._layers(per_layer, dims)

    def is_ignored(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint may hold `name` although it is no parameter of its own (old buffers, tied copies)."""
        if any(pattern_matches(pattern, name) for pattern in self.ignored):
            return True
        return self.tied_to(name, config) is not None

    def tied_to(self, name: str, config: Mapping[str, Any]) -> str | None:
        """The parameter that `name` is another name of, or None."""
        tie = self.tied.get(name)
        return tie["same_as"] if tie is not None and self.flag(config, tie["when"]) else None

    def _present(self, row: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
        if "when" in row and not self.flag(config, row["when"]):
            return False
        return not ("unless" in row and self.flag(config, row["unless"]))

    def _layers(self, rows: list[Mapping[str, Any]], dims: Mapping[str, int]) -> list[Parameter]:
        if not rows:
            return []
        return [self._parameter(row, dims, layer) for layer in range(dims["layers"]) for row in rows]

    def _parameter(self, row: Mapping[str, Any], dims: Mapping[str, int], layer: int | None) -> Parameter:
        return Parameter(
            name=row["name"] if layer is None else row["name"].replace("{layer}", str(layer)),
            shape=tuple(evaluate(size, dims) for size in row["shape"]),
            layer_class=row["class"],
            cut=row.get("cut"),
            unit=evaluate(row.get("unit", 1), dims),
            padded=row.get("padded", False),
            layer=layer,
        )


def pattern_matches(pattern: str, name: str) -> bool:
    """Whether a whole name fits a pattern in which `{layer}` stands for a decimal index without leading zeros."""
    parts = [re.escape(part) for part in re.split(r"\{layer\}", pattern)]
    return re.fullmatch("(?:0|[1-9][0-9]*)".join(parts), name) is not None
