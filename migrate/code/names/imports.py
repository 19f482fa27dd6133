"""Import statements of a converted file: torch goes when nothing uses it, MindSpore and the helpers come in.

The passes spell MindSpore names in full (`mindspore.ops.cat`, `ms_compat.layers.Linear`). Here they get the names that
people write, as far as the file does not use these names for something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from migrate.code.context import FileContext, code_of
from migrate.code.names.guarded_imports import UNCONVERTED, guard_torch_imports
from migrate.code.names.resolve import absolute
from migrate.code.names.used_names import emitted_names, plain_names
from migrate.code.passes.leftovers import is_dropped
from migrate.code.trees.dotted import dotted

_ALIASES = {"mindspore.ops": "ops", "mindspore.nn": "nn", "mindspore.mint": "mint", "mindspore": "ms"}
_DIRECT = {"backward_of", "decode_step", "moved"}
"""Functions of the helpers that read well alone."""
_MARKER = "_msmigrate_imports_"
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement
_Holders = (
    cst.Module | cst.BaseSuite | cst.BaseCompoundStatement | cst.Else | cst.Finally | cst.ExceptHandler
    | cst.ExceptStarHandler | cst.MatchCase
)  # fmt: skip
"""Nodes that hold statements; nothing else is entered when only statements matter."""


@dataclass(frozen=True)
class Finished:
    """A file with its final imports."""

    tree: cst.Module
    helpers: frozenset[str]
    """Modules of `ms_compat` that it imports, `layers` for `ms_compat.layers`."""
    needs: frozenset[str]
    """torch names that it still takes from other files of the repository, e.g. `common.F`."""


def finish_imports(context: FileContext, tree: cst.Module, keep: frozenset[str] = frozenset()) -> Finished:
    """Remove, shorten and place imports; names in `keep` (`common.F`) stay because other files still take them."""
    pruner = _Pruner(context, plain_names(tree), keep)
    tree = _visited(tree, pruner)
    emitted, lines = emitted_names(tree)
    plan = _Plan()
    if emitted and context.counts.converted:
        plan = _plan(emitted, plain_names(tree), pruner.removed)
        tree = _visited(tree, _Shortener(plan.spelling, lines))
    helpers = frozenset(name.split(".")[1] for name in emitted if name.startswith("ms_compat.")) | context.helpers
    tree, guarded = guard_torch_imports(context, _placed(tree, plan.lines()))
    if guarded:
        helpers |= {UNCONVERTED}
    return Finished(tree, helpers, frozenset(pruner.needs))


def _visited(tree: cst.Module, transformer: cst.CSTTransformer) -> cst.Module:
    result = tree.visit(transformer)
    assert isinstance(result, cst.Module)
    return result


# -- removal
class _Pruner(cst.CSTTransformer):
    """Takes unused torch names out of the imports; the first line that is emptied marks where the new ones go."""

    def __init__(self, context: FileContext, used: set[str], keep: frozenset[str]) -> None:
        super().__init__()
        self.context, self.used, self.keep = context, used, keep
        self.needs: set[str] = set()
        self.removed: set[str] = set()
        self._marked = False
        self._torch_stays = False
        """Of the import statement that is being looked at."""

    def on_visit(self, node: cst.CSTNode) -> bool:
        return isinstance(node, _Holders)

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        body, rest = self._pruned(updated_node.body, top=True)
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        body, rest = self._pruned(updated_node.body, top=False)
        if not body:
            body = [cst.SimpleStatementLine([cst.Pass()], leading_lines=rest)]
            rest = []
        return updated_node.with_changes(body=body, footer=[*rest, *updated_node.footer])

    def _pruned(self, body: Sequence[cst.CSTNode], top: bool) -> tuple[list[cst.CSTNode], list[cst.EmptyLine]]:
        result: list[cst.CSTNode] = []
        carried: list[cst.EmptyLine] = []
        for line in body:
            new = self._line(line) if isinstance(line, cst.SimpleStatementLine) else line
            if new is None and isinstance(line, cst.SimpleStatementLine):
                if top and not self._marked and any(isinstance(s, cst.Import | cst.ImportFrom) for s in line.body):
                    self._marked = True
                    new = line.with_changes(body=[cst.Expr(cst.Name(_MARKER))])
                else:
                    carried += _comments(line)
                    continue
            if carried:
                new = new.with_changes(leading_lines=[*carried, *new.leading_lines])  # type: ignore[union-attr]
                carried = []
            assert new is not None
            result.append(new)
        return result, carried

    def _line(self, line: cst.SimpleStatementLine) -> cst.SimpleStatementLine | None:
        """The line without unused torch names; None if nothing is left."""
        if not any(isinstance(small, cst.Import | cst.ImportFrom) or is_dropped(small) for small in line.body):
            return line
        kept = [new for small in line.body if (new := self._statement(small)) is not None]
        if not kept:
            return None
        if len(kept) < len(line.body):
            kept[-1] = kept[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)
        return line.with_changes(body=kept)

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        kept = [small for small in updated_node.body if not is_dropped(small)]
        if len(kept) == len(updated_node.body):
            return updated_node
        return updated_node.with_changes(body=kept or [cst.Pass()])

    def _statement(self, node: cst.BaseSmallStatement) -> cst.BaseSmallStatement | None:
        if is_dropped(node):
            return None
        if isinstance(node, cst.Import):
            kept = [alias for alias in node.names if self._stays(alias, alias.evaluated_name)]
            self._record(node, len(kept) < len(node.names))
            return _with_names(node, kept)
        if isinstance(node, cst.ImportFrom) and not isinstance(node.names, cst.ImportStar):
            base = "." * len(node.relative) + (dotted(node.module) or "")
            separator = "" if base.endswith(".") else "."
            project, source = self.context.analysis.project, self.context.file.source
            kept = []
            for alias in node.names:
                name = absolute(project, source, base + separator + alias.evaluated_name)
                if self._stays(alias, name):
                    kept.append(alias)
            self._record(node, len(kept) < len(node.names))
            return _with_names(node, kept)
        return node

    def _record(self, node: cst.Import | cst.ImportFrom, removed: bool) -> None:
        """What became of a line that imports torch."""
        if removed or self._torch_stays:
            self.context.lines.add(node, "C302" if self._torch_stays else "C301")
        self._torch_stays = False

    def _stays(self, alias: cst.ImportAlias, name: str) -> bool:
        local = alias.evaluated_alias or alias.evaluated_name.split(".")[0]
        if not self.context.resolver.is_imported_torch(name):
            return True
        if local in self.used or f"{self.context.file.source.module}.{local}" in self.keep:
            if not name.startswith("torch"):
                self.needs.add(name)
            self._torch_stays = True
            return True
        self.removed.add(local)
        return False


def _with_names(node: cst.Import | cst.ImportFrom, kept: list[cst.ImportAlias]) -> cst.BaseSmallStatement | None:
    if not kept:
        return None
    assert not isinstance(node.names, cst.ImportStar)
    if len(kept) == len(node.names):
        return node
    if kept[-1] is not node.names[-1]:
        kept = [*kept[:-1], kept[-1].with_changes(comma=node.names[-1].comma)]
    return node.with_changes(names=kept)


def _comments(line: cst.SimpleStatementLine) -> list[cst.EmptyLine]:
    """The comments of a line that goes away, as lines of their own."""
    kept = [empty for empty in line.leading_lines if empty.comment is not None]
    if line.trailing_whitespace.comment is not None:
        kept.append(cst.EmptyLine(comment=line.trailing_whitespace.comment))
    return kept


# -- short names
@dataclass
class _Plan:
    spelling: dict[str, str] = field(default_factory=dict)
    """Full name -> how it is written."""
    plain: set[str] = field(default_factory=set)
    """`import ...` lines."""
    members: dict[str, set[str]] = field(default_factory=dict)
    """`from module import names`."""

    def lines(self) -> list[str]:
        members = [f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(self.members.items())]
        return [*sorted(self.plain), *sorted(members, key=lambda line: line.startswith("from ms_compat"))]


def _plan(names: set[str], bound: set[str], was_torch: set[str]) -> _Plan:
    """Spelling and imports of every emitted name; `bound` are the names that the file uses otherwise."""
    plan = _Plan()
    taken = bound - {"mindspore", "ms_compat"}
    for full in sorted(names):
        # Of a helper, `ms_compat.layers.Linear.__init__` is a member of what is imported.
        name = ".".join(full.split(".")[:3]) if full.startswith("ms_compat.") else full
        _spell(plan, name, taken, was_torch)
        plan.spelling[full] = plan.spelling[name] + full.removeprefix(name)
    return plan


def _spell(plan: _Plan, name: str, taken: set[str], was_torch: set[str]) -> None:
    """Decide how one name is written."""
    if name in plan.spelling:
        return
    module, _, last = name.rpartition(".")
    if name.startswith("mindspore."):
        prefix = next(p for p in _ALIASES if name.startswith(f"{p}."))
        alias = _ALIASES[prefix]
        if alias in taken:
            plan.plain.add("import mindspore")
            plan.spelling[name] = name
        elif prefix == "mindspore":
            plan.plain.add("import mindspore as ms")
            plan.spelling[name] = alias + name.removeprefix(prefix)
        else:
            plan.members.setdefault("mindspore", set()).add(alias)
            plan.spelling[name] = alias + name.removeprefix(prefix)
        return
    helper = name.split(".")[1]
    if module == f"ms_compat.{helper}" and (last[0].isupper() or last in was_torch | _DIRECT) and last not in taken:
        plan.members.setdefault(module, set()).add(last)
        plan.spelling[name] = last
        taken.add(last)
    elif helper not in taken or helper in plan.members.get("ms_compat", ()):
        plan.members.setdefault("ms_compat", set()).add(helper)
        plan.spelling[name] = name.removeprefix("ms_compat.")
        taken.add(helper)
    elif f"ms_{helper}" not in taken:
        plan.members.setdefault("ms_compat", set()).add(f"{helper} as ms_{helper}")
        plan.spelling[name] = "ms_" + name.removeprefix("ms_compat.")
    else:
        plan.plain.add(f"import ms_compat.{helper}")
        plan.spelling[name] = name


class _Shortener(cst.CSTTransformer):
    def __init__(self, spelling: dict[str, str], lines: set[cst.CSTNode]) -> None:
        super().__init__()
        self.spelling, self.lines = spelling, lines

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine):
            return node in self.lines
        if isinstance(node, cst.Attribute):
            return dotted(node) not in self.spelling
        return not isinstance(node, cst.Import | cst.ImportFrom | cst.BaseParenthesizableWhitespace | cst.EmptyLine)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        spelled = self.spelling.get(dotted(original_node) or "")
        if spelled is None:
            return updated_node
        return cst.parse_expression(spelled).with_changes(lpar=original_node.lpar, rpar=original_node.rpar)


# -- placing
def _placed(tree: cst.Module, lines: list[str]) -> cst.Module:
    """Put the new import lines where the first torch import stood, or after the imports at the top."""
    present = {code_of(s) for s in tree.body if isinstance(s, cst.SimpleStatementLine)}
    new: list[Statement] = [_import_line(line) for line in lines if line not in present]
    body: list[Statement] = []
    placed = False
    carried: list[cst.EmptyLine] = []
    for statement in tree.body:
        if _is_marker(statement):
            assert isinstance(statement, cst.SimpleStatementLine)
            if new:
                new[0] = new[0].with_changes(leading_lines=statement.leading_lines)
                new[-1] = new[-1].with_changes(trailing_whitespace=statement.trailing_whitespace)
            else:
                carried = _comments(statement)
            body += new
            placed = True
            continue
        if carried:
            statement = statement.with_changes(leading_lines=[*carried, *statement.leading_lines])
            carried = []
        body.append(statement)
    if not placed and new:
        position = _after_imports(body)
        if position < len(body) and not body[position].leading_lines:
            body[position] = body[position].with_changes(leading_lines=[cst.EmptyLine()])
        body[position:position] = new
    return tree.with_changes(body=body, footer=[*carried, *tree.footer])


def _import_line(text: str) -> cst.SimpleStatementLine:
    statement = cst.parse_statement(text)
    assert isinstance(statement, cst.SimpleStatementLine)
    return statement


def _is_marker(statement: cst.CSTNode) -> bool:
    return (
        isinstance(statement, cst.SimpleStatementLine)
        and isinstance(statement.body[0], cst.Expr)
        and isinstance(statement.body[0].value, cst.Name)
        and statement.body[0].value.value == _MARKER
    )


def _after_imports(body: list[Statement]) -> int:
    """Behind the docstring and the block of imports at the top."""
    position = 0
    for index, statement in enumerate(body):
        if not isinstance(statement, cst.SimpleStatementLine):
            break
        first = statement.body[0]
        docstring = index == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        if not docstring and not isinstance(first, cst.Import | cst.ImportFrom):
            break
        position = index + 1
    return position
