"""What a `config.json` says to a family: sizes, switches and lists, checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.expressions import evaluate, holds

Source = Mapping[str, Any]


def field(config: Mapping[str, Any], source: Source) -> Any:
    """Value of the field a source names, of the first of its `also` fields that is set, or None.

    A dot leads into a nested configuration (`text_config.hidden_size`).
    """
    for path in (source["field"], *source.get("also", ())):
        value: Any = config
        for key in path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is not None:
            return value
    return None


def switch(config: Mapping[str, Any], source: Source) -> bool:
    """A boolean of the configuration.

    Raises:
        UserError: the field holds something that is no boolean.
    """
    value = field(config, source)
    if value is None:
        value = source["default"]
    if not isinstance(value, bool):
        raise UserError(f"config.json: {source['field']} must be true or false, found {value!r}")
    return value


def items(config: Mapping[str, Any], source: Source) -> list[Any]:
    """A list of the configuration.

    Raises:
        UserError: the field holds something that is no list of numbers or texts.
    """
    value = field(config, source)
    if value is None:
        value = source["default"]
    if not isinstance(value, list) or not all(type(item) in (int, str) for item in value):
        raise UserError(f"config.json: {source['field']} must be a list, found {value!r}")
    return value


def size(config: Mapping[str, Any], source: Source, symbols: Mapping[str, Any], family: str) -> int:
    """A dimension of the configuration.

    Raises:
        UserError: the field is missing or null without a default, or holds no whole number that is large enough.
    """
    if "is" in source:
        return evaluate(source["is"], symbols)
    value = field(config, source)
    if value is None:
        if "default" not in source:
            raise UserError(f"config.json: {source['field']!r} is missing, the {family} family needs it")
        absent = "absent" in source and source["field"] not in config
        try:
            value = evaluate(source["absent" if absent else "default"], symbols)
        except ZeroDivisionError:
            value = 0
    least = source.get("minimum", 1)
    if type(value) is not int or value < least:
        kind = "a positive whole number" if least == 1 else f"a whole number of at least {least}"
        raise UserError(f"config.json: {source['field']} must be {kind}, found {value!r}")
    return value


def symbols(
    config: Mapping[str, Any],
    dimensions: Mapping[str, Source],
    flags: Mapping[str, Source],
    lists: Mapping[str, Source],
    family: str,
) -> dict[str, Any]:
    """Values of all names that expressions of a family may use.

    Fields come first, in the order lists, switches, dimensions; then switches that are expressions.

    Raises:
        UserError: a field does not fit.
    """
    result: dict[str, Any] = {name: items(config, source) for name, source in lists.items()}
    result |= {name: switch(config, source) for name, source in flags.items() if "field" in source}
    for name, source in dimensions.items():
        result[name] = size(config, source, result, family)
    for name, source in flags.items():
        if "is" in source:
            result[name] = holds(source["is"], result)
    return result


def local_sizes(values: Mapping[str, Any], dimensions: Mapping[str, Source], tp: int) -> dict[str, int]:
    """Dimensions of what one tensor-parallel rank holds: `divided` ones are smaller, but at least 1."""
    result: dict[str, int] = {}
    for name, source in dimensions.items():
        if "is" in source:
            result[name] = evaluate(source["is"], {**values, **result})
        else:
            result[name] = max(1, values[name] // tp) if source.get("divided") else values[name]
    return result
