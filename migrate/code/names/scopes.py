"""What the names of a file are bound to, by Python's rules of scopes.

libcst's `ScopeProvider` answers more (every access, every context), at three times the cost of parsing.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import libcst as cst

from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import children

_BUILTINS = frozenset(dir(builtins))


@dataclass
class Scope:
    """A module, class, function, lambda or comprehension."""

    kind: str
    parent: Scope | None = None
    path: str | None = None
    """Of a class in its module, empty for the module itself; None where names cannot be reached from outside."""
    imports: dict[str, set[str]] = field(default_factory=dict)
    """Name -> what import statements bind it to: dotted names, with leading dots where relative."""
    bound: set[str] = field(default_factory=set)
    """Names bound otherwise."""
    elsewhere: dict[str, Scope] = field(default_factory=dict)
    """Names that `global` and `nonlocal` declare -> where to look for them."""

    def owner(self, name: str) -> Scope | None:
        """The scope that binds a name which is read in this one; None for builtins and unknown names."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.elsewhere:
                return scope.elsewhere[name].owner(name)
            if name in scope.bound or name in scope.imports:
                return scope
            scope = scope.around
        return None

    @property
    def around(self) -> Scope | None:
        """Where a name that is not bound here is looked for: functions do not see the names of their class."""
        scope = self.parent
        while scope is not None and scope.kind == "class":
            scope = scope.parent
        return scope

    def bind(self, name: str) -> None:
        if (scope := self._bound_in(name)) is not None:
            scope.bound.add(name)

    def bind_import(self, name: str, target: str) -> None:
        if (scope := self._bound_in(name)) is not None:
            scope.imports.setdefault(name, set()).add(target)

    def _bound_in(self, name: str) -> Scope | None:
        declared = self.elsewhere.get(name)
        if declared is None:
            return self
        return declared if declared.kind == "module" else None  # what is nonlocal, another function binds as well


class Scopes:
    """The scopes of one file."""

    def __init__(self, tree: cst.Module) -> None:
        self.module = Scope("module", path="")
        self._of: dict[cst.CSTNode, Scope] = {}
        self._targets: set[cst.CSTNode] = set()
        self._visit(tree, self.module)

    def of(self, name: cst.Name) -> Scope | None:
        """The scope in which a name is read or bound; None for attributes, keywords and names in import statements."""
        return self._of.get(name)

    def is_target(self, name: cst.CSTNode) -> bool:
        """Whether a name is bound just here, whatever else binds it."""
        return name in self._targets

    def _visit(self, node: cst.CSTNode, scope: Scope) -> None:
        special = _SPECIAL.get(type(node))
        if special is not None:
            special(self, node, scope)
            return
        for child in children(node):
            self._visit(child, scope)

    def _each(self, nodes: object, scope: Scope) -> None:
        for node in nodes if isinstance(nodes, list | tuple) else (nodes,):
            if isinstance(node, cst.CSTNode):
                self._visit(node, scope)

    # -- names
    def _name(self, node: cst.Name, scope: Scope) -> None:
        # `Tensor = Tensor` in a class: what the class has not bound yet is read from around it.
        is_later = scope.kind == "class" and node.value not in scope.bound and node.value not in scope.imports
        self._of[node] = (is_later and scope.around) or scope

    def _attribute(self, node: cst.Attribute, scope: Scope) -> None:
        self._visit(node.value, scope)

    def _argument(self, node: cst.Arg, scope: Scope) -> None:
        self._visit(node.value, scope)

    # -- bindings
    def _target(self, node: cst.CSTNode, scope: Scope) -> None:
        """Something that is assigned to."""
        if isinstance(node, cst.Name):
            self._of[node] = scope
            self._targets.add(node)
            scope.bind(node.value)
        elif isinstance(node, cst.Tuple | cst.List):
            for element in node.elements:
                self._target(element.value, scope)
        else:
            self._visit(node, scope)

    def _assign(self, node: cst.Assign, scope: Scope) -> None:
        self._visit(node.value, scope)
        for target in node.targets:
            self._target(target.target, scope)

    def _augmented(self, node: cst.AugAssign | cst.AnnAssign, scope: Scope) -> None:
        self._each([getattr(node, "annotation", None), node.value], scope)
        self._target(node.target, scope)

    def _loop(self, node: cst.For, scope: Scope) -> None:
        self._visit(node.iter, scope)
        self._target(node.target, scope)
        self._each([node.body, node.orelse], scope)

    def _walrus(self, node: cst.NamedExpr, scope: Scope) -> None:
        self._visit(node.value, scope)
        while scope.kind == "comprehension" and scope.parent is not None:
            scope = scope.parent
        self._target(node.target, scope)

    def _as_name(self, node: cst.AsName, scope: Scope) -> None:
        self._target(node.name, scope)

    def _pattern_name(self, node: cst.MatchAs | cst.MatchStar | cst.MatchMapping, scope: Scope) -> None:
        name = node.rest if isinstance(node, cst.MatchMapping) else node.name
        if name is not None:
            self._target(name, scope)
        for child in children(node):
            if child is not name:
                self._visit(child, scope)

    def _keyword_pattern(self, node: cst.MatchKeywordElement, scope: Scope) -> None:
        self._visit(node.pattern, scope)

    def _type_alias(self, node: cst.TypeAlias, scope: Scope) -> None:
        self._target(node.name, scope)
        inner = Scope("function", scope)
        self._each([node.type_parameters, node.value], inner)

    def _type_variable(self, node: cst.TypeVar | cst.TypeVarTuple | cst.ParamSpec, scope: Scope) -> None:
        self._target(node.name, scope)
        self._each(getattr(node, "bound", None), scope)

    def _import(self, node: cst.Import, scope: Scope) -> None:
        for alias in node.names:
            name = alias.evaluated_name
            if alias.evaluated_alias:
                scope.bind_import(alias.evaluated_alias, name)
            else:
                scope.bind_import(name.split(".")[0], name.split(".")[0])

    def _import_from(self, node: cst.ImportFrom, scope: Scope) -> None:
        if isinstance(node.names, cst.ImportStar):
            return
        module = "." * len(node.relative) + (dotted(node.module) or "")
        for alias in node.names:
            name = alias.evaluated_name
            separator = "" if module.endswith(".") else "."
            scope.bind_import(alias.evaluated_alias or name, f"{module}{separator}{name}")

    def _global(self, node: cst.Global, scope: Scope) -> None:
        for item in node.names:
            if scope is not self.module:
                scope.elsewhere[item.name.value] = self.module

    def _nonlocal(self, node: cst.Nonlocal, scope: Scope) -> None:
        for item in node.names:
            if scope.around is not None:
                scope.elsewhere[item.name.value] = scope.around

    # -- scopes
    def _function(self, node: cst.FunctionDef, scope: Scope) -> None:
        self._each(node.decorators, scope)
        self._target(node.name, scope)
        if node.type_parameters is not None:
            scope = Scope("function", scope)
            self._visit(node.type_parameters, scope)
        inner = Scope("function", scope)
        self._parameters(node.params, scope, inner)
        self._each(node.returns, scope)
        for name in _declared(node.body):
            self._visit(name, inner)  # holds for the whole function
        self._visit(node.body, inner)

    def _lambda(self, node: cst.Lambda, scope: Scope) -> None:
        inner = Scope("function", scope)
        self._parameters(node.params, scope, inner)
        self._visit(node.body, inner)

    def _parameters(self, node: cst.Parameters, scope: Scope, inner: Scope) -> None:
        for parameter in children(node):
            if isinstance(parameter, cst.Param):
                self._target(parameter.name, inner)
                self._each([parameter.annotation, parameter.default], scope)

    def _class(self, node: cst.ClassDef, scope: Scope) -> None:
        self._each(node.decorators, scope)
        self._target(node.name, scope)
        path = None if scope.path is None else f"{scope.path}.{node.name.value}".lstrip(".")
        if node.type_parameters is not None:
            scope = Scope("function", scope)
            self._visit(node.type_parameters, scope)
        self._each([*node.bases, *node.keywords], scope)
        self._visit(node.body, Scope("class", scope, path))

    def _comprehension(self, node: cst.BaseComp, scope: Scope) -> None:
        inner = Scope("comprehension", scope)
        clause = getattr(node, "for_in")  # noqa: B009 (BaseComp does not declare it)
        self._clause(clause, scope, inner)
        for child in children(node):
            if child is not clause:
                self._visit(child, inner)

    def _clause(self, clause: cst.CompFor, scope: Scope, inner: Scope) -> None:
        """`for target in iterable if ...`: only the first iterable is evaluated outside."""
        self._visit(clause.iter, scope)
        self._target(clause.target, inner)
        self._each(clause.ifs, inner)
        if clause.inner_for_in is not None:
            self._clause(clause.inner_for_in, inner, inner)


