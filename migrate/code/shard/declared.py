"""`base_model_tp_plan` and `_tp_plan` of a repository's classes, read without importing them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from migrate.code.analysis import Analysis
from migrate.code.shard.plan_file import Entry

NAMES = ("base_model_tp_plan", "_tp_plan")
STYLES = {
    "colwise": "column",
    "rowwise": "row",
    "colwise_rep": "vocabulary",
    "colwise_gather_output": "vocabulary",
    "embedding_rowwise": "vocabulary",
    "replicate": "replicated",
    "replicated": "replicated",
}
"""transformers' styles that the four classes know."""


@dataclass(frozen=True)
class Declared:
    """What the classes of a repository declare."""

    entries: list[Entry]
    unknown: list[tuple[str, str]]
    """(place, what) that is declared in words that are not known."""


def declared_plan(analysis: Analysis) -> Declared:
    """All entries of the class attributes `NAMES` whose keys and values are written there."""
    found = Declared([], [])
    for info in analysis.symbols.classes.values():
        file = next((f for f in analysis.files.values() if f.resolver is info.resolver), None)
        if file is None or not isinstance(info.node.body, cst.IndentedBlock):
            continue
        for statement in info.node.body.body:
            for small in statement.body if isinstance(statement, cst.SimpleStatementLine) else ():
                name, value = _assigned(small)
                if name in NAMES and isinstance(value, cst.Dict):
                    for element in value.elements:
                        where = f"{file.source.path}:{file.line(element)}"
                        _take(found, element, where)
    return found


def _assigned(node: cst.CSTNode) -> tuple[str, cst.BaseExpression | None]:
    if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Name):
        return node.targets[0].target.value, node.value
    if isinstance(node, cst.AnnAssign) and isinstance(node.target, cst.Name):
        return node.target.value, node.value
    return "", None


def _take(found: Declared, element: cst.BaseDictElement, where: str) -> None:
    key = element.key if isinstance(element, cst.DictElement) else None
    if not isinstance(key, cst.SimpleString) or not isinstance(element.value, cst.SimpleString):
        found.unknown.append((where, "an entry that is computed"))
        return
    style, path = str(element.value.evaluated_value), str(key.evaluated_value)
    if style not in STYLES:
        found.unknown.append((where, f"{path}: {style!r}"))
        return
    found.entries.append(Entry(path.removesuffix(".weight"), None, STYLES[style], where))
