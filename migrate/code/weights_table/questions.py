"""What the reader of a constructor asks about expressions: conditions, makers, whether a value may be a module."""

from __future__ import annotations

import ast

import libcst as cst

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.context import code_of
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk
from migrate.code.weights_table.contents import Contents
from migrate.code.weights_table.growing import Growing
from migrate.code.weights_table.leaves import EMPTY, LEAVES
from migrate.code.weights_table.makers import Maker, is_called, is_foreign, maker_of, variable
from migrate.code.weights_table.symbolic import Scope, UnknownError, text, truth

PARAMETERS = ("torch.nn.Parameter", "torch.nn.parameter.Parameter")
LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential", "torch.nn.ParameterList")
_MAKERS = (*PARAMETERS, *LISTS, "torch.nn.ModuleDict")
_NOT_MODULES = frozenset({"tensor", "tensors", "number", "value", "shape", "dtype", "device", "parameter", "text"})


class Questions:
    """A place in the constructor of one class, and what is known there."""

    def __init__(
        self, analysis: Analysis, found: Contents, stack: tuple[str, ...], prefix: str, when: tuple[str, ...]
    ) -> None:
        self.analysis, self.found, self.stack, self.prefix, self.when = analysis, found, stack, prefix, when
        self.file: FileAnalysis
        self.scope = Scope()
        self.class_name = ""
        """Class whose constructor is being read."""
        self.many: set[str] = set()
        """Local names that are assigned more than once there."""
        self.own: set[str] = set()
        """Names of its parameters."""
        self.outside = 0
        """Number of the conditions under which it is called at all."""
        self.read: set[str] = set()
        """Methods of the object that have been read."""
        self.lists: dict[str, Growing | None] = {}
        """Lists of modules under construction; None: how long it is cannot be told."""
        self.handed: dict[str, tuple[cst.BaseExpression, Questions]] = {}
        """Parameter of the constructor -> what its caller wrote for it, and the reader of the caller."""

    def _module(self, node: cst.BaseExpression, path: str, attribute: str | None) -> None:
        """A module or parameter that is registered under a path (`values.Values`)."""
        raise NotImplementedError

    def _handed(self, node: cst.BaseExpression) -> tuple[cst.BaseExpression, Questions] | None:
        """What the caller gave for a parameter that nothing else is assigned to."""
        return self.handed.get(node.value) if isinstance(node, cst.Name) and node.value not in self.many else None

    def _maker(self, function: cst.BaseExpression) -> Maker | None:
        """What is called under a name: a class, a partial of one, what a parameter or a local name stands for."""
        resolver = self.file.resolver
        name = resolver.qualified(function)
        if name is not None:
            assigned = None if name in self.analysis.symbols.classes else variable(self.analysis, name)
            found = None if assigned is None else maker_of(assigned[0], assigned[1].resolver, literal=True)
            return found or Maker(name)
        if (handed := self._handed(function)) is not None:
            value, reader = handed
            found = reader._maker(value)
            return found or maker_of(value, reader.file.resolver, literal=True)
        local = self._assigned_once(function)
        return None if local is None else maker_of(local, resolver, literal=False)

    def _assigned_once(self, node: cst.BaseExpression) -> cst.BaseExpression | None:
        """What the one assignment of a local name in this constructor gives it."""
        if not isinstance(node, cst.Name) or node.value in self.many or node.value in self.own:
            return None
        init = self.analysis.symbols.method(self.class_name, "__init__")
        for inner in walk(init.node.body) if init is not None else ():
            if isinstance(inner, cst.Assign) and code_of(inner.targets[0].target) == node.value:
                return inner.value
        return None

    def _condition(self, node: cst.BaseExpression) -> tuple[bool | None, str]:
        try:
            tree = self.scope.expression(node)
        except UnknownError:
            return None, code_of(node)
        return truth(tree), text(tree)

    def _expression(self, node: cst.BaseExpression) -> ast.expr | None:
        try:
            return self.scope.expression(node)
        except UnknownError:
            return None

    def analysis_type(self, node: cst.BaseExpression) -> str:
        return self.file.types.of(node).kind

    def _may_hold(self, node: cst.BaseExpression) -> bool:
        """Whether an attribute with this value may be a module or a parameter."""
        if isinstance(node, cst.IfExp):
            return self._may_hold(node.body) or self._may_hold(node.orelse)
        kind = self.file.types.of(node)
        if (handed := self._handed(node)) is not None:
            return handed[1]._may_hold(handed[0])
        qualified = ""
        if isinstance(node, cst.Call):
            maker = self._maker(node.func)
            qualified = "" if maker is None else maker.name
            if qualified in _MAKERS or qualified in LEAVES or qualified in EMPTY:
                return True
            if self.analysis.symbols.is_module(qualified):
                return True
            if qualified == "copy.deepcopy" and node.args:
                copied = node.args[0].value
                return self._may_hold(self._assigned_once(copied) or copied)
        if kind.kind == "object" and kind.name:
            return self.analysis.symbols.is_module(kind.name)
        if kind.is_known or kind.kind in _NOT_MODULES:
            return kind.kind == "parameter"
        if not isinstance(node, cst.Call):
            return False
        # Functions of unknown origin may give modules, and any function may hand on one that it gets (`weight_norm`).
        unknown = not qualified and _is_factory(node)
        return unknown or any(self._may_hold(arg.value) for arg in node.args)

    def _may_be_called(self, node: cst.BaseExpression, attribute: str) -> bool:
        """Whether a value of which nothing is known may be a module: methods call the attribute that it is given to."""
        if not isinstance(node, cst.Name | cst.Call) or self.file.types.of(node).is_known:
            return False
        if isinstance(node, cst.Name):
            open_ended = node.value in self.own and node.value not in self.handed
        else:
            name = self.file.resolver.qualified(node.func)
            open_ended = name is not None and (
                name in self.analysis.symbols.functions or is_foreign(name, self.analysis)
            )
        return open_ended and is_called(attribute, self.class_name, self.analysis)

    def _self_path(self, node: cst.BaseExpression) -> str | None:
        """`a.b` of `self.a.b`."""
        name = dotted(node)
        start = f"{self.scope.self_name}."
        return name.removeprefix(start) if name is not None and name.startswith(start) else None

    def _place(self, node: cst.CSTNode) -> str:
        # A call that was put together from parts of the tree stands where its function stands.
        return f"{self.file.source.path}:{self.file.line(node.func if isinstance(node, cst.Call) else node)}"

    def _place_of(self, name: str) -> str:
        info = self.analysis.symbols.classes[name]
        file = self.analysis.files[info.resolver.source.module]
        return f"{file.source.path}:{file.line(info.node)}"

    def _unknown(self, node: cst.CSTNode, what: str) -> None:
        self.found.not_known(self._place(node), what)


def _is_factory(node: cst.Call) -> bool:
    """A call through a name or an entry of a table (`norm_layer(dim)`, `ACT[name]()`), not a method of some object."""
    return isinstance(node.func, cst.Name | cst.Subscript)
