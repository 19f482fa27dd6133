"""`.to(...)`: devices vanish, data types stay; device variables and parameters of user functions are left alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

import libcst as cst
import libcst.matchers as m

from migrate.code.passes.base import Pass
from migrate.code.rows.template import Expansion, select

MOVED = "ms_compat.transfer.moved"
"""Decides at run time where the type of the object or of the argument is not known."""
_DEVICE = re.compile(r"(cpu|cuda|mps|npu|xpu|hpu|xla|ipu|meta|mkldnn|vulkan|privateuseone)(:\d+)?")
_TRANSFER_OPTIONS = ("non_blocking", "copy", "memory_format")


class Devices(Pass):
    """MindSpore places tensors itself; a transfer is the identity, a change of data type is not."""

    enters = (cst.Call,)

    rule = "C204"

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Call) and self._name(node):
            self.context.owned.add(node.func)

    def _name(self, node: cst.Call) -> str | None:
        """The torch method that a `.to(...)` call is; None when it is the repository's own or cannot be told."""
        if not m.matches(node.func, m.Attribute(attr=m.Name("to"))):
            return None
        assert isinstance(node.func, cst.Attribute)
        base = self.context.type_of(node.func.value)
        if base.is_tensor or base.kind == "tensors":
            return "torch.Tensor.to"
        if base.kind == "object" and base.name:
            if self.context.symbols.method(base.name, "to"):
                return None
            return "torch.nn.Module.to" if self.context.symbols.is_module(base.name) else None
        if not base.is_known and self.context.uses_torch and self.context.resolver.qualified(node.func) is None:
            return None if any(_is_other_text(arg.value) for arg in node.args) else "torch.Tensor.to"
        return None

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        name = self._name(original)
        if name is None:
            return None
        assert isinstance(updated.func, cst.Attribute)
        receiver = self.context.type_of(original.func.value)  # type: ignore[attr-defined]
        if not all(self._is_clear(arg) for arg in original.args) or not (
            receiver.is_known or self._only_moves(original)
        ):
            self.context.counts.add(name, converted=True)
            self.context.lines.add(original, "C205")
            arguments = [cst.Arg(updated.func.value), *updated.args]
            return cst.Call(cst.parse_expression(MOVED), arguments)
        kept: list[cst.Arg] = []
        for before, after in zip(original.args, updated.args, strict=True):
            if self._is_transfer(before):
                continue
            kind = self.context.type_of(before.value)
            if kind.is_tensor:
                kept.append(after.with_changes(keyword=None, value=cst.Attribute(after.value, cst.Name("dtype"))))
            else:
                kept.append(after)
        if not kept:
            self.context.counts.add(name, converted=True)
            if not receiver.is_known:
                self.context.lines.add(original, "C216")
            return updated.func.value
        return self._with_dtype(name, original, updated, kept)

    def _with_dtype(
        self, name: str, original: cst.Call, updated: cst.Call, kept: Sequence[cst.Arg]
    ) -> cst.BaseExpression:
        assert isinstance(updated.func, cst.Attribute)
        arguments = [a.with_changes(comma=cst.MaybeSentinel.DEFAULT) for a in kept]
        found = select(self.context.table, name, arguments, updated.func.value, self.context.target, {})
        if isinstance(found, Expansion):
            self.context.accept(name, found)
            return found.node
        self.context.counts.add(name, converted=False)
        self.context.report("M112", original, f"{name}: {found.reason}")
        return updated

    def _only_moves(self, node: cst.Call) -> bool:
        return all(self._is_transfer(arg) for arg in node.args)

    def _is_clear(self, arg: cst.Arg) -> bool:
        """Whether it is known what an argument does."""
        kind = self.context.type_of(arg.value)
        is_dtype = kind.kind == "dtype" or (arg.keyword is not None and arg.keyword.value == "dtype")
        return self._is_transfer(arg) or kind.is_tensor or is_dtype

    def _is_transfer(self, arg: cst.Arg) -> bool:
        """Whether an argument of `.to` only says where the data goes."""
        if arg.star:
            return False
        if arg.keyword is not None:
            return arg.keyword.value in (*_TRANSFER_OPTIONS, "device")
        kind = self.context.type_of(arg.value).kind
        # The only text that `.to` takes is a device, the only plain number a device index.
        return kind in ("device", "value") or isinstance(
            arg.value, cst.SimpleString | cst.FormattedString | cst.Integer
        )


def _is_other_text(node: cst.BaseExpression) -> bool:
    """`quantity.to("meter")`: a text that names no device, so the object is none of torch's."""
    if isinstance(node, cst.FormattedString):
        text = "".join(part.value if isinstance(part, cst.FormattedStringText) else "0" for part in node.parts)
        return not re.fullmatch(r"\w+(:\d+)?", text)
    if not isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        return False
    return not _DEVICE.fullmatch(str(node.evaluated_value))
