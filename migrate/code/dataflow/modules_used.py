"""Which modules an expression or statement calls, and under which names they are reached."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.inference.types import Type
from migrate.code.trees.dotted import dotted

_NO_FORWARD = frozenset(
    {
        "train", "eval", "parameters", "named_parameters", "modules", "named_modules", "children", "named_children",
        "state_dict", "load_state_dict", "to", "cuda", "cpu", "zero_grad", "requires_grad_", "half", "float",
        "bfloat16", "buffers", "apply",
    }
)  # fmt: skip
_DATA_METHODS = frozenset(name for kind in (str, list, dict, set) for name in dir(kind)) | {
        "to", "cuda", "cpu", "float", "half", "long", "int", "bool", "item", "tolist", "numpy", "detach", "clone",
        "size", "view", "reshape", "transpose", "unsqueeze", "squeeze", "next", "step", "zero_grad", "backward",
        "write", "add_scalar", "log",
}  # fmt: skip


class ModulesUsed:
    """Answers for one function; `owner` is its class when it is a method."""

    def __init__(self, context: FileContext, owner: str | None) -> None:
        self.context, self.owner = context, owner

    def found(self, node: cst.CSTNode) -> bool:
        """Whether parameters take part in what the node computes."""
        return bool(self.sources(node))

    def sources(self, node: cst.CSTNode) -> set[str]:
        """Dotted names of the modules that are called, directly or by functions that are given them."""
        finder = _Calls()
        node.visit(finder)
        return set().union(*(self._call(call) for call in finder.calls), set())

    def _call(self, call: cst.Call) -> set[str]:
        found: set[str] = set()
        function = call.func
        kind = self.context.type_of(function)
        if self._is_module(kind):
            found |= self._named(function, kind)
        elif isinstance(function, cst.Attribute) and self.context.torch_name(function) is None:
            found |= self._method(function)
        elif isinstance(function, cst.Name) and not kind.is_known and self._may_be_module(function):
            found.add(function.value)
        if self._is_user_function(kind) and not found:
            for arg in call.args:
                given = self.context.type_of(arg.value)
                if self._is_module(given):
                    found |= self._named(arg.value, given)
        return found

    def _is_module(self, kind: Type) -> bool:
        return kind.kind == "object" and bool(kind.name) and self.context.symbols.is_module(kind.name)

    def _is_user_function(self, kind: Type) -> bool:
        return kind.kind in ("function", "method") and kind.name in self.context.symbols.functions

    def _named(self, node: cst.BaseExpression, kind: Type) -> set[str]:
        """The name of a module; one without parameters of its own (a loss of torch.nn) does not count."""
        if kind.name.startswith("torch.nn.") and kind.name.endswith("Loss"):
            return set()
        name = dotted(node)
        if name is None and isinstance(node, cst.Subscript):
            name = dotted(node.value)  # one of a list of modules: gradients for all of them
        return set() if name is None else {name}

    def _method(self, function: cst.Attribute) -> set[str]:
        """`model.loss(x)`, `self.compute_loss(batch)`, or a method of something unknown."""
        method, base = function.attr.value, self.context.type_of(function.value)
        if self._is_module(base):
            return set() if method in _NO_FORWARD else self._named(function.value, base)
        name = dotted(function.value)
        if base.kind == "object" and base.name in self.context.symbols.classes and name is not None:
            if self.context.symbols.method(base.name, method) is None:
                return set()
            return {f"{name}.{attribute}" for attribute in self._module_attributes(base.name)}
        if (
            not base.is_known
            and method not in _DATA_METHODS
            and name is not None
            and self._may_be_module(function.value)
        ):
            return {name}
        return set()

    def _module_attributes(self, class_name: str) -> list[str]:
        lineage = self.context.symbols.lineage(class_name)
        facts = self.context.analysis.facts.attributes
        return [attribute for (owner, attribute), kind in facts.items() if owner in lineage and self._is_module(kind)]

    def _may_be_module(self, node: cst.BaseExpression) -> bool:
        """A local variable or attribute of unknown type in a file that uses torch."""
        return self.context.uses_torch and self.context.resolver.qualified(node) is None


class _Calls(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        self.calls.append(node)

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        return False


__all__ = ["ModulesUsed"]
