"""What keeps a training step from running as one graph, read from the source: the line and the reason."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.context import FileContext, code_of
from migrate.code.names.symbols import FunctionInfo
from migrate.code.trees.walk import walk

_READS = frozenset({"item", "tolist", "numpy"})
_CONVERSIONS = frozenset({"builtins.float", "builtins.int", "builtins.bool"})
_NO_GRADIENT = frozenset({"torch.no_grad", "torch.inference_mode", "torch.set_grad_enabled", "torch.enable_grad"})
_SHAPED_BY_VALUES = frozenset({"nonzero", "unique", "unique_consecutive", "masked_select", "argwhere"})
_DRAWN = frozenset(
    {"rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial", "rand_like", "randn_like"}
)
_FUNCTION = "torch.autograd.Function"
_LIMIT = 2000
"""Functions that are followed; a repository where a step reaches more is judged by running it."""


def obstacle(context: FileContext, statements: Iterable[cst.CSTNode]) -> str | None:
    """The first line that the computation of a loss reaches and no graph can repeat: `file:line: reason`.

    Follows calls into the functions and modules of the repository as far as their types are known. A line in a branch
    that training never takes counts, too; a compared run has the last word.

    Args:
        context: the file with the training step.
        statements: what computes the loss.
    """
    waiting: list[tuple[FileAnalysis, cst.CSTNode]] = [(context.file, statement) for statement in statements]
    seen: set[cst.CSTNode] = set()
    while waiting and len(seen) < _LIMIT:
        file, root = waiting.pop(0)
        if root in seen:
            continue
        seen.add(root)
        for node in walk(root):
            if reason := _reason(context.analysis, file, node):
                return f"{file.source.path}:{file.line(node)}: {reason}"
            if isinstance(node, cst.Call) and (function := _called(context.analysis, file, node)):
                owner = _file_of(context.analysis, function)
                if owner is not None:
                    waiting.append((owner, function.node.body))
    return None


def _called(analysis: Analysis, file: FileAnalysis, call: cst.Call) -> FunctionInfo | None:
    kind, symbols = file.types.of(call.func), analysis.symbols
    if kind.kind in ("function", "method"):
        return symbols.functions.get(kind.name)
    if kind.kind == "object" and kind.name and symbols.is_module(kind.name):
        return symbols.method(kind.name, "forward")
    return None


def _file_of(analysis: Analysis, function: FunctionInfo) -> FileAnalysis | None:
    name = function.name
    while "." in name:
        name = name.rpartition(".")[0]
        if name in analysis.files:
            return analysis.files[name]
    return None


def _reason(analysis: Analysis, file: FileAnalysis, node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.If | cst.While | cst.IfExp | cst.Assert):
        if file.types.of(node.test).is_tensor:
            return f"the branch depends on the value of {code_of(node.test)}"
        return None
    if not isinstance(node, cst.Call):
        return None
    name = file.resolver.qualified(node.func) or ""
    if name == "builtins.print":
        return "print writes on every call"
    if name.startswith(("random.", "numpy.random.")):
        return "random numbers are drawn in Python"
    if name in _CONVERSIONS and node.args and file.types.of(node.args[0].value).is_tensor:
        return f"{code_of(node)} reads a value back to Python"
    torch_name = file.resolver.torch_name(node.func) or ""
    if torch_name in _NO_GRADIENT:
        return f"{torch_name} is inside of what is differentiated"
    last = torch_name.removeprefix("torch.")
    if last in _SHAPED_BY_VALUES or (last == "where" and len(node.args) == 1):
        return f"{torch_name} gives a shape that depends on values"
    if last in _DRAWN:
        return f"{torch_name} draws random numbers on the host"
    return _method(analysis, file, node)


def _method(analysis: Analysis, file: FileAnalysis, call: cst.Call) -> str | None:
    if not isinstance(call.func, cst.Attribute):
        return None
    method, owner = call.func.attr.value, file.resolver.qualified(call.func.value)
    if method == "apply" and owner and _FUNCTION in analysis.symbols.lineage(owner):
        return f"{owner.rpartition('.')[2]} has a backward of its own"
    if method in _READS | _SHAPED_BY_VALUES and file.types.of(call.func.value).is_tensor:
        if method in _READS:
            return f"{code_of(call)} reads a value back to Python"
        return f"{code_of(call)} gives a shape that depends on values"
    return None
