"""Reads the constructor of a module class: which parameters and buffers its objects have, under which names.

Nothing is run. What cannot be read off is listed with its line, so that a table is never short without saying so.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Mapping, Sequence

import libcst as cst

from migrate.code.analysis import Analysis
from migrate.code.context import code_of
from migrate.code.names.symbols import FunctionInfo
from migrate.code.trees.walk import walk
from migrate.code.weights_table.contents import Contents
from migrate.code.weights_table.leaves import EMPTY
from migrate.code.weights_table.questions import Questions
from migrate.code.weights_table.registering import GROW, REGISTER, Registering, is_setattr, self_call
from migrate.code.weights_table.symbolic import Scope, UnknownError
from migrate.code.weights_table.values import Values, range_count

_FUNCTIONS = (cst.FunctionDef, cst.Lambda, cst.ClassDef)


class Constructor:
    """Contents of module classes of a repository."""

    def __init__(self, analysis: Analysis) -> None:
        self._analysis = analysis

    def contents(self, name: str) -> Contents:
        """What objects of a class hold, in the words of the arguments of its constructor."""
        found = Contents()
        Reader(self._analysis, found, (), "", ()).read_class(name, None, None)
        return found


class Reader(Registering):
    """The statements of the constructor of one class."""

    # -- classes
    def read_class(self, name: str, args: Sequence[cst.Arg] | None, outer: Values | None) -> None:
        """Everything that objects of a class hold; `args` are in the words of the constructor that `outer` reads."""
        symbols = self.analysis.symbols
        info = symbols.method(name, "__init__")
        library = [base for base in symbols.lineage(name) if base.startswith("torch.") and base not in EMPTY]
        if library:
            self.found.not_known(self._place_of(name), f"{name} is a {library[0]}, too, whose own tensors are not read")
        if info is None or name in self.stack:
            if name in self.stack:
                self.found.not_known(self._place_of(name), f"{name} holds modules of its own class")
            return
        self.stack = (*self.stack, name)
        self.file = self.analysis.files[info.resolver.source.module]
        self._read_method(info, args, outer, name)
        self._other_methods(name)

    def _read_method(self, info: FunctionInfo, args: Sequence[cst.Arg] | None, outer: Values | None, name: str) -> None:
        """The constructor, or a method that it calls."""
        self.read.add(info.name)
        self_name = info.node.params.params[0].name.value if info.node.params.params else "self"
        given = self._arguments(info, args, Scope() if outer is None else outer.scope)
        self.scope = Scope(given, self.scope.attributes, self_name)
        self.handed = self._handed_by(info, args, outer)
        assigned = Counter(
            target.target.value
            for node in walk(info.node.body)
            if isinstance(node, cst.Assign)
            for target in node.targets
            if isinstance(target.target, cst.Name)
        )
        self.many = {local for local, number in assigned.items() if number > 1}
        self.own = {parameter.name.value for parameter in info.parameters}
        self.class_name = name
        self.outside = len(self.when)
        self._block(info.node.body)

    def _inlined(self, info: FunctionInfo, args: Sequence[cst.Arg], name: str) -> None:
        """A method of the same object that is called by the one that is being read."""
        outer, saved = copy.copy(self), (self.file, self.many, self.own, self.handed, self.class_name, self.outside)
        self.file = self.analysis.files[info.resolver.source.module]
        self._read_method(info, args, outer, name)
        attributes = self.scope.attributes
        self.file, self.many, self.own, self.handed, self.class_name, self.outside = saved
        self.scope = Scope(outer.scope.names, attributes, outer.scope.self_name)

    def _other_methods(self, name: str) -> None:
        """What methods register that the constructor does not call."""
        symbols = self.analysis.symbols
        for owner in symbols.lineage(name):
            info = symbols.classes.get(owner)
            for method in info.methods.values() if info else ():
                if method.name not in self.read and symbols.method(name, method.node.name.value) is method:
                    self.file = self.analysis.files[method.resolver.source.module]
                    self._not_followed(method.node.body, f"when {method.node.name.value}() is called")

    def _not_followed(self, body: cst.CSTNode, words: str) -> None:
        """Says what a piece of code registers whose course is not known."""
        for inner in walk(body):
            target = self_call(inner, self.scope.self_name)
            registers = target is not None and (
                (target[0] == "" and target[1] in REGISTER) or (target[0] in self.lists and target[1] in GROW)
            )
            if registers or self._assigns_module(inner) or is_setattr(inner, self.scope.self_name):
                self._unknown(inner, f"{code_of(inner)} {words}")

    def _arguments(
        self, info: FunctionInfo, args: Sequence[cst.Arg] | None, outer: Scope
    ) -> dict[str, ast.expr | None]:
        """What the parameters stand for; without `args` for themselves."""
        if args is None:
            return {}
        values: dict[str, ast.expr | None] = {}
        places = [p.name.value for p in info.parameters]
        for place, arg in enumerate(args):
            if arg.star:
                return {p: None for p in places if p not in values} | values
            name = arg.keyword.value if arg.keyword else places[place] if place < len(places) else None
            if name is not None:
                try:
                    values[name] = outer.expression(arg.value)
                except UnknownError:
                    values[name] = None
        for parameter in info.parameters:
            if parameter.name.value not in values:
                default = parameter.default
                values[parameter.name.value] = None if default is None else Scope().expression(default)
        return values

    def _handed_by(
        self, info: FunctionInfo, args: Sequence[cst.Arg] | None, outer: Values | None
    ) -> dict[str, tuple[cst.BaseExpression, Questions]]:
        """What a call gives for parameters, as far as it is written out; defaults are the class's own."""
        if args is None or outer is None or any(arg.star for arg in args):
            return {}
        places = [parameter.name.value for parameter in info.parameters]
        defaults = {p.name.value: p.default for p in info.parameters if p.default is not None}
        own = copy.copy(self)
        own.handed = {}  # a default may have the parameter's own name
        found: dict[str, tuple[cst.BaseExpression, Questions]] = {name: (d, own) for name, d in defaults.items()}
        for place, arg in enumerate(args):
            name = arg.keyword.value if arg.keyword else places[place] if place < len(places) else None
            if name is not None:
                found[name] = (arg.value, outer)
        return found

    # -- statements
    def _block(self, body: cst.BaseSuite) -> None:
        before = self.when
        for statement in body.body:
            if isinstance(statement, cst.SimpleStatementLine):
                if any(isinstance(small, cst.Return) for small in statement.body):
                    break
                for small in statement.body:
                    self._small(small)
            elif isinstance(statement, cst.If):
                self._if(statement)
                if self._ends_with(statement):
                    break
            elif isinstance(statement, cst.For):
                self._for(statement)
            elif isinstance(statement, cst.With | cst.Try):
                self._block(statement.body)
                for handler in getattr(statement, "handlers", ()):
                    self._not_followed(handler, "if the block before it fails")
            elif not isinstance(statement, cst.FunctionDef | cst.ClassDef):
                self._not_followed(statement, "whose course is not known")
        self.when = before

    def _ends_with(self, node: cst.If) -> bool:
        """Whether nothing is done behind `if ...: return`; if something is, then under the opposite condition."""
        returns = [inner for inner in walk(node, skip=_FUNCTIONS) if isinstance(inner, cst.Return)]
        if not returns:
            return False
        last = node.body.body[-1]
        if len(returns) > 1 or not isinstance(last, cst.SimpleStatementLine) or returns[0] not in last.body:
            self._unknown(node, f"what is done behind the return under `if {code_of(node.test)}` is not known")
            return True
        is_taken, condition = self._condition(node.test)
        if is_taken is None:
            self.when = (*self.when, f"not ({condition})")
        return is_taken is True

    def _if(self, node: cst.If) -> None:
        taken = self._condition(node.test)
        negated = f"not ({taken[1]})"
        branches: list[tuple[bool | None, str, cst.CSTNode | None]] = [
            (taken[0], taken[1], node),
            (None if taken[0] is None else not taken[0], negated, node.orelse),
        ]
        for is_taken, condition, branch in branches:
            if branch is None or is_taken is False:
                continue
            before, self.when = self.when, self.when if is_taken else (*self.when, condition)
            if isinstance(branch, cst.If) and branch is not node:
                self._if(branch)
            elif isinstance(branch, cst.If | cst.Else):
                self._block(branch.body)
            self.when = before

    def _for(self, node: cst.For) -> None:
        """`for i in range(n): self.layers.append(...)`; anything else that a loop registers is not known."""
        appended = []
        for inner in walk(node.body):
            target = self_call(inner, self.scope.self_name)
            if target and target[1] == "append" and target[0] in self.lists:
                appended.append((target[0], inner))
            elif (
                (target and target[0] == "" and target[1] in REGISTER)
                or self._assigns_module(inner)
                or is_setattr(inner, self.scope.self_name)
            ):
                self._unknown(inner, f"{code_of(inner)} in a loop")
        count = range_count(node.iter, self.scope)
        for name, call in appended:
            assert isinstance(call, cst.Call)
            growing = self.lists[name]
            if count is None or growing is None or growing.lengths != {(): 0} or len(appended) > 1:
                self._unknown(call, f"{code_of(call)} in a loop whose names are not known")
            else:
                self._repeated(call.args[0].value, f"{self.prefix}{name}.", count, node.target)
            self.lists[name] = None

    def _assigns_module(self, node: cst.CSTNode) -> bool:
        if not isinstance(node, cst.Assign) or not isinstance(node.value, cst.Call):
            return False
        return self._self_path(node.targets[0].target) is not None and self._may_hold(node.value)

    def _small(self, node: cst.BaseSmallStatement) -> None:
        if isinstance(node, cst.Expr) and isinstance(node.value, cst.Call):
            self._call(node.value)
        elif isinstance(node, cst.Assign | cst.AnnAssign) and node.value is not None:
            targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
            for target in targets:
                self._targets(target, node.value)
        elif isinstance(node, cst.AugAssign) and (self._self_path(node.target) or "") in self.lists:
            self._unknown(node, f"{code_of(node)}: the names are not known")

    def _targets(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        """`a = value`, `a, b = first, second`, `self.layers["x"] = value`."""
        if (
            isinstance(target, cst.Tuple)
            and isinstance(value, cst.Tuple)
            and len(target.elements) == len(value.elements)
        ):
            for one, other in zip(target.elements, value.elements, strict=True):
                self._targets(one.value, other.value)
        elif isinstance(target, cst.Subscript) and self._self_path(target.value) is not None:
            if self._may_hold(value):
                self._unknown(target, f"{code_of(target)}: the name is not known")
        elif isinstance(target, cst.Tuple):
            for element in target.elements:
                if isinstance(element.value, cst.Name):
                    self.scope.names[element.value.value] = None
        else:
            self._assign(target, value)

    def _assign(self, target: cst.BaseExpression, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            self.scope.names[target.value] = (
                None if target.value in self.many else self._now(value, self.scope.names, target.value)
            )
            return
        path = self._self_path(target)
        if path is None:
            return
        other = self._self_path(value)
        if "." in path:
            if other is not None:
                self.found.tie(self.prefix + path, self.prefix + other, self.when)
            elif self._may_hold(value):
                self._unknown(target, f"{code_of(target)} is replaced by {code_of(value)}")
            return
        if other is not None and self.analysis_type(value) in ("object", "parameter"):
            self.found.tie(f"{self.prefix}{path}", f"{self.prefix}{other}", self.when)
            return
        if self._may_hold(value):
            self._module(value, self.prefix + path, path)
        else:
            if self._may_be_called(value, path):
                self._unknown(target, f"{self.prefix}{path} is {code_of(value)}, which is called and may be a module")
            self.scope.attributes[path] = self._now(value, self.scope.attributes, path)

    def _now(self, value: cst.BaseExpression, values: Mapping[str, ast.expr | None], name: str) -> ast.expr | None:
        """What a name stands for after an assignment; under a condition, one of two things."""
        new = self._expression(value)
        conditions = self.when[self.outside :]
        if not conditions or new is None:
            return new
        old = values.get(name, ast.Name(name) if name in self.own else None)
        if old is None:
            return new if name not in values else None
        return ast.IfExp(ast.parse(" and ".join(f"({c})" for c in conditions), mode="eval").body, new, old)
