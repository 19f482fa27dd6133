"""What else holds the tensor of a local name at one place of a function: other names, containers, the caller."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.dataflow.memory import HELD, roots
from migrate.code.trees.walk import children, walk

_ADDING = frozenset({"append", "appendleft", "insert", "extend", "add", "setdefault", "put"})
_SCOPES = (cst.FunctionDef, cst.Lambda, cst.ClassDef)
_LOOPS = (cst.For, cst.While)
_WITHOUT_GRADIENT = ("torch.no_grad", "torch.inference_mode")


@dataclass
class Shared:
    """Who else has a tensor."""

    names: set[str] = field(default_factory=set)
    held: bool = False
    parameter: str | None = None
    """The parameter whose tensor it is, as the caller gave it."""
    view: str | None = None
    """The method by which it is a view of the others' tensor, unless it is the tensor itself or a slice."""


@dataclass(frozen=True)
class _Event:
    """A name gets the value of a source; None for one that is not visible."""

    name: str
    source: cst.BaseExpression | None
    position: int
    blocks: tuple[cst.CSTNode, ...]
    held: bool = False
    parameter: bool = False


class ScopeFlow:
    """Assignments and reads of the local names of one function, or of the top level, in the order of the text."""

    def __init__(self, context: FileContext, scope: cst.CSTNode) -> None:
        self.context = context
        self._events: list[_Event] = []
        self._loads: list[tuple[str, int, tuple[cst.CSTNode, ...]]] = []
        self._stores: list[tuple[cst.BaseExpression, int]] = []
        """Values that an attribute or a container keeps."""
        self._places: dict[cst.CSTNode, tuple[int, int, tuple[cst.CSTNode, ...]]] = {}
        """Of every statement: where it begins and ends, and the blocks around it."""
        self._count = 0
        if isinstance(scope, cst.FunctionDef):
            params = scope.params
            plain = [*params.posonly_params, *params.params, *params.kwonly_params]
            for parameter in plain:
                self._bind(parameter.name, None, (), parameter=True)
            for body in scope.body.body:
                self._visit(body, ())
        else:
            for child in children(scope):
                self._visit(child, ())

    # -- reading
    def _bind(self, target: cst.CSTNode, source: cst.BaseExpression | None, blocks, **kind: bool) -> None:  # type: ignore[no-untyped-def]
        if isinstance(target, cst.Name):
            self._events.append(_Event(target.value, source, self._count, blocks, **kind))
        elif isinstance(target, cst.Tuple | cst.List):
            values = source.elements if isinstance(source, cst.Tuple | cst.List) else None
            matched = values is not None and len(values) == len(target.elements)
            for position, element in enumerate(target.elements):
                value = values[position].value if values is not None and matched else source
                self._bind(element.value, value, blocks, **kind)
        elif source is not None:
            self._stores.append((source, self._count))

    def _visit(self, node: cst.CSTNode, blocks: tuple[cst.CSTNode, ...]) -> None:
        self._count += 1
        begin = self._count
        if isinstance(node, _SCOPES):
            # What a function inside reads may be read at any time.
            self._loads += [(n.value, 10**9, ()) for n in walk(node) if isinstance(n, cst.Name)]
            return
        if isinstance(node, cst.Name):
            self._loads.append((node.value, self._count, blocks))
            return
        if isinstance(node, cst.Attribute):
            self._visit(node.value, blocks)
            return
        if isinstance(node, cst.For):
            self._visit(node.iter, blocks)
            inner = (*blocks, node, node.body)
            self._bind(node.target, node.iter, inner, held=True)
            for statement in node.body.body:
                self._visit(statement, inner)
            if node.orelse is not None:
                self._visit(node.orelse, blocks)
        elif isinstance(node, cst.Assign | cst.AnnAssign):
            if node.value is not None:
                self._visit(node.value, blocks)
                for target in [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]:
                    self._inside_target(target, blocks)
                    self._count += 1
                    self._bind(target, node.value, blocks)
        else:
            inner = blocks
            if isinstance(node, cst.IndentedBlock | cst.SimpleStatementSuite | cst.While):
                inner = (*blocks, node)
            if isinstance(node, cst.NamedExpr | cst.AsName):
                source = node.value if isinstance(node, cst.NamedExpr) else None
                self._bind(node.target if isinstance(node, cst.NamedExpr) else node.name, source, blocks)
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in _ADDING:
                self._stores += [(arg.value, self._count) for arg in node.args]
            for child in children(node):
                if not isinstance(child, cst.Arg):
                    self._visit(child, inner)
                else:
                    self._visit(child.value, inner)
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self._places[node] = (begin, self._count, blocks)

    def _inside_target(self, target: cst.CSTNode, blocks: tuple[cst.CSTNode, ...]) -> None:
        """`x[i] = v` reads `x` and `i`, `x = v` reads nothing."""
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._inside_target(element.value, blocks)
        elif not isinstance(target, cst.Name):
            self._visit(target, blocks)

    # -- questions
    def knows(self, statement: cst.CSTNode) -> bool:
        return statement in self._places

    def sources(self, name: str, statement: cst.CSTNode) -> list[cst.BaseExpression | None]:
        """What the assignments of a name give it that reach a statement."""
        begin, _, blocks = self._places[statement]
        return [event.source for event in self._reaching(name, begin, blocks)]

    def shared(self, name: str, statement: cst.CSTNode) -> Shared:
        """Who else has the tensor of a name in front of a statement."""
        begin, _, blocks = self._places[statement]
        result = Shared()
        since = self._trace(name, begin, blocks, result, None, 0)
        for event in self._events:
            if since < event.position < begin and event.name != name:
                found = roots(self.context, event.source)
                result.names.update(event.name for root in found if root.name == name and not root.part)
        result.held |= any(since < position < begin and self._leads_to(v, name) for v, position in self._stores)
        result.names.discard(name)
        return result

    def parts(self, name: str, statement: cst.CSTNode) -> list[tuple[str, cst.BaseExpression]]:
        """Names of rows and slices of the tensor of a name, and of what that is a part of, with their expressions."""
        begin, _, blocks = self._places[statement]
        family, found = self.shared(name, statement).names | {name}, []
        for relative in family:
            since = min((event.position for event in self._reaching(relative, begin, blocks)), default=0)
            for event in self._events:
                if event.source is None or not since <= event.position < begin or event.name == name:
                    continue
                if any(root.part and root.name == relative for root in roots(self.context, event.source)):
                    found.append((event.name, event.source))
        return found

    def _leads_to(self, source: cst.BaseExpression | None, name: str) -> bool:
        return any(root.name == name for root in roots(self.context, source))

    def _trace(
        self, name: str, position: int, blocks: tuple[cst.CSTNode, ...], result: Shared, view: str | None, depth: int
    ) -> int:
        """Add what the assignments say that reach a place; gives the position of the earliest of them."""
        reaching = self._reaching(name, position, blocks)
        for event in reaching:
            if event.parameter:
                result.parameter = result.parameter or name
                result.view = result.view or view
            for root in roots(self.context, event.source, view):
                if event.held or root.name == HELD:
                    result.held = True
                    result.view = result.view or root.view
                elif depth < 10:
                    result.names.add(root.name)
                    result.view = result.view or root.view
                    self._trace(root.name, event.position, event.blocks, result, root.view, depth + 1)
        return min((event.position for event in reaching), default=0)

    def _reaching(self, name: str, position: int, blocks: tuple[cst.CSTNode, ...]) -> list[_Event]:
        events = [event for event in self._events if event.name == name]
        before = [event for event in events if event.position < position]
        certain = next((e for e in reversed(before) if e.blocks == blocks[: len(e.blocks)]), None)
        loops = [b for b in blocks if isinstance(b, _LOOPS) and (certain is None or b not in certain.blocks)]
        first = certain.position if certain else -1
        return [
            event
            for event in events
            if event.position >= first and (event.position < position or any(loop in event.blocks for loop in loops))
        ]

    def read_later(self, names: set[str], statement: cst.CSTNode) -> bool:
        """Whether one of the names is read after a statement, or in another round of a loop around it."""
        begin, end, blocks = self._places[statement]
        loops = [block for block in blocks if isinstance(block, _LOOPS)]
        for name, position, around in self._loads:
            if name not in names:
                continue
            again = (loop for loop in loops if loop in around and not self._renewed(name, loop))
            if position > end or (position < begin and any(True for _ in again)):
                return True
        return False

    def _renewed(self, name: str, loop: cst.CSTNode) -> bool:
        """Whether every round of a loop gives a name a new value."""
        body = loop.body  # type: ignore[attr-defined]
        return any(event.name == name and event.blocks[-1:] == (body,) for event in self._events)


