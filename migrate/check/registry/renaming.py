"""Gives a model type another name: in the repository's source and in configurations, as small edits of text."""

from __future__ import annotations

import ast
import difflib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from migrate.check.registry.source_scan import Scan

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Edit:
    """A file and its new text."""

    path: Path
    shown: str
    before: str
    after: str

    def diff(self) -> str:
        """The edit as a unified diff."""
        lines = (self.before.splitlines(keepends=True), self.after.splitlines(keepends=True))
        return "".join(difflib.unified_diff(*lines, f"a/{self.shown}", f"b/{self.shown}"))

    def write(self) -> None:
        """Replaces the file in one step."""
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_text(self.after, encoding="utf-8")
        os.chmod(temporary, self.path.stat().st_mode)
        temporary.replace(self.path)


def rename(repository: Path, old: str, new: str, models: Sequence[Path] = ()) -> list[Edit]:
    """The edits that give a model type another name.

    Texts on the lines where the name is given (class attributes, registrations) change; so do `model_type` of
    `config.json` files below the repository and in `models`. Other texts that equal the name are left alone.

    Args:
        repository: directory of source files.
        old: the model type.
        new: its new name.
        models: model directories outside of the repository.

    Raises:
        UserError: nothing in the repository gives the name, or the new one is no name or given already.
    """
    if not NAME.fullmatch(new):
        raise UserError(f"--rename {old}={new}: {new!r} is no name for a model type")
    scan = Scan(repository)
    if any(found.name == new for found in scan.sightings):
        raise UserError(f"--rename {old}={new}: the repository gives {new!r} already")
    places = {(found.file, found.line) for found in scan.sightings if found.name == old}
    if not places:
        raise UserError(f"--rename {old}={new}: nothing in {repository} gives {old!r}")
    edits = []
    for file in sorted({file for file, _ in places}):
        path = repository / file
        text = path.read_text(encoding="utf-8")
        lines = {line for name, line in places if name == file}
        edits.append(Edit(path, file, text, _replace(text, lines, old, new)))
    configs = sorted(path for path in repository.rglob("config.json") if path.is_file())
    for path in [*configs, *(model / "config.json" for model in models)]:
        edit = _config(path, repository, old, new)
        edits += [edit] if edit is not None else []
    return [edit for edit in edits if edit.before != edit.after]


def _replace(text: str, lines: set[int], old: str, new: str) -> str:
    """Replaces the text constants that equal `old` in statements that begin on some of the lines."""
    raw = text.splitlines(keepends=True)
    spots = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.Call) and node.lineno in lines:
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and part.value == old and part.lineno == part.end_lineno:
                    spots.append((part.lineno, part.col_offset, part.end_col_offset or 0))
        elif isinstance(node, ast.Constant) and node.value == old and node.lineno in lines:
            spots.append((node.lineno, node.col_offset, node.end_col_offset or 0))
    for line, start, end in sorted(set(spots), reverse=True):
        line_bytes = raw[line - 1].encode()  # offsets of ast count bytes
        quoted = line_bytes[start:end].decode().replace(old, new)
        raw[line - 1] = (line_bytes[:start] + quoted.encode() + line_bytes[end:]).decode()
    return "".join(raw)


def _config(path: Path, repository: Path, old: str, new: str) -> Edit | None:
    try:
        text = path.read_text(encoding="utf-8")
        body = json.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from error
    if not isinstance(body, dict) or body.get("model_type") != old:
        return None
    after, count = re.subn(rf'("model_type"\s*:\s*)"{re.escape(old)}"', rf'\g<1>"{new}"', text)
    if not count or json.loads(after) != {**body, "model_type": new}:
        raise UserError(f"{path}: model_type cannot be changed without touching other fields; change it by hand")
    shown = path.relative_to(repository).as_posix() if path.is_relative_to(repository) else str(path)
    return Edit(path, shown, text, after)
