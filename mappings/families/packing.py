"""`is` expressions: how a stored tensor is made of its parts, in the words of numpy.

`concat(axis, a, b)`, `stack(axis, a, b)`, `reshape(a, sizes...)`, `transpose(a, axes...)` over the names of the parts.
`each(x)` stands for `x` of every expert, in ascending order, where `concat` and `stack` take several tensors. Axes and
sizes are whole numbers or expressions over the dimensions; -1 is the size that is left.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from mappings.arrangement import Arrangement, concat, stack
from mappings.expressions import check, evaluate, parsed

Parts = Mapping[str, Arrangement]
FUNCTIONS = ("concat", "stack", "reshape", "transpose")


def check_packing(text: str, parts: Mapping[str, bool], dims: frozenset[str]) -> None:
    """Refuses an expression that could not be packed.

    Args:
        text: the `is` of a row.
        parts: name of each part, and whether it is one of every expert.
        dims: names of dimensions.

    Raises:
        ValueError: unknown word, a part that is not used, or `each` where it does not belong.
    """
    used: set[str] = set()
    _check(parsed(text), parts, dims, text, used, inside=False)
    if unused := set(parts) - used:
        raise ValueError(f"{text!r} does not use {sorted(unused)}")


def packed(text: str, single: Parts, experts: Sequence[Parts], dims: Mapping[str, int]) -> Arrangement:
    """The tensor that `text` makes.

    Args:
        text: an expression that `check_packing` took.
        single: parts there is one of.
        experts: the parts of each expert that is to be packed.
        dims: sizes of the dimensions, those of a rank where the parts are a rank's.

    Raises:
        ValueError: shapes do not fit.
    """
    return _tensor(parsed(text), single, experts, dims)


def _tensor(node: ast.expr, single: Parts, experts: Sequence[Parts], dims: Mapping[str, int]) -> Arrangement:
    match node:
        case ast.Name(id=name):
            return single[name]
        case ast.Call(func=ast.Name(id="reshape"), args=[tensor, *sizes]):
            return _tensor(tensor, single, experts, dims).reshape(*(_number(size, dims) for size in sizes))
        case ast.Call(func=ast.Name(id="transpose"), args=[tensor, *axes]):
            return _tensor(tensor, single, experts, dims).transpose(*(_number(axis, dims) for axis in axes))
        case ast.Call(func=ast.Name(id=function), args=[axis, *tensors]):
            parts = [part for tensor in tensors for part in _tensors(tensor, single, experts, dims)]
            return (stack if function == "stack" else concat)(_number(axis, dims), parts)
    raise ValueError(f"{ast.unparse(node)} is no tensor")


def _tensors(node: ast.expr, single: Parts, experts: Sequence[Parts], dims: Mapping[str, int]) -> Iterator[Arrangement]:
    match node:
        case ast.Call(func=ast.Name(id="each"), args=[tensor]):
            for parts in experts:
                yield _tensor(tensor, {**single, **parts}, (), dims)
        case _:
            yield _tensor(node, single, experts, dims)


def _number(node: ast.expr, dims: Mapping[str, int]) -> int:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return -1
    return evaluate(ast.unparse(node), dims)


def _check(
    node: ast.expr, parts: Mapping[str, bool], dims: frozenset[str], text: str, used: set[str], inside: bool
) -> None:
    match node:
        case ast.Name(id=name) if name in parts:
            used.add(name)
            if parts[name] and not inside:
                raise ValueError(f"{text!r}: {name} is one of every expert, so it belongs into each(...)")
        case ast.Call(func=ast.Name(id="reshape" | "transpose"), args=[tensor, *numbers], keywords=[]):
            _check(tensor, parts, dims, text, used, inside)
            for number in numbers:
                _check_number(number, dims)
        case ast.Call(func=ast.Name(id="concat" | "stack"), args=[axis, _, *_], keywords=[]):
            _check_number(axis, dims)
            for tensor in node.args[1:]:
                match tensor:
                    case ast.Call(func=ast.Name(id="each"), args=[one], keywords=[]) if not inside:
                        _check(one, parts, dims, text, used, inside=True)
                    case _:
                        _check(tensor, parts, dims, text, used, inside)
        case _:
            words = ", ".join((*sorted(parts), *FUNCTIONS))
            raise ValueError(f"{text!r}: {ast.unparse(node)!r} is none of {words}, or each(...) in the wrong place")


def _check_number(node: ast.expr, dims: frozenset[str]) -> None:
    match node:
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=1)):
            return
    check(ast.unparse(node), dims)
