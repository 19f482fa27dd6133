"""Which names statements read and write, and whether control can leave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import libcst as cst

from mappings.api import known_names
from migrate.code.trees.dotted import dotted


def reads(node: cst.CSTNode) -> set[str]:
    """Names that a node reads: `x`, and `self.x` for attributes of plain names."""
    return _collected(node).read


def writes(node: cst.CSTNode) -> set[str]:
    """Names that a node binds or changes by assignment, in branches and loops too; `d[k] = v` changes `d`."""
    return _collected(node).written


def rebinds(node: cst.CSTNode) -> set[str]:
    """Plain names that a node binds, or may bind once in-place methods are assignments."""
    collected = _collected(node)
    return collected.bound | collected.replaced


def certain_writes(statement: cst.CSTNode) -> set[str]:
    """Plain names that are bound whenever the statement has run."""
    if isinstance(statement, cst.SimpleStatementLine):
        found: set[str] = set()
        for small in statement.body:
            collected = _collected(small)
            found |= collected.bound
        return found
    if isinstance(statement, cst.With):
        found = set().union(*(certain_writes(inner) for inner in statement.body.body))
        return found | {n for item in statement.items if item.asname for n in writes(item)}
    if isinstance(statement, cst.If) and isinstance(statement.orelse, cst.If | cst.Else):
        taken = set().union(*(certain_writes(inner) for inner in statement.body.body))
        if isinstance(statement.orelse, cst.If):
            return taken & certain_writes(statement.orelse)
        return taken & set().union(*(certain_writes(inner) for inner in statement.orelse.body.body))
    if isinstance(statement, cst.FunctionDef | cst.ClassDef):
        return {statement.name.value}
    return set()


def exposed_reads(statements: Iterable[cst.CSTNode]) -> set[str]:
    """Names that a sequence reads before it has certainly bound them."""
    exposed: set[str] = set()
    bound: set[str] = set()
    for statement in statements:
        exposed |= _exposed(statement) - bound
        bound |= certain_writes(statement)
    return exposed


def _exposed(node: cst.CSTNode) -> set[str]:
    """`exposed_reads` of one statement; the branches of a compound one are looked at one by one."""
    match node:
        case cst.If():
            orelse = _exposed(node.orelse) if node.orelse is not None else set()
            return reads(node.test) | exposed_reads(node.body.body) | orelse
        case cst.Else():
            return exposed_reads(node.body.body)
        case cst.For():
            inner = exposed_reads(node.body.body) - writes(cst.AssignTarget(node.target))
            return reads(node.iter) | inner | (_exposed(node.orelse) if node.orelse is not None else set())
        case cst.While():
            return reads(node.test) | exposed_reads(node.body.body)
        case cst.With():
            named = set().union(*(writes(item) for item in node.items))
            return set().union(*(reads(item.item) for item in node.items)) | (exposed_reads(node.body.body) - named)
    return reads(node)


def leaves(statements: Sequence[cst.CSTNode]) -> str | None:
    """The statement by which control can leave a sequence before its end (`return`, `break`, ...), if any."""
    finder = _Exits()
    for statement in statements:
        statement.visit(finder)
    return finder.found


def bound_in(scope: cst.FunctionDef | cst.Module) -> set[str]:
    """Local names of a function, or the top-level names of a module."""
    collected = _Collector()
    scope.body.visit(collected) if isinstance(scope, cst.FunctionDef) else [s.visit(collected) for s in scope.body]
    names = {name for name in collected.written if "." not in name}
    if isinstance(scope, cst.FunctionDef):
        params = scope.params
        names |= {p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)}
        names |= {p.name.value for p in (params.star_arg, params.star_kwarg) if isinstance(p, cst.Param)}
    return names


def _collected(node: cst.CSTNode) -> _Collector:
    collector = _Collector()
    node.visit(collector)
    return collector


_CHANGING = frozenset(
    {"append", "appendleft", "extend", "insert", "add", "update", "setdefault", "pop", "popleft", "popitem", "remove",
     "discard", "clear", "sort", "reverse"}
)  # fmt: skip
"""Methods that change lists, sets, dictionaries and queues."""


def _called(node: cst.Call) -> tuple[str, cst.BaseExpression | None]:
    """The method or function of a call, and the object whose method it is: `x` of `x[0].mul_(2).add_(1)`."""
    if isinstance(node.func, cst.Name):
        return node.func.value, None
    if not isinstance(node.func, cst.Attribute):
        return "", None
    base: cst.BaseExpression = node.func.value
    while True:
        if isinstance(base, cst.Subscript):
            base = base.value
        elif isinstance(base, cst.Call) and isinstance(base.func, cst.Attribute) and base.func.attr.value.endswith("_"):
            base = base.func.value
        else:
            return node.func.attr.value, base


class _Collector(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.read: set[str] = set()
        self.written: set[str] = set()
        self.bound: set[str] = set()
        """Plain names that are rebound, without those whose content changes."""
        self.replaced: set[str] = set()
        """Names of tensors that in-place methods change; after the conversion they may be rebound."""
        self._hidden: list[set[str]] = []
        """Names of comprehensions and lambdas around the current node."""

    # -- reads
    def visit_Name(self, node: cst.Name) -> None:
        if not any(node.value in names for names in self._hidden):
            self.read.add(node.value)

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        if name := dotted(node):
            parts = name.split(".")
            self.read.add(parts[0])
            if len(parts) >= 2:
                self.read.add(".".join(parts[:2]))
        else:
            node.value.visit(self)
        return False

    def visit_Arg(self, node: cst.Arg) -> bool:
        node.value.visit(self)
        return False

    def visit_Call(self, node: cst.Call) -> None:
        """`x.mul_(2)` and `parts.append(x)` change what they are called on, `init.zeros_(w)` changes its argument."""
        method, base = _called(node)
        in_place = f"torch.Tensor.{method}" in known_names() and method.endswith("_")
        if base is not None and (in_place or method in _CHANGING) and (name := dotted(base)):
            self.written.add(".".join(name.split(".")[:2]))
            if in_place:
                self.replaced.add(name)
        elif method.endswith("_") and not method.endswith("__") and node.args and (name := dotted(node.args[0].value)):
            self.written.add(".".join(name.split(".")[:2]))

    def visit_Annotation(self, node: cst.Annotation) -> bool:
        return False

    # -- writes
    def visit_AssignTarget(self, node: cst.AssignTarget) -> bool:
        self._write(node.target)
        return False

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._write(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> bool:
        if node.value is not None:
            self._write(node.target)
            node.value.visit(self)
        return False

    def visit_NamedExpr(self, node: cst.NamedExpr) -> bool:
        self._write(node.target)
        node.value.visit(self)
        return False

    def visit_For(self, node: cst.For) -> bool:
        self._write(node.target)
        node.iter.visit(self)
        node.body.visit(self)
        if node.orelse:
            node.orelse.visit(self)
        return False

    def visit_AsName(self, node: cst.AsName) -> bool:
        self._write(node.name)
        return False

    def visit_Del(self, node: cst.Del) -> None:
        self._write(node.target)

    def visit_ImportAlias(self, node: cst.ImportAlias) -> bool:
        self._bind(node.evaluated_alias or node.evaluated_name.split(".")[0])
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        if not isinstance(node.names, cst.ImportStar):
            for alias in node.names:
                self.visit_ImportAlias(alias)
        return False

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self._bind(node.name.value)
        inner = _Collector()
        node.body.visit(inner)
        self.read |= inner.read - bound_in(node)
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self._bind(node.name.value)
        inner = _Collector()
        node.body.visit(inner)
        self.read |= inner.read - inner.bound
        return False

    def _bind(self, name: str) -> None:
        self.written.add(name)
        self.bound.add(name)

    def _write(self, target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            self._bind(target.value)
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._write(element.value)
        elif isinstance(target, cst.Attribute):
            if name := dotted(target):
                self.written.add(".".join(name.split(".")[:2]))
            target.value.visit(self)
        elif isinstance(target, cst.Subscript):
            if name := dotted(target.value):
                self.written.add(".".join(name.split(".")[:2]))
            target.visit(self)
        elif isinstance(target, cst.StarredElement):
            self._write(target.value)

    # -- scopes of their own
    def visit_ListComp(self, node: cst.ListComp) -> bool:
        self._comprehension(node.for_in, [node.elt])
        return False

    def visit_SetComp(self, node: cst.SetComp) -> bool:
        self._comprehension(node.for_in, [node.elt])
        return False

    def visit_GeneratorExp(self, node: cst.GeneratorExp) -> bool:
        self._comprehension(node.for_in, [node.elt])
        return False

    def visit_DictComp(self, node: cst.DictComp) -> bool:
        self._comprehension(node.for_in, [node.key, node.value])
        return False

    def _comprehension(self, clause: cst.CompFor, results: list[cst.BaseExpression]) -> None:
        targets = _Collector()
        targets._write(clause.target)
        clause.iter.visit(self)
        self._hidden.append(targets.bound)
        for condition in clause.ifs:
            condition.test.visit(self)
        if clause.inner_for_in is not None:
            self._comprehension(clause.inner_for_in, results)
        else:
            for result in results:
                result.visit(self)
        self._hidden.pop()

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        params = node.params
        names = {p.name.value for p in (*params.posonly_params, *params.params, *params.kwonly_params)}
        self._hidden.append(names)
        node.body.visit(self)
        self._hidden.pop()
        return False


class _Exits(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: str | None = None
        self._loops = 0

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_For(self, node: cst.For) -> None:
        self._loops += 1

    def leave_For(self, original_node: cst.For) -> None:
        self._loops -= 1

    def visit_While(self, node: cst.While) -> None:
        self._loops += 1

    def leave_While(self, original_node: cst.While) -> None:
        self._loops -= 1

    def visit_Return(self, node: cst.Return) -> None:
        self.found = self.found or "return"

    def visit_Yield(self, node: cst.Yield) -> None:
        self.found = self.found or "yield"

    def visit_Await(self, node: cst.Await) -> None:
        self.found = self.found or "await"

    def visit_Global(self, node: cst.Global) -> None:
        self.found = self.found or "global"

    def visit_Nonlocal(self, node: cst.Nonlocal) -> None:
        self.found = self.found or "nonlocal"

    def visit_Break(self, node: cst.Break) -> None:
        if not self._loops:
            self.found = self.found or "break"

    def visit_Continue(self, node: cst.Continue) -> None:
        if not self._loops:
            self.found = self.found or "continue"
