"""What the passes share while one file is rewritten: names, types, findings, occurrence counts."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from mappings.api import Row
from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.findings import CODES, finding
from migrate.code.inference.types import Type
from migrate.code.line_records import LineRecords
from migrate.code.rows.template import Expansion
from migrate.report import Finding, Severity

_TODO = "# TODO(msmigrate:"
_EMPTY = cst.Module([])


def code_of(node: cst.CSTNode) -> str:
    """Source text of a node, on one line."""
    return " ".join(_EMPTY.code_for_node(node).split())


@dataclass
class Counts:
    """torch names by occurrence."""

    converted: int = 0
    unconverted: int = 0
    names: dict[str, int] = field(default_factory=dict)
    """Occurrences of each name."""
    missed: dict[str, int] = field(default_factory=dict)
    """Of these, the unconverted ones."""

    def add(self, name: str, converted: bool) -> None:
        self.names[name] = self.names.get(name, 0) + 1
        if converted:
            self.converted += 1
        else:
            self.unconverted += 1
            self.missed[name] = self.missed.get(name, 0) + 1


class FileContext:
    """One file under conversion. Questions are asked about nodes of the *original* tree."""

    def __init__(self, analysis: Analysis, file: FileAnalysis, target: str = "portable") -> None:
        self.analysis, self.file, self.target = analysis, file, target
        self.table, self.symbols, self.resolver = analysis.table, analysis.symbols, file.resolver
        self.findings: list[Finding] = []
        self.counts = Counts()
        self.lines = LineRecords(target)
        self.owned: set[cst.CSTNode] = set()
        """Name nodes that are part of something a pass handles as a whole."""
        self.helpers: set[str] = set()
        """Modules of `ms_compat` that rewritten import statements name."""
        self.unsafe = analysis.unsafe
        """Whether unsafe rules are applied."""
        self.uses_torch = file.source.imports_torch
        self._statements: list[tuple[cst.CSTNode, list[str]]] = []
        self._accepted: Row | None = None
        """Applied for the node that is being answered."""

    def type_of(self, node: cst.CSTNode) -> Type:
        return self.file.types.of(node)

    def torch_name(self, node: cst.CSTNode) -> str | None:
        return self.resolver.torch_name(node)

    def report(self, code: str, node: cst.CSTNode, message: str) -> None:
        """Record a finding; a warning also becomes a TODO line above the statement being rewritten."""
        self.findings.append(finding(code, message, file=str(self.file.source.path), line=self.file.line(node)))
        self.lines.add(node, code, message)
        if CODES[code].severity is not Severity.NOTE and self._statements:
            todo = f"{_TODO}{code}) {' '.join(message.split())}"
            todos = self._statements[-1][1]
            if todo not in todos:
                todos.append(todo)

    def accept(self, name: str, expansion: Expansion) -> None:
        """Count a converted name; comments that have no place in the new expression go above the statement."""
        self.counts.add(name, converted=True)
        self._accepted = expansion.row
        if self._statements:
            self._statements[-1][1].extend(expansion.lost_comments)

    def answered(self, node: cst.CSTNode, rule: str | None, changed: bool) -> None:
        """A pass answered for a node of the original tree: what is known about its line.

        `rule` is the pass's kind of change, None for the pass that only applies rows of the table.
        """
        row, self._accepted = self._accepted, None
        if row is not None:
            self.lines.add_row(node, row)
        if rule is not None and changed:
            self.lines.add(node, rule)

    # -- the statement being rewritten
    def enter_statement(self, node: cst.CSTNode) -> None:
        self._statements.append((node, []))

    def leave_statement(self, updated: cst.CSTNode) -> cst.CSTNode:
        """The statement with its TODO lines; a line whose code already stands there is not repeated."""
        original, todos = self._statements.pop()
        lines = list(getattr(updated, "leading_lines", ()))
        tree = self.file.tree
        above = list(tree.header) if tree.body and tree.body[0] is original else []  # where libcst keeps such comments
        present = " ".join(line.comment.value for line in above + lines if line.comment)
        new = [todo for todo in todos if not todo.startswith(_TODO) or todo.split(")")[0] + ")" not in present]
        if not new:
            return updated
        return updated.with_changes(leading_lines=[*lines, *(cst.EmptyLine(comment=cst.Comment(t)) for t in new)])
