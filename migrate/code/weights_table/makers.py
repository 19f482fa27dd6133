"""What a call makes whose name is not that of a class: `Bare = partial(nn.Linear, bias=False)`, `layer = nn.Linear`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.context import code_of
from migrate.code.names.resolve import Resolver
from migrate.code.trees.walk import walk

_KNOWN_ROOTS = frozenset({"torch", "numpy", "builtins", "einops", *sys.stdlib_module_names})
"""Libraries of which it is known what gives modules."""


@dataclass(frozen=True)
class Maker:
    """A class or function under another name."""

    name: str
    """Qualified."""
    args: tuple[cst.Arg, ...] = ()
    """What it is called with beforehand."""

    def call(self, node: cst.Call) -> cst.Call:
        """The call as if it were spelled out; keywords of the call win."""
        given = {arg.keyword.value for arg in node.args if arg.keyword is not None}
        before = [arg for arg in self.args if arg.keyword is None]
        keywords = [arg for arg in self.args if arg.keyword is not None and arg.keyword.value not in given]
        return node.with_changes(args=[*before, *node.args, *keywords]) if self.args else node


def maker_of(value: cst.BaseExpression, resolver: Resolver, *, literal: bool) -> Maker | None:
    """What a value makes when it is called.

    Args:
        value: a name, or a `functools.partial`.
        resolver: of the file where it stands.
        literal: whether what a partial gives beforehand must be literals, as its names mean nothing at the call.
    """
    name = resolver.qualified(value)
    if name is not None:
        return Maker(name)
    if not isinstance(value, cst.Call) or resolver.qualified(value.func) != "functools.partial" or not value.args:
        return None
    first, *rest = value.args
    name = resolver.qualified(first.value)
    if name is None or any(arg.star or (literal and not _is_literal(arg.value)) for arg in rest):
        return None
    return Maker(name, tuple(rest))


def variable(analysis: Analysis, name: str) -> tuple[cst.BaseExpression, FileAnalysis] | None:
    """What the one assignment of a module-level name of the repository gives it, and the file where that stands."""
    module, _, local = name.rpartition(".")
    file = analysis.files.get(module)
    if file is None:
        return None
    # An assignment in a function of another variable of this name is counted, too; then nothing is said.
    found = [
        node
        for node in walk(file.tree)
        if isinstance(node, cst.Assign) and any(code_of(target.target) == local for target in node.targets)
    ]
    return (found[0].value, file) if len(found) == 1 else None


def is_foreign(name: str, analysis: Analysis) -> bool:
    """Whether a qualified name is of a library of which nothing is known."""
    root = name.partition(".")[0]
    return (
        name != ""
        and root not in _KNOWN_ROOTS
        and not any(module.partition(".")[0] == root for module in analysis.files)
    )


def is_called(attribute: str, class_name: str, analysis: Analysis) -> bool:
    """Whether methods of a class call `self.attribute(...)`."""
    for owner in analysis.symbols.lineage(class_name):
        info = analysis.symbols.classes.get(owner)
        for method in info.methods.values() if info else ():
            parameters: Sequence[cst.Param] = method.node.params.params
            wanted = f"{parameters[0].name.value}.{attribute}" if parameters else None
            if any(isinstance(node, cst.Call) and code_of(node.func) == wanted for node in walk(method.node.body)):
                return True
    return False


def _is_literal(node: cst.BaseExpression) -> bool:
    try:
        ast.literal_eval(code_of(node))
    except (ValueError, SyntaxError):
        return False
    return True
