"""Members of tensors and modules that no row speaks of: attributes, methods taken as values, names given as strings.

The renaming leaves what it does not know; here it is said. A method as a value stays where MindSpore's takes the same
arguments, `torch.Tensor.sum` becomes a function of the tensor.
"""

from __future__ import annotations

import keyword
from weakref import WeakKeyDictionary

import libcst as cst

from mappings.api import Row, Standing, known_names
from migrate.code.analysis import Analysis
from migrate.code.context import FileContext, code_of
from migrate.code.inference.types import Type
from migrate.code.names.symbols import Symbols
from migrate.code.passes.base import Pass
from migrate.code.passes.names import missing
from migrate.code.rows.template import Expansion, expand, select
from migrate.code.trees.walk import walk

_TENSOR, _MODULE = "torch.Tensor.", "torch.nn.Module."
_PRIVATE = frozenset(
    {
        "_backward_hooks", "_backward_pre_hooks", "_call_impl", "_forward_hooks", "_forward_pre_hooks",
        "_forward_hooks_with_kwargs", "_load_state_dict_post_hooks", "_load_state_dict_pre_hooks", "_modules",
        "_parameters", "_register_load_state_dict_pre_hook", "_register_state_dict_hook", "_state_dict_hooks",
    }
)  # fmt: skip
"""Of modules: known to many programs, and other in MindSpore's cells."""
_ANSWERED = frozenset({"forward"})
"""Public names without a row that converted modules have."""


