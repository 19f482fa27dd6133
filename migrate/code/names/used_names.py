"""Which names a converted file uses, and where names of MindSpore stand in it in full."""

from __future__ import annotations

import libcst as cst

from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import children

_EMITTED = ("mindspore", "ms_compat")


def plain_names(tree: cst.CSTNode) -> set[str]:
    """Every plain name: variables, parameters, definitions; not attributes, keywords of calls, or import statements."""
    found: set[str] = set()
    pending = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, cst.Name):
            found.add(node.value)
        elif isinstance(node, cst.Attribute | cst.Arg):
            pending.append(node.value)
        elif isinstance(node, cst.Annotation) and isinstance(node.annotation, cst.SimpleString):
            # A quoted annotation uses its names as well.
            text = str(node.annotation.evaluated_value)
            found.update(part for part in text.replace("[", ".").replace("]", ".").split(".") if part.isidentifier())
        elif not isinstance(node, cst.Import | cst.ImportFrom):
            pending += children(node)
    return found


def emitted_names(tree: cst.CSTNode) -> tuple[set[str], set[cst.CSTNode]]:
    """Full dotted names of MindSpore and of the helpers, and the simple statements that hold one."""
    names: set[str] = set()
    lines: set[cst.CSTNode] = set()
    pending: list[tuple[cst.CSTNode, cst.CSTNode | None]] = [(tree, None)]
    while pending:
        node, line = pending.pop()
        if isinstance(node, cst.Import | cst.ImportFrom):
            continue
        if isinstance(node, cst.SimpleStatementLine):
            line = node
        elif isinstance(node, cst.Attribute):
            name = dotted(node)
            if name is not None and name.split(".", 1)[0] in _EMITTED:
                names.add(name)
                if line is not None:
                    lines.add(line)
                continue
        pending += [(child, line) for child in children(node)]
    return names, lines
