"""Converts the torch source of a test case by the table, through the real template expansion."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field

import libcst as cst

from mappings.api import ApiTable, Row
from migrate.code.rows.template import Expansion, expand, expand_symbol, select

# Tables whose rows are members of an object: a case of `torch.Tensor.view` converts every `.view` in its source.
OBJECTS = (
    "torch.Tensor.",
    "torch.nn.Module.",
    "torch.nn.ModuleList.",
    "torch.nn.ModuleDict.",
    "torch.nn.Sequential.",
    "torch.nn.ParameterList.",
    "torch.nn.ParameterDict.",
    "torch.optim.Optimizer.",
    "torch.optim.lr_scheduler.LRScheduler.",
    "torch.optim.lr_scheduler.ReduceLROnPlateau.",
    "torch.optim.swa_utils.AveragedModel.",
    "torch.device.",
)
_SHORT = {"F": "torch.nn.functional", "nn": "torch.nn"}


class NotConverted(AssertionError):
    """A torch name in a case that the table refuses."""


@dataclass
class Converted:
    """MindSpore source and what was used to make it."""

    source: str
    rows: list[Row] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


def is_member(name: str) -> bool:
    """Whether a row is a member of an object (`torch.Tensor.view`) rather than a function."""
    return name.startswith(OBJECTS)


def convert(source: str, case_of: str, table: ApiTable) -> Converted:
    """MindSpore source of a case's torch source.

    Raises:
        NotConverted: a torch name without a row, or a call that the row refuses.
    """
    converter = _Converter(table, case_of)
    module = cst.parse_module(textwrap.dedent(source)).visit(converter)
    return Converted(module.code, converter.rows, converter.imports)


class _Converter(cst.CSTTransformer):
    def __init__(self, table: ApiTable, case_of: str) -> None:
        super().__init__()
        self.table, self.case_of = table, case_of
        owner = case_of.rpartition(".")[0] if is_member(case_of) else None
        names = table.names() if owner else ()
        self.members = {n.rpartition(".")[2]: n for n in names if n.rpartition(".")[0] == owner}
        self.rows: list[Row] = []
        self.imports: set[str] = set()
        self._called: set[int] = set()

    def visit_Call(self, node: cst.Call) -> None:
        self._called.add(id(node.func))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return torch_name(node) is None

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        name = torch_name(original_node.func)
        if name is not None:
            return self._take(select(self.table, name, updated_node.args, None), name)
        func = updated_node.func
        if isinstance(func, cst.Attribute) and (member := self.members.get(func.attr.value)):
            return self._take(select(self.table, member, updated_node.args, func.value), member)
        return updated_node

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        if id(original_node) in self._called:
            return updated_node
        name = torch_name(original_node)
        if name is not None:
            rows = self.table.rows(name)
            if not rows:
                raise NotConverted(f"{name} has no row")
            return self._take(expand_symbol(rows[0], {}), name)
        member = self.members.get(updated_node.attr.value)
        row = self.table.rows(member)[0] if member else None
        if member is None or row is None or row.signature is not None:
            return updated_node  # `x.max(1).values`: a field of a result, or a method that is not called
        return self._take(expand(row, (), updated_node.value), member)

    def _take(self, result: object, name: str) -> cst.BaseExpression:
        if not isinstance(result, Expansion):
            raise NotConverted(f"{name}: {getattr(result, 'reason', result)}")
        self.rows.append(result.row)
        shortened = {"ms": "mindspore", "ops": "mindspore.ops", "nn": "mindspore.nn", "mint": "mindspore.mint"}
        self.imports |= result.imports
        return result.node.visit(_Lengthen(shortened))


class _Lengthen(cst.CSTTransformer):
    """Undoes the usual aliases, so that a case needs no import lines."""

    def __init__(self, full: dict[str, str]) -> None:
        super().__init__()
        self.full = full

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        base = updated_node.value
        if isinstance(base, cst.Name) and base.value in self.full:
            return updated_node.with_changes(value=cst.parse_expression(self.full[base.value]))
        return updated_node


def torch_name(node: cst.BaseExpression) -> str | None:
    """Dotted name of a torch thing in a case; `F.` and `nn.` are short for their namespaces."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name) or not parts:
        return None
    root = _SHORT.get(node.value, node.value)
    return ".".join([root, *reversed(parts)]) if root.split(".")[0] == "torch" else None