class Flows:
    """The flows of the functions of one file, each made when the first question about it is asked."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self._scopes: dict[cst.CSTNode, cst.CSTNode] = {}
        self._quiet: set[cst.CSTNode] = set()
        self._flows: dict[cst.CSTNode, ScopeFlow] = {}

    def scope(self, statement: cst.CSTNode) -> cst.CSTNode:
        """The function that a simple statement stands in, or the file."""
        if not self._scopes:
            self._collect(self.context.file.tree, self.context.file.tree, False)
        return self._scopes[statement]

    def without_gradients(self, statement: cst.CSTNode) -> bool:
        """Whether a simple statement stands under `no_grad` or `inference_mode`."""
        self.scope(statement)
        return statement in self._quiet

    def _collect(self, node: cst.CSTNode, scope: cst.CSTNode, quiet: bool) -> None:
        if isinstance(node, cst.FunctionDef):
            scope, quiet = node, any(self._stops_gradients(d.decorator) for d in node.decorators)
        elif isinstance(node, cst.With):
            quiet = quiet or any(self._stops_gradients(item.item) for item in node.items)
        for child in children(node):
            if isinstance(child, cst.BaseSmallStatement):
                self._scopes[child] = scope
                if quiet:
                    self._quiet.add(child)
            elif not isinstance(child, cst.BaseExpression):
                self._collect(child, scope, quiet)

    def _stops_gradients(self, node: cst.BaseExpression) -> bool:
        return self.context.torch_name(node.func if isinstance(node, cst.Call) else node) in _WITHOUT_GRADIENT

    def of(self, statement: cst.CSTNode) -> ScopeFlow:
        """The flow of the function around a simple statement."""
        scope = self.scope(statement)
        if scope not in self._flows:
            self._flows[scope] = ScopeFlow(self.context, scope)
        return self._flows[scope]


__all__ = ["Flows", "ScopeFlow", "Shared"]