class Members(Pass):
    """Answers before the renaming for members that it would leave without a word."""

    rule = None
    enters = (cst.Call,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._called: set[cst.CSTNode] = set()

    def enter(self, node: cst.CSTNode) -> None:
        assert isinstance(node, cst.Call)
        self._called.add(node.func)

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        question = self.context.resolver.qualified(original.func)
        if question in ("builtins.getattr", "builtins.hasattr") and len(original.args) >= 2:
            return self._asked(question == "builtins.hasattr", original, updated)
        name = self.context.torch_name(original.func)
        if name is not None and name.startswith(_TENSOR) and original.args and not original.args[0].star:
            return self._unbound(name, original, updated)
        if isinstance(original.func, cst.Attribute):
            base = self.context.type_of(original.func.value)
            if self._is_module(base) and (reason := self._module_gap(base, original.func.attr.value)):
                self.context.counts.add(f"{_MODULE}{original.func.attr.value}", converted=False)
                self.context.report("M110", original, reason)
                return updated
        return None

    def reference(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        name = self.context.torch_name(original)
        if name is not None:
            return self._function(name) if name.startswith(_TENSOR) else None
        if not isinstance(original, cst.Attribute) or original in self._called:
            return None
        base, attribute = self.context.type_of(original.value), original.attr.value
        if base.is_tensor:
            self._tensor_attribute(original, attribute)
        elif self._is_module(base) and (reason := self._module_gap(base, attribute)):
            self.context.counts.add(f"{_MODULE}{attribute}", converted=False)
            self.context.report("M110", original, reason)
        return None

    # -- tensors
    def _tensor_attribute(self, node: cst.Attribute, attribute: str) -> None:
        name = f"{_TENSOR}{attribute}"
        rows = self.context.table.rows(name)
        if (rows and rows[0].signature is None) or attribute.startswith("__"):
            return
        if not rows:
            if attribute not in set_attributes(self.context.analysis):
                reason = missing(self.context.table, name).replace("tensor method", "tensor attribute")
                self._refuse("M110", name, node, reason)
        elif not _is_same_method(rows, attribute, self.context.target):
            message = f"the method {code_of(node)} is used as a value; write a lambda that calls it"
            self._refuse("M112", name, node, message)

    def _asked(self, only_whether: bool, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """`getattr(x, "T")`, `hasattr(x, "grad_fn")`."""
        base = self.context.type_of(original.args[0].value)
        attribute = original.args[1].value
        if not base.is_tensor:
            return None
        if not isinstance(attribute, cst.SimpleString):
            self._refuse(
                "M113", "torch.Tensor", original, f"{code_of(original)} picks a member of a tensor at run time"
            )
            return updated
        name = f"{_TENSOR}{attribute.raw_value}"
        rows = self.context.table.rows(name)
        if not rows:
            if self.context.table.standing(name) is not Standing.UNKNOWN:
                self._refuse("M110", name, original, missing(self.context.table, name))
            return updated
        if only_whether:
            return updated
        if rows[0].signature is None:
            found = expand(rows[0], (), updated.args[0].value, self.context.target, {})
            if isinstance(found, Expansion):
                self.context.accept(name, found)
                return found.node
            self._refuse("M112", name, original, found.reason)
        elif not _is_same_method(rows, attribute.raw_value, self.context.target):
            self._refuse("M112", name, original, f"{code_of(original)} takes a method as a value; call it with a dot")
        return updated

    def _unbound(self, name: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """`torch.Tensor.sum(x, 1)` is `x.sum(1)`."""
        receiver = updated.args[0].value
        if not isinstance(receiver, cst.Name | cst.Attribute | cst.Call | cst.Subscript) and not receiver.lpar:
            receiver = receiver.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        found = select(self.context.table, name, updated.args[1:], receiver, self.context.target, {})
        if not isinstance(found, Expansion):
            return None
        self.context.accept(name, found)
        return found.node

    def _function(self, name: str) -> cst.BaseExpression | None:
        """`torch.Tensor.sum` as a value."""
        for row in self.context.table.rows(name):
            if row.signature is None:
                continue
            required = [p.name for p in row.signature.parameters.values() if p.default is p.empty]
            if any(p.kind is p.VAR_POSITIONAL for p in row.signature.parameters.values()):
                continue
            holder = next(n for n in ("x", "tensor", "receiver") if n not in required)
            required = [f"{n}_" if keyword.iskeyword(n) else n for n in required]
            found = expand(row, [cst.Arg(cst.Name(n)) for n in required], cst.Name(holder), self.context.target, {})
            if isinstance(found, Expansion):
                self.context.counts.add(name, converted=True)
                parameters = cst.Parameters([cst.Param(cst.Name(n)) for n in (holder, *required)])
                return cst.Lambda(parameters, found.node, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        return None

    # -- modules
    def _is_module(self, kind: Type) -> bool:
        return kind.kind in ("object", "super") and bool(kind.name) and self.context.symbols.is_module(kind.name)

    def _module_gap(self, base: Type, member: str) -> str | None:
        """Why a member of a module is not there after the conversion; None if it is, or is the program's own."""
        symbols, name = self.context.symbols, f"{_MODULE}{member}"
        lineage = symbols.lineage(base.name)
        if symbols.method(base.name, member) or symbols.torch_member(base.name, member) or member in _ANSWERED:
            return None
        if any((owner, member) in self.context.analysis.facts.attributes for owner in lineage):
            return None
        if member in _PRIVATE and name not in self.context.table:
            return f"{name} is private to torch; a cell keeps these things elsewhere"
        return missing(self.context.table, name) if name in known_names() else None

    def _refuse(self, code: str, name: str, node: cst.CSTNode, message: str) -> None:
        self.context.counts.add(name, converted=False)
        self.context.report(code, node, message)


_set: WeakKeyDictionary[Symbols, frozenset[str]] = WeakKeyDictionary()


def set_attributes(analysis: Analysis) -> frozenset[str]:
    """Names of attributes that the repository sets on any object: `parameter.decay = True`."""
    if analysis.symbols not in _set:
        nodes = (node for file in analysis.files.values() for node in walk(file.tree))
        targets = (node.target for node in nodes if isinstance(node, cst.AssignTarget | cst.AnnAssign))
        _set[analysis.symbols] = frozenset(t.attr.value for t in targets if isinstance(t, cst.Attribute))
    return _set[analysis.symbols]


def _is_same_method(rows: tuple[Row, ...], method: str, target: str) -> bool:
    """Whether MindSpore's tensors have the method with the same parameters, so that it can be passed on."""
    templates = {row.template(target) for row in rows}
    if len(templates) != 1 or rows[0].signature is None:
        return False
    parameters = rows[0].signature.parameters.values()
    plain = ", ".join(f"$*{p.name}" if p.kind is p.VAR_POSITIONAL else f"${p.name}" for p in parameters)
    named = ", ".join(f"{p.name}=${p.name}" for p in parameters)
    return templates <= {f"$self.{method}({plain})", f"$self.{method}({named})"}


__all__ = ["Members"]
