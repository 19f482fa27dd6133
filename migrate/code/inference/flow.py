"""Statements in order: local variables, attributes and module variables get the types of what is assigned to them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import libcst as cst

from migrate.code.inference.evidence import used_as_container, used_as_other, used_as_tensor
from migrate.code.inference.infer import Inference, bind_target
from migrate.code.inference.infer_calls import Env
from migrate.code.inference.library_types import argument_type
from migrate.code.inference.types import NONE, PENDING, TENSOR, UNKNOWN, Type, instance, join, list_of
from migrate.code.names.resolve import Resolver
from migrate.code.names.symbols import Facts, FunctionInfo, Symbols

MAX_ROUNDS = 6
"""Facts travel one call per round; code nests calls of un-annotated functions less deeply than this."""


class FileTypes:
    """Types of the expressions of one file."""

    def __init__(self) -> None:
        self._types: dict[cst.CSTNode, Type] = {}

    def of(self, node: cst.CSTNode) -> Type:
        """Type of an expression node of the original tree."""
        found = self._types.get(node, UNKNOWN)
        return found if found.is_known else UNKNOWN

    def record(self, node: cst.CSTNode, found: Type) -> None:
        """A node is seen more than once (loops run twice): all the types it had count."""
        self._types[node] = join(self._types.get(node), found) or UNKNOWN

    def correct(self, node: cst.CSTNode, found: Type) -> None:
        """What the use of a node shows, instead of what was recorded."""
        self._types[node] = found

    def clear(self) -> None:
        self._types.clear()


def infer(symbols: Symbols, trees: Mapping[str, tuple[Resolver, cst.Module]]) -> tuple[dict[str, FileTypes], Facts]:
    """Types of every file of the repository by module name, and what was found about functions and classes."""
    facts = Facts()
    types = {module: FileTypes() for module in trees}
    for facts.settled in (False, True):
        for _ in range(MAX_ROUNDS):
            facts.changed = False
            for module, (resolver, tree) in trees.items():
                types[module].clear()
                _Walker(symbols, facts, resolver, types[module]).module(tree)
            if not facts.changed:
                break
    return types, facts


class _Walker:
    """One pass over one file."""

    def __init__(self, symbols: Symbols, facts: Facts, resolver: Resolver, types: FileTypes) -> None:
        self.symbols, self.facts, self.resolver = symbols, facts, resolver
        self.inference = Inference(symbols, facts, resolver, types.record, types.correct)
        self._path: list[str] = [resolver.source.module]
        self._returned: list[Type | None] = []
        self._yielded: list[Type | None] = []

    def module(self, tree: cst.Module) -> None:
        env: Env = {}
        self._block(tree.body, env)
        # Functions see module variables through the facts; while the module itself runs, they are in `env`.
        for name, found in env.items():
            self.facts.note_variable(f"{self.resolver.source.module}.{name}", found)

    # -- definitions
    def _function(self, node: cst.FunctionDef, closure: Env) -> None:
        name = ".".join([*self._path, node.name.value])
        info = self.symbols.functions[name]
        for decorator in node.decorators:
            self.inference.type_of(decorator.decorator, closure)
        env = {**closure, **self._parameters(info, closure)}
        self._path += [node.name.value, "<locals>"]
        self._returned.append(None)
        self._yielded.append(None)
        outer, self.inference.owner = self.inference.owner, info.owner.name if info.owner else self.inference.owner
        self._body(node.body, env)
        self.inference.owner = outer
        returned, yielded = self._returned.pop(), self._yielded.pop()
        if yielded is not None:
            self.facts.note_return(name, list_of(yielded))
        elif returned is not None:
            self.facts.note_return(name, returned)
        del self._path[-2:]

    def _parameters(self, info: FunctionInfo, closure: Env) -> Env:
        env: Env = {}
        params = info.node.params
        if info.owner is not None and "builtins.staticmethod" not in info.decorators:
            first = [*params.posonly_params, *params.params][:1]
            is_class = "builtins.classmethod" in info.decorators
            for self_parameter in first:
                env[self_parameter.name.value] = (
                    Type("class", info.owner.name) if is_class else instance(info.owner.name)
                )
        is_forward = (
            info.owner is not None and info.node.name.value == "forward" and self.symbols.is_module(info.owner.name)
        )
        for parameter in info.parameters:
            stated = self.inference.annotations.read(parameter.annotation.annotation if parameter.annotation else None)
            if stated is None and info.owner is not None:
                method = info.node.name.value
                stated = argument_type(self.symbols, info.owner.name, method, parameter.name.value)
            found = stated or self.facts.parameters.get((info.name, parameter.name.value))
            if parameter.default is not None:
                default = self.inference.type_of(parameter.default, closure)
                found = join(found, default) if stated is None else found
            name = parameter.name.value
            other = used_as_container(name, info) or used_as_other(name, info)
            if stated is None and other and found == TENSOR:
                found = UNKNOWN  # assumed of something that a caller only hands on
            asked = self.facts.settled and found in (None, NONE, PENDING, UNKNOWN)
            # What goes through a module is a tensor unless its use says otherwise.
            if asked and (
                (is_forward and not other)
                or (self.resolver.source.imports_torch and used_as_tensor(name, info, self.symbols))
            ):
                found = TENSOR
            env[parameter.name.value] = found if found is not None and found != NONE else PENDING
        if isinstance(params.star_arg, cst.Param):
            env[params.star_arg.name.value] = list_of(UNKNOWN)
        if params.star_kwarg is not None:
            env[params.star_kwarg.name.value] = Type("dict", items=(UNKNOWN,))
        return env

    def _class(self, node: cst.ClassDef, env: Env) -> None:
        for part in (*node.bases, *node.decorators):
            self.inference.parts(part, env)
        self._path.append(node.name.value)
        inner: Env = {}
        self._body(node.body, {**env, **inner}, inner)
        name = ".".join(self._path)
        for variable, found in inner.items():
            self.facts.note_attribute(name, variable, found)
        self._path.pop()

    # -- statements
    def _body(self, body: cst.BaseSuite, env: Env, assigned: Env | None = None) -> None:
        before = dict(env)
        self._block(body.body, env)
        if assigned is not None:
            assigned.update({k: v for k, v in env.items() if before.get(k) != v})

    def _block(self, statements: Sequence[cst.CSTNode], env: Env) -> None:
        for statement in statements:
            self._statement(statement, env)

    def _statement(self, node: cst.CSTNode, env: Env) -> None:
        evaluate = self.inference.type_of
        match node:
            case cst.SimpleStatementLine():
                self._block(node.body, env)
            case cst.FunctionDef():
                self._function(node, env)
            case cst.ClassDef():
                self._class(node, env)
            case cst.Assign():
                found = evaluate(node.value, env)
                for target in node.targets:
                    self._assign(target.target, found, env)
            case cst.AnnAssign():
                found_or_none = self.inference.annotations.read(node.annotation.annotation)
                if node.value is not None:
                    value = evaluate(node.value, env)
                    found_or_none = found_or_none or value
                if found_or_none is not None:
                    self._assign(node.target, found_or_none, env)
            case cst.AugAssign():
                old, value = evaluate(node.target, env), evaluate(node.value, env)
                # A tensor is changed in place, whatever is added to it; a parameter stays one.
                self._assign(node.target, old if old.is_tensor else join(old, value) or UNKNOWN, env)
            case cst.If():
                self._branches(node, env)
            case cst.For():
                self._loop(node, env)
            case cst.While():
                self._while(node, env)
            case cst.With():
                for item in node.items:
                    found = evaluate(item.item, env)
                    if item.asname is not None:
                        self._assign(item.asname.name, found, env)
                self._body(node.body, env)
            case cst.Try() | cst.TryStar():
                self._try(node, env)
            case cst.Return():
                found = NONE if node.value is None else evaluate(node.value, env)
                if self._returned:
                    self._returned[-1] = join(self._returned[-1], found)
                    self._note_passed_through(node)
            case cst.Expr():
                self._expression(node.value, env)
            case _:
                self.inference.parts(node, env)

    def _note_passed_through(self, node: cst.Return) -> None:
        """`return model` in `def fill(model)`: what comes out has the type of what went in."""
        name = ".".join(self._path[:-1])
        info = self.symbols.functions[name]
        returned = node.value.value if isinstance(node.value, cst.Name) else None
        untouched = returned in {p.name.value for p in info.parameters} and returned not in info.rebound
        found = returned if untouched else None
        self.facts.passed_through[name] = found if self.facts.passed_through.get(name, found) == found else None

    def _expression(self, node: cst.BaseExpression, env: Env) -> None:
        if isinstance(node, cst.Yield) and self._yielded:
            if isinstance(node.value, cst.From):
                found = self.inference.iterated(self.inference.type_of(node.value.item, env))
            else:
                found = NONE if node.value is None else self.inference.type_of(node.value, env)
            self._yielded[-1] = join(self._yielded[-1], found)
        else:
            self.inference.type_of(node, env)

    def _assign(self, target: cst.BaseExpression, found: Type, env: Env) -> None:
        match target:
            case cst.Name():
                env[target.value] = found
                self.inference.record(target, found)
            case cst.Tuple() | cst.List():
                bind_target(target, found, env)
                for position, element in enumerate(target.elements):
                    if isinstance(element.value, cst.Attribute | cst.Subscript):
                        exact = found.kind == "tuple" and len(found.items) == len(target.elements)
                        self._assign(element.value, found.items[position] if exact else found.element, env)
            case cst.Attribute():
                owner = self.inference.type_of(target.value, env)
                if owner.kind == "object" and owner.name:
                    self.facts.note_attribute(owner.name, target.attr.value, found)
                self.inference.record(target, found)
            case cst.Subscript():
                self.inference.type_of(target, env)
                self.inference.store_element(target.value, found, env)
            case _:
                self.inference.parts(target, env)

    def _branches(self, node: cst.If, env: Env) -> None:
        self.inference.type_of(node.test, env)
        taken, other = (dict(one) for one in self.inference.narrowed(node.test, env))
        self._body(node.body, taken)
        if isinstance(node.orelse, cst.If):
            self._branches(node.orelse, other)
        elif node.orelse is not None:
            self._body(node.orelse.body, other)
        if _leaves(node.body):
            taken = other
        elif isinstance(node.orelse, cst.Else) and _leaves(node.orelse.body):
            other = taken
        env.update(_merged(taken, other))

    def _loop(self, node: cst.For, env: Env) -> None:
        element = self.inference.iterated(self.inference.type_of(node.iter, env))

        def once(inner: Env) -> None:
            self._assign(node.target, element, inner)
            self._body(node.body, inner)

        self._repeat(env, once)
        self._orelse(node.orelse, env)

    def _while(self, node: cst.While, env: Env) -> None:
        def once(inner: Env) -> None:
            self.inference.type_of(node.test, inner)
            self._body(node.body, inner)

        self._repeat(env, once)
        self._orelse(node.orelse, env)

    def _repeat(self, env: Env, once: Callable[[Env], None]) -> None:
        """A loop body twice: the second time with what the first left behind."""
        for _ in range(2):
            inner = dict(env)
            once(inner)
            env.update(_merged(inner, env))

    def _orelse(self, node: cst.Else | None, env: Env) -> None:
        if node is not None:
            self._body(node.body, env)

    def _try(self, node: cst.Try | cst.TryStar, env: Env) -> None:
        self._body(node.body, env)
        for handler in node.handlers:
            inner = dict(env)
            if handler.name is not None:
                self._assign(handler.name.name, UNKNOWN, inner)
            self._body(handler.body, inner)
            if not _leaves(handler.body):
                env.update(_merged(inner, env))
        self._orelse(node.orelse, env)
        if node.finalbody is not None:
            self._body(node.finalbody.body, env)


def _merged(left: Env, right: Env) -> Env:
    return {name: join(left.get(name), right.get(name)) or UNKNOWN for name in {*left, *right}}


def _leaves(body: cst.BaseSuite) -> bool:
    """Whether a block certainly ends with return, raise, continue or break."""
    last = body.body[-1] if body.body else None
    if isinstance(last, cst.SimpleStatementLine):
        last = last.body[-1]
    return isinstance(last, cst.Return | cst.Raise | cst.Continue | cst.Break)


__all__ = ["FileTypes", "infer"]
