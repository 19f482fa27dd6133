"""The resolved configuration for the terminal: a line for each section."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ms_models.train.config.run import RunConfig


def config_lines(config: RunConfig) -> Iterator[str]:
    """Every field with its value, `section: field=value ...`."""
    for section, values in config.to_dict().items():
        yield f"{section}: {' '.join(_fields(values))}"


def _fields(values: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}={_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(_text(one) for one in value)}]"
    return "null" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
