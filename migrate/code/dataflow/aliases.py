"""Whether a local name may share its tensor with something else, so that rebinding it would not be enough.

The cautious first answer, over a whole function at once; `sharing` knows the order of statements and says who shares.
"""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext
from migrate.code.dataflow.memory import SAME, VIEWS
from migrate.code.trees.walk import children, walk

_VIEWS = VIEWS | SAME

_SHARED = m.OneOf(*(m.Name(name) for name in ("view", "to", "cpu", "cuda")))
"""Methods after which `copy_` still changes the original in MindSpore, or after which torch has a tensor of its own."""


class AliasScan:
    """Collects, per function, what each name was assigned from and where it was stored."""

    def __init__(self, context: FileContext) -> None:
        self.context = context
        self._by_name: dict[cst.CSTNode, _Uses] | None = None

    def _uses_around(self, name: cst.Name) -> _Uses:
        """The uses in the function that a name stands in; worked out when the first question is asked."""
        if self._by_name is None:
            self._by_name = {}
            tree = self.context.file.tree
            pending: list[tuple[cst.CSTNode, _Uses]] = [(tree, _uses(tree))]
            while pending:
                node, uses = pending.pop()
                if isinstance(node, cst.FunctionDef):
                    uses = _uses(node)
                elif isinstance(node, cst.Name):
                    self._by_name[node] = uses
                pending += [(child, uses) for child in children(node)]
        return self._by_name[name]

    def reason(self, name: cst.Name) -> str | None:
        """Why the tensor of a name may be reachable otherwise; None when it is certainly not."""
        uses = self._uses_around(name)
        if name.value in uses.parameters:
            return f"{name.value} is a parameter, the caller's tensor would have to change too"
        sources = uses.assigned.get(name.value, [])
        if not sources:
            return f"where {name.value} comes from is not visible here"
        for source in sources:
            if source is None or not self.is_fresh(source):
                return f"{name.value} may be a view or a second name of another tensor"
        if name.value in uses.stored:
            return f"{name.value} is also stored under another name"
        return None

    def is_parameter(self, name: cst.Name) -> bool:
        """Whether a name is a parameter of its function."""
        return name.value in self._uses_around(name).parameters

    def copies_reach(self, name: cst.Name) -> bool:
        """Whether `copy_` on a name changes what torch would change: a slice is no view in MindSpore, a reshape is."""
        uses = self._uses_around(name)
        sources = uses.assigned.get(name.value, [])
        if not sources and name.value not in uses.parameters:
            return False
        return all(source is not None and self._same_memory(source) for source in sources)

    def _same_memory(self, node: cst.BaseExpression) -> bool:
        while isinstance(node, cst.Call) and m.matches(node.func, m.Attribute(attr=_SHARED)):
            assert isinstance(node.func, cst.Attribute)
            node = node.func.value
        return isinstance(node, cst.Name) or self.is_fresh(node)

    def is_fresh(self, node: cst.BaseExpression) -> bool:
        """Whether an expression makes a tensor that nothing else refers to."""
        if isinstance(node, cst.BinaryOperation | cst.UnaryOperation | cst.Comparison):
            return True
        if not isinstance(node, cst.Call):
            return False
        if self.context.torch_name(node.func) is not None:
            return True
        if isinstance(node.func, cst.Attribute) and self.context.type_of(node.func.value).is_tensor:
            method = node.func.attr.value
            if method.endswith("_") or method in _VIEWS:
                return self.is_fresh(node.func.value)
            return True
        return False


def _changes_itself(target: cst.BaseExpression, value: cst.BaseExpression) -> bool:
    """`x = x.mul_(2)`, `x = x.view(2, 3)`: the same tensor, or one whose memory has no other name."""
    while (
        isinstance(value, cst.Call)
        and isinstance(value.func, cst.Attribute)
        and (value.func.attr.value.endswith("_") or value.func.attr.value in _VIEWS)
    ):
        value = value.func.value
    return isinstance(target, cst.Name) and isinstance(value, cst.Name) and target.value == value.value


class _Uses:
    def __init__(self) -> None:
        self.parameters: set[str] = set()
        self.assigned: dict[str, list[cst.BaseExpression | None]] = {}
        self.stored: set[str] = set()


def _uses(node: cst.FunctionDef | cst.Module) -> _Uses:
    collector = _Collector()
    for child in children(node):
        for inner in walk(child, skip=(cst.FunctionDef,)) if not isinstance(child, cst.FunctionDef) else ():
            collector.see(inner)
    return collector.uses


def _called(node: cst.Call) -> str | None:
    return node.func.attr.value if isinstance(node.func, cst.Attribute) else None


class _Collector:
    def __init__(self) -> None:
        self.uses = _Uses()

    def see(self, node: cst.CSTNode) -> None:
        """Note what one node binds or stores."""
        if isinstance(node, cst.Param):
            self.uses.parameters.add(node.name.value)
        elif isinstance(node, cst.Assign):
            for target in node.targets:
                if not _changes_itself(target.target, node.value):
                    self._target(target.target, node.value)
                    self._store(node.value)
        elif isinstance(node, cst.AnnAssign):
            if node.value is not None:
                self._target(node.target, node.value)
                self._store(node.value)
        elif isinstance(node, cst.For | cst.CompFor):
            self._target(node.target, None)
        elif isinstance(node, cst.AsName):
            self._target(node.name, None)
        elif isinstance(node, cst.Call) and _called(node) in ("append", "insert", "extend"):
            for arg in node.args:
                self._store(arg.value)

    def _target(self, target: cst.CSTNode, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Name):
            self.uses.assigned.setdefault(target.value, []).append(value)
        elif isinstance(target, cst.Tuple | cst.List):
            pairs = (
                zip(target.elements, value.elements, strict=False) if isinstance(value, cst.Tuple | cst.List) else ()
            )
            values = [v.value for _, v in pairs]
            for position, element in enumerate(target.elements):
                self._target(element.value, values[position] if position < len(values) else None)

    def _store(self, value: cst.BaseExpression) -> None:
        """Names whose very tensor (or a view of it) the value keeps."""
        if isinstance(value, cst.Name):
            self.uses.stored.add(value.value)
        elif isinstance(value, cst.Tuple | cst.List | cst.Set):
            for element in value.elements:
                self._store(element.value)
        elif isinstance(value, cst.Dict):
            for pair in value.elements:
                self._store(pair.value)
        elif isinstance(value, cst.Subscript | cst.Attribute):
            self._store(value.value)
        elif isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _VIEWS:
            self._store(value.func.value)
