"""The final renaming: torch names and the methods of torch objects by the rows of the table."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst

from mappings.api import ApiTable, Row, Standing
from migrate.code.context import FileContext
from migrate.code.inference.types import Type
from migrate.code.inference.unpacking import select_unpacked
from migrate.code.passes.base import Pass
from migrate.code.rows.template import Expansion, Refusal, expand, expand_symbol, select

_PARTIAL = "functools.partial"
_MAPPING_METHODS = ("items", "keys", "values", "get", "pop", "update")


def member_of(context: FileContext, base: Type, member: str) -> str | None:
    """The table's name of `object.member`, or what it would be called; None when the object is not torch's."""
    if base.kind == "tensors" and member in _MAPPING_METHODS:
        return None  # a batch may be a dictionary of tensors
    if base.is_tensor or base.kind == "tensors":
        return f"torch.Tensor.{member}"
    if base.kind in ("device", "dtype"):
        return f"torch.{base.kind}.{member}"
    if base.kind == "shape":
        return f"torch.Size.{member}" if f"torch.Size.{member}" in context.table else None
    if base.kind in ("object", "super") and base.name:
        if context.symbols.method(base.name, member) and base.kind == "object":
            return None
        if any((name, member) in context.analysis.facts.attributes for name in context.symbols.lineage(base.name)):
            return None
        return context.symbols.torch_member(base.name, member)
    return None


def missing(table: ApiTable, name: str) -> str:
    """Why a name without a row stays: torch has no such name, or torch has it and no row speaks of it."""
    method = name.startswith("torch.Tensor.")
    subject = f"tensor method {name.removeprefix('torch.Tensor.')}" if method else name
    if table.standing(name) is Standing.UNKNOWN:
        return f"{subject} is no public name of torch"
    return f"{subject} is known to torch, but the table has no row for it"


def as_value(rows: Sequence[Row], target: str, options: bool = False) -> Expansion | Refusal:
    """What a torch name becomes that is not called: its symbol, the MindSpore function, or a lambda.

    A lambda takes the parameters that torch requires, with `options` also those that have defaults.
    """
    refusal: Refusal | None = None
    for row in rows:
        found = expand(row, (), None, target, {}) if row.signature is None and row.portable else None
        found = found if isinstance(found, Expansion) else expand_symbol(row, {})
        if isinstance(found, Expansion):
            return found
        refusal = refusal or found
    assert refusal is not None
    return _as_function(rows, target, options) or refusal


def _as_function(rows: Sequence[Row], target: str, options: bool) -> Expansion | None:
    for row in rows:
        template = row.template(target)
        if row.signature is None or template is None:
            continue
        if (match := re.fullmatch(r"([\w.]+)\(\$\w+\)", template)) and not options:
            return Expansion(cst.parse_expression(match[1]), row, frozenset({match[1]}))
        required = [p.name for p in row.signature.parameters.values() if p.default is p.empty]
        if any(p.kind is p.VAR_POSITIONAL for p in row.signature.parameters.values()):
            continue
        arguments = [cst.Arg(cst.Name(n)) for n in required]
        accepted = [cst.Param(cst.Name(n)) for n in required]
        for p in row.signature.parameters.values() if options else ():
            if p.default is p.empty:
                continue
            more = [*arguments, cst.Arg(cst.Name(p.name), keyword=cst.Name(p.name))]
            if isinstance(expand(row, more, None, target, {}), Expansion):
                arguments = more
                accepted.append(cst.Param(cst.Name(p.name), default=cst.parse_expression(str(p.default))))
        found = expand(row, arguments, None, target, {})
        if isinstance(found, Expansion):
            parameters = cst.Parameters(accepted)
            function = cst.Lambda(parameters, found.node, lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            return Expansion(function, row, found.imports)
    return None


class Names(Pass):
    """Asked last: whatever torch name the passes before it left."""

    enters = (cst.Call, cst.AssignTarget, cst.AnnAssign, cst.Attribute)

    rule = None

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._bound: set[cst.CSTNode] = set()
        """Functions given to `functools.partial`, which names arguments that they need not have."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Call) and node.args and self.context.resolver.qualified(node.func) == _PARTIAL:
            self._bound.add(node.args[0].value)
        if isinstance(node, cst.AssignTarget | cst.AnnAssign) and not self._is_setting(node.target):
            self.context.owned.add(node.target)
        if isinstance(node, cst.Call) and self._is_torch(node.func) and not self._is_class_member(node.func):
            self.context.owned.add(node.func)
        name = self.context.torch_name(node)
        if not isinstance(node, cst.Attribute) or not name or self._is_class_member(node):
            return
        # `torch.float32.itemsize`: an attribute of a known name is converted through that name.
        if name in self.context.table or not self._longest_known(name):
            self._own_chain(node)

    def _is_setting(self, target: cst.BaseExpression) -> bool:
        """`torch.backends.cudnn.benchmark = True`: a switch that the table has under a name, or refuses."""
        name = self.context.torch_name(target) if isinstance(target, cst.Attribute) else None
        rows = self.context.table.rows(name) if name else ()
        return bool(rows) and rows[0].signature is None and (bool(rows[0].symbol) or rows[0].portable is None)

    def _own_chain(self, node: cst.Attribute) -> None:
        inner: cst.BaseExpression = node.value
        while True:
            self.context.owned.add(inner)
            if not isinstance(inner, cst.Attribute):
                return
            inner = inner.value

    def _longest_known(self, name: str) -> str | None:
        parts = name.split(".")
        for length in range(len(parts) - 1, 1, -1):
            prefix = ".".join(parts[:length])
            if any(row.status != "unsupported" for row in self.context.table.rows(prefix)):
                return prefix
        return None

    def _is_torch(self, node: cst.BaseExpression) -> bool:
        return self.context.torch_name(node) is not None or self._member(node) is not None

    def _is_class_member(self, node: cst.BaseExpression) -> bool:
        """`nn.Linear.reset_parameters`: a method of a class that the table knows, by way of the class."""
        name = self.context.torch_name(node)
        if name is None or not isinstance(node, cst.Attribute):
            return False
        same = f"$self.{node.attr.value}("
        rows = self.context.table.rows(name)
        if not all(row.status == "same" and (row.portable or "").startswith(same) for row in rows):
            return False
        return any(row.symbol and row.returns == "module" for row in self.context.table.rows(name.rpartition(".")[0]))

    def _member(self, node: cst.BaseExpression) -> str | None:
        if not isinstance(node, cst.Attribute):
            return None
        return member_of(self.context, self.context.type_of(node.value), node.attr.value)

    # -- calls
    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        name = self.context.torch_name(original.func)
        if self._is_class_member(original.func):
            return None  # `nn.Linear.__init__(self, ...)`: the class is renamed, its method is not
        if name is not None:
            return self._convert_call(name, original, updated, None)
        if not isinstance(original.func, cst.Attribute) or not isinstance(updated.func, cst.Attribute):
            return None
        name = self._member(original.func)
        return None if name is None else self._convert_call(name, original, updated, updated.func.value)

    def _convert_call(
        self, name: str, original: cst.Call, updated: cst.Call, receiver: cst.BaseExpression | None
    ) -> cst.BaseExpression | None:
        if name == "torch.Tensor.copy_" and name not in self.context.table:
            self.context.counts.add(name, converted=True)
            self.context.lines.add(original, "C206", name)
            return updated  # the one in-place method of MindSpore that changes its tensor
        found = select(self.context.table, name, updated.args, receiver, self.context.target, {})
        if isinstance(found, Refusal) and any(arg.star for arg in updated.args):
            unpacked = select_unpacked(self.context.table, name, updated.args, receiver, self.context.target, {})
            found = unpacked or found
        if isinstance(found, Expansion):
            self.context.accept(name, found)
            return _keep_parentheses(updated, _keep_layout(updated, found.node))
        self.refused(name, original, found)
        return None

    def refused(self, name: str, node: cst.CSTNode, refusal: Refusal) -> None:
        """Count and report a name that stays as it is."""
        rows = self.context.table.rows(name)
        self.context.counts.add(name, converted=False)
        if not rows:
            self.context.report("M110", node, missing(self.context.table, name))
        elif self._is_namespace(name):
            self.context.report("M113", node, f"{name}: {refusal.reason}")
        elif all(row.status == "unsupported" for row in rows):
            self.context.report("M111", node, f"{name}: {refusal.reason}")
        else:
            self.context.report("M112", node, f"{name}: {refusal.reason}")

    # -- names that are not called
    def reference(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        name = self.context.torch_name(original)
        if self._is_class_member(original):
            return None
        if name is not None:
            if self.context.resolver.is_alias(original):
                return None  # where the alias is defined it becomes one of the new name
            if name not in self.context.table and isinstance(original, cst.Attribute) and self._longest_known(name):
                return None
            return self._convert_reference(name, original, updated)
        if isinstance(original, cst.Attribute) and isinstance(updated, cst.Attribute):
            member = self._member(original)
            if member is not None and member in self.context.table:
                row = self.context.table.rows(member)[0]
                if row.signature is not None:
                    return None  # a bound method passed as a value
                found = expand(row, (), updated.value, self.context.target, {})
                if isinstance(found, Expansion):
                    self.context.accept(member, found)
                    return _keep_parentheses(updated, found.node)
                self.refused(member, original, found)
        return None

    def _convert_reference(
        self, name: str, original: cst.Name | cst.Attribute, updated: cst.BaseExpression
    ) -> cst.BaseExpression | None:
        rows = self.context.table.rows(name)
        if not rows:
            self.context.counts.add(name, converted=False)
            if self._is_namespace(name):
                self.context.report("M113", original, f"the module {name} is used as a value")
            else:
                self.context.report("M110", original, missing(self.context.table, name))
            return None
        found = as_value(rows, self.context.target, original in self._bound)
        if isinstance(found, Expansion):
            self.context.accept(name, found)
            return _keep_parentheses(updated, found.node)
        self.refused(name, original, found)
        return None

    def _is_namespace(self, name: str) -> bool:
        return name == "torch" or any(known.startswith(f"{name}.") for known in self.context.table.names())


def _keep_layout(updated: cst.Call, new: cst.BaseExpression) -> cst.BaseExpression:
    """Line breaks behind the opening bracket and before the dot stay, if the new expression is a call as well."""
    if not isinstance(new, cst.Call):
        return new
    if new.args and updated.args:
        new = new.with_changes(whitespace_before_args=updated.whitespace_before_args)
    old = updated.func
    if isinstance(new.func, cst.Attribute) and isinstance(old, cst.Attribute) and new.func.value is old.value:
        new = new.with_changes(func=new.func.with_changes(dot=old.dot))
    return new


def _keep_parentheses(updated: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """The parentheses that stood around the old expression stand around the new one."""
    if not updated.lpar or new.lpar:
        return new
    return new.with_changes(lpar=updated.lpar, rpar=updated.rpar)
