"""What may be the matter with a module whose gradient alone is wrong: places in the candidate's source."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mappings.formats.hf_directory import read_json
from migrate.parity.backward.naming import CELLS, LOSS
from migrate.parity.explain.descent import Place
from migrate.parity.explain.tree import ROOT
from migrate.parity.modules import CHOICE, LOGITS

MOST = 8
"""Suspects that are listed."""


def suspects_of_cells(out: Path) -> Callable[[Place], Sequence[str]]:
    """What may be the matter at a place: stop_gradient and hand-written backward passes of the cells there.

    Read from the source, not run.

    Args:
        out: of the backward passes; the candidate's process wrote there which classes its modules are made of.
    """

    def listed(place: Place) -> Sequence[str]:
        path = out / "candidate" / CELLS
        classes: Mapping[str, Sequence[Any]] = read_json(path) if path.is_file() else {}
        module = place.module.removesuffix(CHOICE)
        known = classes.get(ROOT if module in (LOGITS, LOSS) else module, ())
        return list(dict.fromkeys(text for file, name in known for text in _of_class(Path(file), str(name))))[:MOST]

    return listed


def _of_class(file: Path, dotted: str) -> Iterator[str]:
    """Lines of one class, and of functions of its file that it calls."""
    where, _, name = dotted.rpartition(".")
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        called = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)} & functions.keys()
        parts: list[ast.ClassDef | ast.FunctionDef] = [node, *(functions[one] for one in sorted(called))]
        for part in parts:
            yield from _lines(part, where)


def _lines(part: ast.ClassDef | ast.FunctionDef, where: str) -> Iterator[str]:
    for node in ast.walk(part):
        if isinstance(node, ast.FunctionDef) and node.name == "bprop":
            yield f"{where}:{node.lineno} {part.name} has a backward pass of its own"
        elif "stop_gradient" in (getattr(node, "attr", None), getattr(node, "id", None)):
            yield f"{where}:{getattr(node, 'lineno', part.lineno)} {part.name} has a stop_gradient"
