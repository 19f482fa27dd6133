"""The plan file of `--shard`: which layers are cut, by dotted path, and how."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError

CLASSES = ("embedding", "attention", "ffn", "lm_head")
CUTS = ("column", "row", "vocabulary", "replicated")
FIELDS = ("path", "class", "cut")


@dataclass(frozen=True)
class Entry:
    """One line of a plan."""

    path: str
    """Dotted path of a layer from its model, or from any module above it; `*` is any one part."""
    layer_class: str | None
    """One of `CLASSES`; None where the plan does not say."""
    cut: str
    """One of `CUTS`."""
    where: str
    """File and line, for messages."""


def read_plan(path: Path) -> list[Entry]:
    """Read a plan.

    Raises:
        UserError: no such file, no YAML, or an entry that does not follow the schema; names file and line.
    """
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); --shard takes `auto` or a plan file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(node, yaml.MappingNode) or [key.value for key, _ in node.value] != ["layers"]:
        raise UserError(f"{path}: a plan is a mapping with the one key `layers`")
    rows = node.value[0][1]
    if not isinstance(rows, yaml.SequenceNode) or not rows.value:
        raise UserError(f"{path}:{rows.start_mark.line + 1}: `layers` must be a list of entries")
    entries = [_entry(path, row) for row in rows.value]
    seen: dict[str, str] = {}
    for entry in entries:
        if entry.path in seen:
            raise UserError(f"{entry.where}: path {entry.path!r} stands already at {seen[entry.path]}")
        seen[entry.path] = entry.where
    return entries


def _entry(path: Path, node: yaml.Node) -> Entry:
    where = f"{path}:{node.start_mark.line + 1}"
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{where}: an entry is a mapping of {', '.join(FIELDS)}")
    values: dict[str, Any] = {}
    for key, value in node.value:
        if key.value not in FIELDS:
            raise UserError(f"{where}: unknown key {key.value!r}{_near(key.value, FIELDS)}")
        if not isinstance(value, yaml.ScalarNode) or not value.value:
            raise UserError(f"{where}: {key.value} must be a text")
        values[key.value] = value.value
    for name in ("path", "cut", "class"):
        if name not in values:
            raise UserError(f"{where}: {name} is missing")
    for name, known in (("class", CLASSES), ("cut", CUTS)):
        if values[name] not in known:
            raise UserError(f"{where}: {name} {values[name]!r} is unknown{_near(values[name], known)}")
    if (values["cut"] == "vocabulary") != (values["class"] in ("embedding", "lm_head")) and values[
        "cut"
    ] != "replicated":
        raise UserError(f"{where}: embedding and lm_head are cut by vocabulary, attention and ffn by column or row")
    return Entry(values["path"].removesuffix(".weight").removesuffix(".bias"), values["class"], values["cut"], where)


def _near(word: str, known: tuple[str, ...]) -> str:
    near = get_close_matches(word, known, 1)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
