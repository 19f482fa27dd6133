"""Imports of torch, or of packages around torch, that stay because something was not converted.

A file has to be importable without torch:

    import torch                                  try:
                                                      import torch
                                                  except ImportError:
                                                      from ms_compat.unconverted import torch

Where torch is installed nothing changes; where it is not, the lines that need it fail instead of the whole file.
"""

from __future__ import annotations

import libcst as cst

from mappings.transformers import load_transformers
from migrate.code.context import FileContext
from migrate.code.names.resolve import absolute
from migrate.code.names.torch_packages import torch_package
from migrate.code.trees.dotted import dotted

UNCONVERTED = "unconverted"
"""The helper with the stand-ins."""


def guard_torch_imports(context: FileContext, tree: cst.Module) -> tuple[cst.Module, bool]:
    """The file with every such import at its top level guarded, and whether there was one."""
    body: list[cst.BaseStatement] = []
    guarded = False
    for statement in (part for line in tree.body for part in _separated(context, line)):
        names = _torch_names(context, statement)
        if names is None:
            body.append(statement)
            continue
        guarded = True
        assert isinstance(statement, cst.SimpleStatementLine)
        inside = statement.with_changes(leading_lines=[])
        fallback = cst.parse_statement(f"from ms_compat.{UNCONVERTED} import {', '.join(names)}")
        handler = cst.ExceptHandler(cst.IndentedBlock([fallback]), cst.Name("ImportError"))
        body.append(cst.Try(cst.IndentedBlock([inside]), [handler], leading_lines=statement.leading_lines))
    return tree.with_changes(body=body) if guarded else tree, guarded


def _needs_torch(context: FileContext, name: str) -> bool:
    if name.split(".")[0] == "torch":
        return True
    if context.analysis.project.find(name.split(".")[0], context.file.source):
        return False
    return torch_package(name) is not None or load_transformers().fails_without_torch(name)


def _separated(context: FileContext, statement: cst.BaseStatement) -> list[cst.BaseStatement]:
    """`import math, torch` as two lines, so that only what needs torch is guarded."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return [statement]
    parts: dict[bool, list[cst.BaseSmallStatement]] = {False: [], True: []}
    for small in statement.body:
        if not isinstance(small, cst.Import | cst.ImportFrom) or isinstance(small.names, cst.ImportStar):
            return [statement]
        needing = {alias: _needs_torch(context, name) for alias, name in _imported(context, small)}
        for needs in (False, True):
            aliases = [alias for alias in small.names if needing[alias] is needs]
            if aliases:
                aliases[-1] = aliases[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
                names = small.names if len(aliases) == len(small.names) else aliases
                parts[needs].append(small.with_changes(names=names, semicolon=cst.MaybeSentinel.DEFAULT))
    if not parts[False] or not parts[True]:
        return [statement]
    return [statement.with_changes(body=parts[False]), cst.SimpleStatementLine(parts[True])]


def _imported(context: FileContext, node: cst.Import | cst.ImportFrom) -> list[tuple[cst.ImportAlias, str]]:
    """What an import statement names, absolutely."""
    assert not isinstance(node.names, cst.ImportStar)
    base = ""
    if isinstance(node, cst.ImportFrom):
        base = "." * len(node.relative) + (dotted(node.module) or "")
        base = base if base.endswith(".") else f"{base}."
    project, source = context.analysis.project, context.file.source
    return [(alias, absolute(project, source, f"{base}{alias.evaluated_name}")) for alias in node.names]


def _torch_names(context: FileContext, statement: cst.BaseStatement) -> list[str] | None:
    """What a line that imports such names and does nothing else binds, as `name` or `name as other`."""
    if not isinstance(statement, cst.SimpleStatementLine):
        return None
    names: list[str] = []
    for small in statement.body:
        if isinstance(small, cst.Import):
            aliases = [(alias, alias.evaluated_name) for alias in small.names]
        elif isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar) and not small.relative:
            module = dotted(small.module) or ""
            if module == "__future__":
                return None
            aliases = [(alias, f"{module}.{alias.evaluated_name}") for alias in small.names]
        else:
            return None
        for alias, name in aliases:
            found = absolute(context.analysis.project, context.file.source, name)
            if not _needs_torch(context, found):
                return None
            local = alias.evaluated_alias or (name.split(".")[0] if isinstance(small, cst.Import) else None)
            last = name.rpartition(".")[2]
            names.append(
                last
                if local in (None, last)
                else local
                if isinstance(small, cst.Import) and not alias.asname
                else f"{last} as {local}"
            )
    return names
