"""Which functions of the repository a call may run, and what it gives them."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import FileContext
from migrate.code.names.symbols import FunctionInfo


def called_functions(context: FileContext, node: cst.Call) -> list[FunctionInfo]:
    """The repository's functions that a call may run: of a module its `forward`, of a class its `__init__`."""
    found, symbols = context.type_of(node.func), context.symbols
    if found.kind in ("function", "method"):
        return [symbols.functions[found.name]] if found.name in symbols.functions else []
    methods: list[FunctionInfo | None] = []
    for one in found.alternatives:
        if one.kind == "object":
            forward = symbols.method(one.name, "forward") if symbols.is_module(one.name) else None
            methods.append(forward or symbols.method(one.name, "__call__"))
        elif one.kind == "class":
            methods.append(symbols.method(one.name, "__init__"))
    return [method for method in methods if method is not None]


def argument(function: FunctionInfo, parameter: str, call: cst.Call) -> cst.BaseExpression | None:
    """What a call gives for a parameter; what a star gives counts as given by the starred name."""
    keyword_only = {p.name.value for p in function.node.params.kwonly_params}
    positional = [p.name.value for p in function.parameters if p.name.value not in keyword_only]
    position = 0
    for arg in call.args:
        if arg.star:
            return arg.value
        if arg.keyword is not None:
            if arg.keyword.value == parameter:
                return arg.value
        else:
            if position < len(positional) and positional[position] == parameter:
                return arg.value
            position += 1
    return None


__all__ = ["argument", "called_functions"]
