"""Where `loss.backward()` stands, which statements compute the loss, and whether they can become a function safely."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext, code_of
from migrate.code.dataflow import dataflow
from migrate.code.dataflow.modules_used import ModulesUsed

Block = cst.IndentedBlock | cst.Module
Scope = cst.FunctionDef | cst.Module


@dataclass
class Site:
    """One `loss.backward()` and what is around it."""

    call: cst.Call
    line: cst.SimpleStatementLine
    block: Block
    scope: Scope
    loops: list[tuple[cst.CSTNode, Block]]
    """Loops of the same function around it, outermost first, each with the block it stands in."""
    owner: str | None
    """Qualified name of the class, when in a method."""

    @property
    def loss(self) -> cst.BaseExpression:
        assert isinstance(self.call.func, cst.Attribute)
        return self.call.func.value


@dataclass
class Plan:
    """How one `backward()` becomes a call of a gradient function."""

    site: Site
    region: list[cst.CSTNode]
    """Statements that move into the function, in order."""
    before: list[cst.CSTNode]
    after: list[cst.CSTNode]
    """Statements between the region and backward() that stay, before and after the call."""
    parameters: list[str]
    outputs: list[str]
    """Names that the region binds and the function reads elsewhere, without the loss itself."""
    loss_is_used: bool
    sources: list[str]
    anchor: cst.CSTNode
    """The function goes in front of this statement."""
    anchor_block: Block
    function: str = ""
    gradient: str = ""


@dataclass
class Refused:
    """Why a `backward()` is left alone."""

    site: Site
    reason: str


def find_sites(context: FileContext) -> list[Site]:
    """Every statement that is a `backward()` of a tensor, or of something unknown."""
    finder = _Finder(context)
    context.file.tree.visit(finder)
    return finder.sites


def loss_statements(context: FileContext, site: Site) -> list[cst.CSTNode]:
    """The statements in front of `backward()` that compute its loss from the first use of a module on."""
    statements = list(site.block.body)
    before = statements[: statements.index(site.line)]
    indices = _slice(before, dataflow.reads(site.loss), ModulesUsed(context, site.owner))
    return [statements[i] for i in indices]


def make_plan(context: FileContext, site: Site) -> Plan | Refused:
    """Decide how to convert one site."""
    for arg in site.call.args:
        if not (
            arg.keyword
            and arg.keyword.value in ("retain_graph", "create_graph")
            and code_of(arg.value) in ("False", "None")
        ):
            return Refused(site, f"backward() has the argument {code_of(arg)}")
    used = ModulesUsed(context, site.owner)
    region = loss_statements(context, site)
    if not region and not used.found(site.loss):
        return Refused(site, f"{code_of(site.loss)} is not computed by a module in the very block of backward()")
    statements: list[cst.CSTNode] = list(site.block.body)
    position = statements.index(site.line)
    start = statements.index(region[0]) if region else position
    bystanders = [statement for statement in statements[start:position] if statement not in region]
    return _plan(site, region, bystanders, used)


def _slice(statements: Sequence[cst.CSTNode], needed: set[str], used: ModulesUsed) -> list[int]:
    """Indices of the statements that lead from the first use of a module to the loss."""
    differentiable: set[str] = set()
    is_differentiable = []
    for statement in statements:
        written = dataflow.writes(statement)
        yes = bool(written) and (used.found(statement) or bool(differentiable & dataflow.reads(statement)))
        if yes:
            differentiable |= written
        is_differentiable.append(yes)
    chosen: list[int] = []
    needed = set(needed)
    for index in range(len(statements) - 1, -1, -1):
        if dataflow.writes(statements[index]) & needed:
            chosen.append(index)
            needed |= dataflow.reads(statements[index])
    chosen.reverse()
    first = next((i for i in chosen if is_differentiable[i]), None)
    return [] if first is None else [i for i in chosen if i >= first]


def _plan(site: Site, region: list[cst.CSTNode], bystanders: list[cst.CSTNode], used: ModulesUsed) -> Plan | Refused:
    if exit_ := dataflow.leaves([*region, *bystanders]):
        return Refused(site, f"{exit_} stands between the computation of the loss and backward()")
    made = set().union(*(dataflow.writes(s) for s in region), set())
    needed = set().union(*(dataflow.reads(s) for s in (*region, site.loss)))
    before: list[cst.CSTNode] = []
    after: list[cst.CSTNode] = []
    for statement in bystanders:
        # What uses the results stays behind the call, and so does all that follows it, in order; only zero_grad, which
        # touches nothing but gradients, has to come before them.
        written = dataflow.writes(statement)
        uses = bool((dataflow.reads(statement) | written) & made or written & needed)
        late = uses or (bool(after) and not m.matches(statement, _ZERO_GRAD))
        (after if late else before).append(statement)
        if changed := _changes_state(statement, late):
            return Refused(site, f"{changed} stands between the computation of the loss and backward()")
    if crossing := _crossing(site, region, bystanders):
        return Refused(site, f"{crossing} stands between the statements that compute the loss, and may change them")
    for statement in region:
        if m.findall(
            statement, m.Call(func=m.Attribute(attr=m.OneOf(m.Name("backward"), m.Name("step"), m.Name("zero_grad"))))
        ):
            return Refused(site, "the computation of the loss contains backward(), step() or zero_grad() itself")
    sources = sorted(set().union(*(used.sources(node) for node in (*region, site.loss))))
    if not sources:
        return Refused(site, "which modules the gradients belong to cannot be told")
    anchor, anchor_block = _anchor(site, sources)
    local = dataflow.bound_in(site.scope)
    exposed = {n for n in dataflow.exposed_reads([*region, site.loss]) if "." not in n} & local
    rebound = dataflow.rebinds(anchor) if anchor is not site.line else set()
    written = {n for n in made if "." not in n}
    parameters = [n for n in _in_order(region, site.loss) if n in exposed and (n in written or n in rebound)]
    if unset := [n for n in parameters if n in written and n not in _bound_outside(site, region)]:
        return Refused(site, f"{unset[0]} is read before it is certainly set")
    loss_name = site.loss.value if isinstance(site.loss, cst.Name) else None
    elsewhere = _read_elsewhere(site, region)
    outputs = [n for n in _in_order(region, site.loss) if n in written & elsewhere and n != loss_name]
    certain = set().union(*(dataflow.certain_writes(s) for s in region), set())
    for name in outputs:
        if name not in certain and name not in parameters:
            return Refused(site, f"{name} is set in one branch only and used afterwards")
    loss_is_used = loss_name is not None and loss_name in elsewhere
    return Plan(site, region, before, after, parameters, outputs, loss_is_used, sources, anchor, anchor_block)


def _anchor(site: Site, sources: list[str]) -> tuple[cst.CSTNode, Block]:
    """The outermost loop in which no module is replaced; without one, the backward statement itself."""
    roots = {source.split(".")[0] for source in sources} | set(sources)
    for loop, block in site.loops:
        if not dataflow.writes(loop) & roots:
            return loop, block
    return site.line, site.block


def _in_order(region: list[cst.CSTNode], loss: cst.CSTNode) -> list[str]:
    """Plain names in the order in which they appear."""
    names: dict[str, None] = {}
    for node in (*region, loss):
        for name in m.findall(node, m.Name()):
            assert isinstance(name, cst.Name)
            names.setdefault(name.value)
    return list(names)


def _read_elsewhere(site: Site, region: list[cst.CSTNode]) -> set[str]:
    """Names that the function reads outside the region and outside the backward statement."""
    rest = _outside(site, region)
    return dataflow.reads(rest.body if isinstance(rest, cst.FunctionDef) else rest)


def _bound_outside(site: Site, region: list[cst.CSTNode]) -> set[str]:
    return dataflow.bound_in(_outside(site, region))


def _outside(site: Site, region: list[cst.CSTNode]) -> Scope:
    """The function without the region and the backward statement."""
    skipped = {*region, site.line}

    class Outside(cst.CSTTransformer):
        def on_visit(self, node: cst.CSTNode) -> bool:
            return node not in skipped

        def on_leave(self, original_node: cst.CSTNode, updated_node):  # type: ignore[no-untyped-def]
            return cst.RemoveFromParent() if original_node in skipped else updated_node

    result = site.scope.visit(Outside())
    assert isinstance(result, cst.FunctionDef | cst.Module)
    return result


_ZERO_GRAD = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("zero_grad"))))])
_STATE_METHODS = ("train", "eval", "load_state_dict", "requires_grad_", "apply")
_GRADIENT_METHODS = ("zero_grad", "step", "backward", "update", "unscale_")


def _changes_state(statement: cst.CSTNode, late: bool) -> str | None:
    """A call that may not move over the computation of the loss (or, when late, over backward)."""
    methods = (*_STATE_METHODS, *_GRADIENT_METHODS[1:], *(_GRADIENT_METHODS[:1] if late else ()))
    for call in m.findall(statement, m.Call(func=m.Attribute())):
        assert isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute)
        if call.func.attr.value in methods:
            return f"{code_of(call.func)}()"
    return None


_HARMLESS = frozenset(
    {"print", "debug", "info", "warning", "error", "log", "add_scalar", "add_scalars", "write", "flush", "refresh",
     "set_description", "set_postfix", "synchronize", "barrier", "zero_grad", "item"}
)  # fmt: skip
"""Calls as statements that change nothing the loss is made of."""


def _crossing(site: Site, region: list[cst.CSTNode], bystanders: list[cst.CSTNode]) -> str | None:
    """A call as a statement that would be moved over a part of the computation: it is there for its effect."""
    order = list(site.block.body)
    last = max((order.index(statement) for statement in region), default=-1)  # type: ignore[arg-type]
    for statement in bystanders:
        if order.index(statement) > last or not isinstance(statement, cst.SimpleStatementLine):  # type: ignore[arg-type]
            continue
        for small in statement.body:
            if not isinstance(small, cst.Expr) or not isinstance(small.value, cst.Call):
                continue
            name = code_of(small.value.func)
            if name.rpartition(".")[2] not in _HARMLESS and not dataflow.writes(small):
                return f"{name}()"
    return None


_BACKWARD = m.SimpleStatementLine(body=[m.Expr(m.Call(func=m.Attribute(attr=m.Name("backward"))))])


def backward_call(line: cst.SimpleStatementLine) -> cst.Call:
    """The call that a backward statement consists of."""
    (small,) = line.body
    assert isinstance(small, cst.Expr) and isinstance(small.value, cst.Call)
    return small.value


@dataclass
class _Frame:
    scope: Scope
    loops: list[tuple[cst.CSTNode, Block]] = field(default_factory=list)


class _Finder(cst.CSTVisitor):
    def __init__(self, context: FileContext) -> None:
        super().__init__()
        self.context = context
        self.sites: list[Site] = []
        self._frames: list[_Frame] = [_Frame(context.file.tree)]
        self._blocks: list[Block] = []
        self._owners: list[str | None] = [None]
        self._classes = {info.node: info.name for info in context.symbols.classes.values()}

    def visit_Module(self, node: cst.Module) -> None:
        self._blocks.append(node)

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._blocks.append(node)

    def leave_IndentedBlock(self, original_node: cst.IndentedBlock) -> None:
        self._blocks.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._owners.append(self._classes.get(node))

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._owners.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._frames.append(_Frame(node))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._frames.pop()

    def visit_For(self, node: cst.For) -> None:
        self._frames[-1].loops.append((node, self._blocks[-1]))

    def leave_For(self, original_node: cst.For) -> None:
        self._frames[-1].loops.pop()

    def visit_While(self, node: cst.While) -> None:
        self._frames[-1].loops.append((node, self._blocks[-1]))

    def leave_While(self, original_node: cst.While) -> None:
        self._frames[-1].loops.pop()

    def visit_SimpleStatementLine(self, node: cst.SimpleStatementLine) -> None:
        if not m.matches(node, _BACKWARD):
            return
        call = backward_call(node)
        assert isinstance(call.func, cst.Attribute)
        kind = self.context.type_of(call.func.value)
        if not (kind.is_tensor or kind.kind in ("tensors", "unknown", "number", "value")) or self._is_other(call.func):
            return
        if not kind.is_tensor and (not self.context.uses_torch or any(arg.keyword is None for arg in call.args)):
            return
        frame = self._frames[-1]
        self.sites.append(Site(call, node, self._blocks[-1], frame.scope, list(frame.loops), self._owners[-1]))

    def _is_other(self, function: cst.Attribute) -> bool:
        """`backward` of an import or of a class; a variable of the module itself has a qualified name too."""
        name = self.context.resolver.qualified(function)
        if name is None or name == "torch.Tensor.backward":
            return False
        base = self.context.resolver.qualified(function.value)
        module, _, last = (base or "").rpartition(".")
        return not (module == self.context.file.source.module and self._is_variable(last))

    def _is_variable(self, name: str) -> bool:
        symbols = self.context.symbols
        owner = f"{self.context.file.source.module}.{name}"
        return owner not in symbols.classes and owner not in symbols.functions


__all__ = ["Block", "Plan", "Refused", "Site", "backward_call", "find_sites", "loss_statements", "make_plan"]
