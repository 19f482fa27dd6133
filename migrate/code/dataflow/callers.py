"""Whether the callers of a function go on using a tensor that they give it."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import libcst as cst

from migrate.code.analysis import Analysis
from migrate.code.context import FileContext
from migrate.code.dataflow.called import argument, called_functions
from migrate.code.dataflow.memory import HELD, roots
from migrate.code.dataflow.sharing import ScopeFlow
from migrate.code.names.symbols import FunctionInfo, Symbols
from migrate.code.trees.walk import children


class Callers:
    """The calls of the repository's functions, in all of its files."""

    def __init__(self, analysis: Analysis) -> None:
        self._calls: dict[str, list[_Place]] = {}
        self._flows: dict[cst.CSTNode, ScopeFlow] = {}
        for file in analysis.files.values():
            self._collect(FileContext(analysis, file), file.tree, file.tree, None, None)

    def keep(self, function: FunctionInfo, parameter: str, seen: frozenset[str] = frozenset()) -> bool | None:
        """Whether a caller reads the tensor of a parameter afterwards; None when no call is visible."""
        answers: list[bool | None] = []
        for place in self._calls.get(function.name, []):
            given = argument(function, parameter, place.call)
            if given is not None:
                answers.append(self._kept(place, given, seen | {function.name}))
        return True if True in answers else None if None in answers or not answers else False

    def _kept(self, place: _Place, given: cst.BaseExpression, seen: frozenset[str]) -> bool | None:
        found = {root.name for root in roots(place.context, given)}
        if not found:
            return False
        flow = self._flow(place)
        if HELD in found or not flow.knows(place.statement):
            return True
        unclear = False
        for name in found:
            shared = flow.shared(name, place.statement)
            names = shared.names | ({name} if not _renews(place.statement, name) else set())
            if shared.held or flow.read_later(names, place.statement) or _read_twice(place.statement, name):
                return True
            if shared.parameter is not None:
                if place.function is None or place.function.name in seen:
                    unclear = True
                    continue
                above = self.keep(place.function, shared.parameter, seen)
                if above:
                    return True
                unclear = unclear or above is None
        return None if unclear else False

    def _flow(self, place: _Place) -> ScopeFlow:
        if place.scope not in self._flows:
            self._flows[place.scope] = ScopeFlow(place.context, place.scope)
        return self._flows[place.scope]

    def _collect(
        self,
        context: FileContext,
        node: cst.CSTNode,
        scope: cst.CSTNode,
        statement: cst.CSTNode | None,
        function: FunctionInfo | None,
    ) -> None:
        if isinstance(node, cst.FunctionDef):
            scope, function = node, self._function(context, node)
        elif isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            statement = node
        elif isinstance(node, cst.Call) and statement is not None:
            for target in called_functions(context, node):
                self._calls.setdefault(target.name, []).append(_Place(context, scope, statement, function, node))
        for child in children(node):
            self._collect(context, child, scope, statement, function)

    def _function(self, context: FileContext, node: cst.FunctionDef) -> FunctionInfo | None:
        return next((info for info in context.symbols.functions.values() if info.node is node), None)


_known: WeakKeyDictionary[Symbols, Callers] = WeakKeyDictionary()


def callers_of(analysis: Analysis) -> Callers:
    """The calls of a repository; collected when the first question is asked."""
    if analysis.symbols not in _known:
        _known[analysis.symbols] = Callers(analysis)
    return _known[analysis.symbols]


class _Place:
    """One call and where it stands."""

    def __init__(
        self,
        context: FileContext,
        scope: cst.CSTNode,
        statement: cst.CSTNode,
        function: FunctionInfo | None,
        call: cst.Call,
    ) -> None:
        self.context, self.scope, self.statement, self.function, self.call = context, scope, statement, function, call


def _renews(statement: cst.CSTNode, name: str) -> bool:
    """`x = f(x)`: the caller has the result under the name."""
    return isinstance(statement, cst.Assign) and any(
        isinstance(t.target, cst.Name) and t.target.value == name for t in statement.targets
    )


def _read_twice(statement: cst.CSTNode, name: str) -> bool:
    """`x + f(x)`: the other operand is the changed tensor."""
    if not isinstance(statement, cst.Assign | cst.AnnAssign | cst.Return | cst.Expr | cst.AugAssign):
        return False
    return sum(n == name for n in _names(statement)) - _renews(statement, name) > 1


def _names(node: cst.CSTNode) -> list[str]:
    if isinstance(node, cst.Name):
        return [node.value]
    if isinstance(node, cst.Attribute):
        return _names(node.value)
    if isinstance(node, cst.Arg):
        return _names(node.value)
    return [name for child in children(node) for name in _names(child)]


__all__ = ["Callers", "callers_of"]
