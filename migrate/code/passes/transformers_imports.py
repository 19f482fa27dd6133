"""Imports of `transformers` and `accelerate`: classes that need torch come from `ms_compat`, the rest stays.

`mappings/transformers.yaml` says which name is which. A statement with names of both kinds is split.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from mappings.transformers import PACKAGES, Entry, load_transformers
from migrate.code.context import FileContext
from migrate.code.passes.base import Pass
from migrate.code.passes.third_party import optional_imports
from migrate.code.trees.dotted import dotted

_WIDTH = 120


class TransformersImports(Pass):
    """Import statements, and names that are reached through `import transformers`."""

    rule = "C303"

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._table = load_transformers()
        self._optional: set[cst.CSTNode] = set()
        """Imports that the program does without, or that only a type checker reads."""
        self._targets: dict[cst.CSTNode, tuple[str, Entry | None]] = {}
        """Attributes that name something of the library, reached through a module: `transformers.PreTrainedModel`."""
        self._seen: set[cst.CSTNode] = set()
        find = context.analysis.project.find
        self._ours = {name for name in PACKAGES if find(name, context.file.source) is None}
        """Packages that are the library, and no folder of the repository."""

    def enter(self, node: cst.CSTNode) -> None:
        self._optional.update(optional_imports(node, self.context.resolver))
        if isinstance(node, cst.Attribute) and self._ours and node not in self._seen:
            self._look_through(node)

    # -- import statements
    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        """Reports, and rewrites what needs no second statement; `block` does the others."""
        if not self._is_from(original):
            return None
        assert isinstance(original, cst.ImportFrom)
        module = dotted(original.module) or ""
        if isinstance(original.names, cst.ImportStar):
            if original not in self._optional:
                self.context.report("M114", original, f"from {module} import *: import the names that are used")
            return None
        for alias in original.names:
            entry = self._table.find(module, alias.evaluated_name)
            if entry is None or entry.reason:
                self._refuse(original, f"{module}.{alias.evaluated_name}", entry)
            elif entry.helper:
                self.context.helpers.add(entry.helper)
        parts = self._parts(original)
        return original.with_changes(module=_module(next(iter(parts)))) if len(parts) == 1 else None

    def block(
        self, original: cst.IndentedBlock | cst.Module, updated: cst.IndentedBlock | cst.Module
    ) -> cst.IndentedBlock | cst.Module | None:
        body: list[cst.BaseStatement] = []
        for line in updated.body:
            split = isinstance(line, cst.SimpleStatementLine) and any(len(self._parts(s)) > 1 for s in line.body)
            body += self._split(line) if split else [line]  # type: ignore[arg-type]
        return updated.with_changes(body=body) if len(body) > len(updated.body) else None

    def _is_from(self, node: cst.CSTNode) -> bool:
        """Whether a statement is `from transformers... import ...`, and means the library."""
        if not isinstance(node, cst.ImportFrom) or node.relative:
            return False
        return (dotted(node.module) or "").split(".")[0] in self._ours

    def _parts(self, node: cst.CSTNode) -> dict[str, list[cst.ImportAlias]]:
        """What a statement imports, by the module that it shall come from; what stays comes first."""
        if not self._is_from(node):
            return {}
        assert isinstance(node, cst.ImportFrom)
        module = dotted(node.module) or ""
        parts: dict[str, list[cst.ImportAlias]] = {}
        for alias in () if isinstance(node.names, cst.ImportStar) else node.names:
            entry = self._table.find(module, alias.evaluated_name)
            source = module
            if entry is not None and entry.helper:
                source = "ms_compat" if entry.whole else f"ms_compat.{entry.helper}"
            parts.setdefault(source, []).append(alias)
        return dict(sorted(parts.items(), key=lambda part: part[0].startswith("ms_compat")))

    def _split(self, line: cst.SimpleStatementLine) -> list[cst.BaseStatement]:
        """One line per module; comments between the names go above."""
        lines: list[cst.SimpleStatementLine] = []
        for small in line.body:
            parts = self._parts(small)
            if len(parts) < 2:
                lines.append(cst.SimpleStatementLine([small.with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]))
                continue
            comments = [cst.EmptyLine(comment=comment) for comment in m.findall(small, m.Comment())]  # type: ignore[arg-type]
            for source, aliases in parts.items():
                lines.append(cst.SimpleStatementLine([_statement(source, aliases)], leading_lines=comments))
                comments = []
        first, last = lines[0], lines[-1]
        lines[0] = first.with_changes(leading_lines=[*line.leading_lines, *first.leading_lines])
        lines[-1] = (lines[0] if last is first else last).with_changes(trailing_whitespace=line.trailing_whitespace)
        return list(lines)

    # -- names reached through a module
    def _look_through(self, node: cst.Attribute) -> None:
        """Find the library's own name in a chain such as `transformers.modeling_utils.PreTrainedModel.config`."""
        chain: list[cst.Attribute] = []
        inner: cst.BaseExpression = node
        while isinstance(inner, cst.Attribute):
            self._seen.add(inner)
            chain.insert(0, inner)
            inner = inner.value
        root = self.context.resolver.qualified(inner)
        if root is None or root.split(".")[0] not in self._ours or not self._is_module(root):
            return
        for part in chain:
            name = self.context.resolver.qualified(part) or ""
            if part is node or not self._is_module(name):
                self._targets[part] = (name, self._table.entry(name))
                return

    def _is_module(self, name: str) -> bool:
        """Modules have small letters and no entry of their own."""
        return name.rpartition(".")[2].islower() and self._table.entry(name) is None

    def reference(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        """A name that a `from` import bound keeps its name; one reached through a module gets the helper's."""
        if original not in self._targets:
            return None
        qualified, entry = self._targets[original]
        if entry is None or entry.reason:
            self._refuse(original, qualified, entry)
        if entry is None or entry.helper is None:
            return None
        self.context.counts.add(qualified, converted=True)
        return cst.parse_expression(f"ms_compat.{entry.helper}.{qualified.rpartition('.')[2]}")

    def _refuse(self, node: cst.CSTNode, name: str, entry: Entry | None) -> None:
        if node in self._optional:
            return
        reason = entry.reason if entry is not None else "is not known to work without torch"
        self.context.report("M114", node, f"{name} {reason}")


def _statement(source: str, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    """A statement on one line, or one name per line where that is too long."""
    plain = [alias.with_changes(comma=cst.MaybeSentinel.DEFAULT) for alias in aliases]
    statement = cst.ImportFrom(_module(source), plain)
    if len(cst.Module([]).code_for_node(statement)) <= _WIDTH:
        return statement
    newline = cst.ParenthesizedWhitespace(indent=True, last_line=cst.SimpleWhitespace("    "))
    closing = cst.ParenthesizedWhitespace(indent=True)
    commas = [cst.Comma(whitespace_after=newline)] * (len(plain) - 1) + [cst.Comma(whitespace_after=closing)]
    names = [alias.with_changes(comma=comma) for alias, comma in zip(plain, commas, strict=True)]
    return statement.with_changes(names=names, lpar=cst.LeftParen(newline), rpar=cst.RightParen())


def _module(name: str) -> cst.Name | cst.Attribute:
    module = cst.parse_expression(name)
    assert isinstance(module, cst.Name | cst.Attribute)
    return module
