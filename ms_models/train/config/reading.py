"""Reads a configuration from YAML, changed by `section.field=value` strings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from ms_models.train.config.run import RunConfig
from ms_models.train.config.schema import apply_override, build


def load(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a configuration.

    Args:
        path: YAML file.
        overrides: `section.field=value` strings; the value is YAML.

    Raises:
        UserError: unreadable file, unknown key at any level, wrong type or value.
    """
    try:
        values = _parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())})") from error
    if not isinstance(values, dict):
        raise UserError(f"{path}: must be a mapping of sections")
    for override in overrides:
        apply_override(values, override, _parse_override)
    return build(RunConfig, values)


class _Loader(yaml.SafeLoader):
    """Refuses a key that occurs twice, which YAML libraries take the last of."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise UserError(f"config: key {key!r} occurs twice in the section of line {node.start_mark.line + 1}")
        return super().construct_mapping(node, deep)


def _parse(text: str) -> Any:
    return yaml.load(text, _Loader)


def _parse_override(text: str) -> Any:
    try:
        return _parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set: {text!r} is not valid YAML ({' '.join(str(error).split())})") from error