_SPECIAL: Mapping[type, Callable[[Scopes, cst.CSTNode, Scope], None]] = {
    kind: visit  # type: ignore[misc]
    for kinds, visit in {
        (cst.Name,): Scopes._name,
        (cst.Attribute,): Scopes._attribute,
        (cst.Arg,): Scopes._argument,
        (cst.Assign,): Scopes._assign,
        (cst.AugAssign, cst.AnnAssign): Scopes._augmented,
        (cst.For,): Scopes._loop,
        (cst.NamedExpr,): Scopes._walrus,
        (cst.AsName,): Scopes._as_name,
        (cst.MatchAs, cst.MatchStar, cst.MatchMapping): Scopes._pattern_name,
        (cst.MatchKeywordElement,): Scopes._keyword_pattern,
        (cst.TypeAlias,): Scopes._type_alias,
        (cst.TypeVar, cst.TypeVarTuple, cst.ParamSpec): Scopes._type_variable,
        (cst.Import,): Scopes._import,
        (cst.ImportFrom,): Scopes._import_from,
        (cst.Global,): Scopes._global,
        (cst.Nonlocal,): Scopes._nonlocal,
        (cst.FunctionDef,): Scopes._function,
        (cst.Lambda,): Scopes._lambda,
        (cst.ClassDef,): Scopes._class,
        (cst.ListComp, cst.SetComp, cst.DictComp, cst.GeneratorExp): Scopes._comprehension,
    }.items()
    for kind in kinds
}


def _declared(body: cst.BaseSuite) -> list[cst.CSTNode]:
    """`global` and `nonlocal` statements of a function, wherever they stand in it."""
    found: list[cst.CSTNode] = []
    pending: list[cst.CSTNode] = [body]
    while pending:
        for child in children(pending.pop()):
            if isinstance(child, cst.Global | cst.Nonlocal):
                found.append(child)
            elif not isinstance(child, cst.FunctionDef | cst.ClassDef | cst.BaseExpression):
                pending.append(child)
    return found


def is_builtin(name: str) -> bool:
    """Whether Python itself has the name."""
    return name in _BUILTINS


__all__ = ["Scope", "Scopes", "is_builtin"]
