"""What keeps a step of training or generation from running as one graph, read from the source: line and reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.context import FileContext, code_of
from migrate.code.dataflow.called import called_functions
from migrate.code.dataflow.generation_loops import GenerationStep
from migrate.code.dataflow.growing import changing_argument, growing_state
from migrate.code.names.symbols import FunctionInfo
from migrate.code.trees.walk import walk

_READS = frozenset({"item", "tolist", "numpy"})
_CONVERSIONS = frozenset({"builtins.float", "builtins.int", "builtins.bool"})
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
    for file, root in _reached(context.analysis, [(context.file, statement) for statement in statements]):
        if reason := _obstacle_in(context.analysis, file, root):
            return reason
    return None


def generation_obstacle(context: FileContext, step: GenerationStep) -> str | None:
    """The same for a call of a model in a loop of generation, whose results go into its next call."""
    for file, root in _reached(context.analysis, _bodies(context, step)):
        if reason := _obstacle_in(context.analysis, file, root):
            return reason
    return None


def changing_shapes(context: FileContext, step: GenerationStep) -> str | None:
    """The line that gives every step of generation another shape or number, so that each would be another graph."""
    if found := changing_argument(context, step):
        return f"{context.file.source.path}:{context.file.line(found[0])}: {found[1]}"
    for file, body in _reached(context.analysis, _bodies(context, step)):
        if grown := growing_state(body):
            return f"{file.source.path}:{file.line(grown)}: {code_of(grown)} grows at every step"
    return None


def _bodies(context: FileContext, step: GenerationStep) -> list[tuple[FileAnalysis, cst.CSTNode]]:
    found = [(_file_of(context.analysis, f), f.node.body) for f in called_functions(context, step.call)]
    return [(file, body) for file, body in found if file is not None]


def _reached(
    analysis: Analysis, start: list[tuple[FileAnalysis, cst.CSTNode]]
) -> Iterator[tuple[FileAnalysis, cst.CSTNode]]:
    """The code itself, then the bodies of the functions that it calls, and so on; each once."""
    waiting, seen = list(start), set[cst.CSTNode]()
    while waiting and len(seen) < _LIMIT:
        file, root = waiting.pop(0)
        if root in seen:
            continue
        seen.add(root)
        yield file, root
        for node in walk(root):
            if isinstance(node, cst.Call) and (function := _called(analysis, file, node)):
                owner = _file_of(analysis, function)
                if owner is not None:
                    waiting.append((owner, function.node.body))


def _obstacle_in(analysis: Analysis, file: FileAnalysis, root: cst.CSTNode) -> str | None:
    handed_on: set[cst.CSTNode] = set()
    for node in walk(root):
        handed_on |= _handed_on(node)
        if node in handed_on:
            continue
        if reason := _reason(analysis, file, node):
            return f"{file.source.path}:{file.line(node)}: {reason}"
    return None


def _handed_on(node: cst.CSTNode) -> set[cst.CSTNode]:
    """Reads of values that only go into a container: they are read when the graph has run."""
    value: cst.CSTNode | None = None
    is_item = isinstance(node, cst.Assign) and all(isinstance(target.target, cst.Subscript) for target in node.targets)
    if is_item or isinstance(node, cst.DictElement):
        assert isinstance(node, cst.Assign | cst.DictElement)
        value = node.value
    reads: set[cst.CSTNode] = set()
    while isinstance(value, cst.Call) and isinstance(value.func, cst.Attribute) and value.func.attr.value in _READS:
        reads.add(value)
        value = value.func.value
    return reads


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
