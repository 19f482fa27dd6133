"""The pass that writes the changes of `--shard`; it runs before all others, on calls and numbers that it owns."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass
from migrate.code.shard.changes import ENTER, Changes, after_base_constructor
from migrate.code.shard.layers import SIGNATURES

_CELLS = "ms_compat.split_layers"
_WHOLE_OPTIMIZERS = frozenset({"Adafactor", "LBFGS", "Muon"})
_REPLICAS = frozenset({"DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "DistributedSampler"})


class Shard(Pass):
    """Layers, lengths and entering tensors of cut blocks."""

    rule = "C213"
    enters = (cst.Call,)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self.changes: Changes = context.analysis.sharding or Changes()

    def enter(self, node: cst.CSTNode) -> None:
        if node in self.changes.refused:
            self.context.report("M701", node, self.changes.refused[node])
        if node in self.changes.layers:
            assert isinstance(node, cst.Call)
            self.context.owned.add(node.func)

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        new = self.changes.layers.get(original)
        if new is None:
            if self.changes.layers and (reason := _needs_wholes(self.context.torch_name(original.func))):
                self.context.report("M703", original, reason)
            return self._number_or_tensor(original, updated)
        self.context.counts.add(new.torch_name, converted=True)
        names = SIGNATURES[new.torch_name]
        args: list[cst.Arg] = []
        for position, (given, arg) in enumerate(zip(original.args, updated.args, strict=True)):
            name = given.keyword.value if given.keyword is not None else names[position]
            if name == "device":
                continue
            is_positional = given.keyword is None and position < 3
            args.append(arg if is_positional else _keyword(name, arg.value))
        for name, text in new.keywords:
            args.append(_keyword(name, cst.parse_expression(text)))
        args[-1] = args[-1].with_changes(comma=updated.args[-1].comma if updated.args else cst.MaybeSentinel.DEFAULT)
        return updated.with_changes(func=cst.parse_expression(f"{_CELLS}.{new.cell}"), args=args)

    def reference(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        return self._number_or_tensor(original, updated)

    def operation(self, original: cst.BinaryOperation, updated: cst.BinaryOperation) -> cst.BaseExpression | None:
        return self._number_or_tensor(original, updated)

    def _number_or_tensor(self, original: cst.CSTNode, updated: cst.BaseExpression) -> cst.BaseExpression | None:
        changes = self.changes
        if original in changes.inferred:
            return cst.parse_expression("-1")
        if original in changes.shares:
            return cst.Call(cst.parse_expression(f"{_CELLS}.local"), [cst.Arg(updated)])
        if original in changes.entered:
            return cst.Call(cst.parse_expression(f"self.{ENTER}"), [cst.Arg(updated)])
        return None

    def function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> cst.FunctionDef | None:
        if original in self.changes.constructors:
            made = cst.parse_statement(f"self.{ENTER} = {_CELLS}.EnterParallel()")
            position = after_base_constructor(updated)
            assert position is not None, "a constructor without a base's was refused before"
            return _inserted(updated, position, [made])
        if original in self.changes.methods:
            lines = [cst.parse_statement(f"{n} = self.{ENTER}({n})") for n in self.changes.methods[original]]
            return _inserted(updated, _after_docstring(updated), lines)
        return None


def _needs_wholes(name: str | None) -> str | None:
    """Why a call of torch does not fit layers that are cut; None if it does."""
    if name is None:
        return None
    last = name.rpartition(".")[2]
    if name.startswith("torch.optim.") and last in _WHOLE_OPTIMIZERS:
        return f"{last} looks at whole gradients, and a rank has pieces of them"
    return f"{last} takes all ranks for replicas" if last in _REPLICAS else None


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    tight = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
    return cst.Arg(value, keyword=cst.Name(name), equal=tight)


def _inserted(
    function: cst.FunctionDef, position: int, lines: list[cst.SimpleStatementLine | cst.BaseCompoundStatement]
) -> cst.FunctionDef:
    body = list(function.body.body)
    body[position:position] = lines
    return function.with_changes(body=function.body.with_changes(body=body))


def _after_docstring(function: cst.FunctionDef) -> int:
    first = function.body.body[0] if function.body.body else None
    return 1 if m.matches(first, m.SimpleStatementLine(body=[m.Expr(m.SimpleString())])) else 0  # type: ignore[arg-type]
