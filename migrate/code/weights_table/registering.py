"""Calls in a constructor that register something: `super().__init__()`, `register_buffer`, `self.layers.append`."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.code.context import code_of
from migrate.code.names.symbols import FunctionInfo
from migrate.code.trees.dotted import dotted
from migrate.code.weights_table.values import Values

REGISTER = ("register_buffer", "register_parameter", "add_module", "register_module")
GROW = ("append", "extend", "insert", "update", "setdefault")
"""Methods that put modules into a list or dictionary of modules."""


class Registering(Values):
    """What the calls among the statements of a constructor register."""

    def _inlined(self, info: FunctionInfo, args: Sequence[cst.Arg], name: str) -> None:
        """A method of the same object that is called by the one that is being read (`constructor.Reader`)."""
        raise NotImplementedError

    def _call(self, node: cst.Call) -> None:
        """`super().__init__(...)`, `self.register_buffer(...)`, `self.layers.append(...)`."""
        function = node.func
        if isinstance(function, cst.Attribute) and function.attr.value == "__init__":
            self._base(node, function.value)
            return
        if is_setattr(node, self.scope.self_name):
            self._unknown(node, f"{code_of(node)}: the name is not written out")
        target = self_call(node, self.scope.self_name)
        if target is None:
            return
        owner, method = target
        called = self.analysis.symbols.method(self.stack[-1], method) if owner == "" else None
        if called is not None and called.name not in self.read:
            self._inlined(called, node.args, self.class_name)
            return
        if owner == "" and method in REGISTER:
            self._register(node, method)
        elif owner in self.lists and method in GROW:
            growing = self.lists[owner]
            places = growing.append(self.when) if method == "append" and growing is not None else None
            if places is not None:
                before = self.when
                for self.when, place in places:
                    self._module(node.args[0].value, f"{self.prefix}{owner}.{place}", None)
                self.when = before
            else:
                self._unknown(node, f"{code_of(node)}: its place in the list is not known")
                self.lists[owner] = None

    def _base(self, node: cst.Call, owner: cst.BaseExpression) -> None:
        lineage = self.analysis.symbols.lineage(self.class_name)
        if isinstance(owner, cst.Call):
            current = self.file.resolver.source.module
            classes = [n for n in lineage if n in self.analysis.symbols.classes]
            here = next((n for n in classes if n.startswith(f"{current}.") and self._has_init(n)), None)
            following = classes[classes.index(here) + 1 :] if here in classes else []
            base, args = next((n for n in following if self._has_init(n)), None), node.args
        else:
            base, args = self.file.resolver.qualified(owner), node.args[1:]
            base = base if base in self.analysis.symbols.classes else None
        if base is None:
            return
        info = self.analysis.symbols.method(base, "__init__")
        if info is not None:
            self._inlined(info, args, base)

    def _has_init(self, name: str) -> bool:
        return "__init__" in self.analysis.symbols.classes[name].methods

    def _register(self, node: cst.Call, method: str) -> None:
        named = {a.keyword.value: a.value for a in node.args if a.keyword}
        positional = [a.value for a in node.args if a.keyword is None]
        name = positional[0] if positional else named.get("name")
        value = (
            positional[1]
            if len(positional) > 1
            else next((named[k] for k in ("tensor", "param", "module") if k in named), None)
        )
        if not isinstance(name, cst.SimpleString) or value is None:
            self._unknown(node, f"{code_of(node)}: the name is not written out")
            return
        path = self.prefix + str(name.evaluated_value)
        if isinstance(value, cst.Name) and value.value == "None":
            return
        if method == "register_buffer":
            persistent = positional[2] if len(positional) > 2 else named.get("persistent")
            kept, condition = (True, "True") if persistent is None else self._condition(persistent)
            # What the arguments decide: where it is not persistent, a state dict does not have it.
            before, self.when = self.when, self.when if kept is not None else (*self.when, condition)
            self._tensor(value, path, "buffer", kept is not False, value)
            self.when = before
        elif method == "register_parameter":
            self._module(value, path, None)
        else:
            self._module(value, path, str(name.evaluated_value))


def is_setattr(node: cst.CSTNode, self_name: str) -> bool:
    """`setattr(self, name, module)`."""
    return isinstance(node, cst.Call) and code_of(node.func) == "setattr" and code_of(node.args[0].value) == self_name


def self_call(node: cst.CSTNode, self_name: str) -> tuple[str, str] | None:
    """(`layers`, `append`) of `self.layers.append(...)`, (``, `f`) of `self.f(...)`."""
    name = dotted(node.func) if isinstance(node, cst.Call) else None
    if name is None or not name.startswith(f"{self_name}."):
        return None
    owner, _, method = name.removeprefix(f"{self_name}.").rpartition(".")
    return owner, method
