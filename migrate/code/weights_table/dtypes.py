"""Types of the tensors that a constructor makes, in safetensors' words, under torch's default type."""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from migrate.code.names.resolve import Resolver

STORED = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float16": "F16",
    "bfloat16": "BF16", "float32": "F32", "float64": "F64", "complex64": "C64",
}  # fmt: skip
"""Names of types in torch and numpy -> in safetensors; no others are known here."""

_ALIASES = {"half": "F16", "float": "F32", "double": "F64", "short": "I16", "int": "I32", "long": "I64"}
_CASTS = {**STORED, **_ALIASES}
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
DEFAULT = "F32"
_MADE = frozenset(f"torch.{name}" for name in ("zeros", "ones", "empty", "rand", "randn", "eye", "linspace"))
_LIKE_FIRST = frozenset(
    f"torch.{name}"
    for name in ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like", "full_like", "tril", "triu", "abs")
)
_KEEP = frozenset(
    """
        view reshape clone detach contiguous normal_ uniform_ fill_ zero_ mul_ add_ requires_grad_ tril triu unsqueeze
        squeeze transpose permute expand repeat flatten t
    """.split()  # noqa: SIM905 (many quotes are harder to read)
)
"""Methods whose result has the type of the tensor."""
_KEEP_FLOAT = frozenset({"cos", "sin", "exp", "log", "sqrt", "rsqrt"})


def given_dtype(node: cst.BaseExpression, resolver: Resolver) -> str | None:
    """The type that `torch.float16` or `torch.half` names; None for other expressions."""
    name = resolver.torch_name(node)
    return None if name is None else _CASTS.get(name.removeprefix("torch."))


def tensor_dtype(node: cst.BaseExpression, resolver: Resolver) -> str | None:
    """The type of a tensor expression; None if it cannot be read off."""
    if isinstance(node, cst.UnaryOperation):
        return tensor_dtype(node.expression, resolver) if not isinstance(node.operator, cst.Not) else None
    if isinstance(node, cst.BinaryOperation):
        # A number leaves a floating tensor as it is; it may turn a tensor of integers into one of floats.
        sides = [tensor_dtype(side, resolver) for side in (node.left, node.right)]
        numbers = [isinstance(side, cst.Integer | cst.Float) for side in (node.left, node.right)]
        found = sides[0] if numbers[1] else sides[1] if numbers[0] else None
        return found if found in _FLOATS else None
    if not isinstance(node, cst.Call):
        return None
    name = resolver.torch_name(node.func)
    positional = [arg.value for arg in node.args if arg.keyword is None and not arg.star]
    given = next((arg.value for arg in node.args if arg.keyword and arg.keyword.value == "dtype"), None)
    if given is not None:
        return given_dtype(given, resolver)
    if name in _MADE:
        return DEFAULT
    if name in _LIKE_FIRST and positional:
        return tensor_dtype(positional[0], resolver)
    if name == "torch.full" and len(positional) > 1:
        return _of_numbers(positional[1:2])
    if name == "torch.arange" and positional:
        return _of_numbers(positional)
    if name == "torch.tensor" and positional:
        return _of_numbers(positional[:1])
    if name is None and isinstance(node.func, cst.Attribute):
        return _of_method(node.func, positional, resolver)
    return None


def _of_method(func: cst.Attribute, positional: Sequence[cst.BaseExpression], resolver: Resolver) -> str | None:
    method = func.attr.value
    before = tensor_dtype(func.value, resolver)
    if before is None:
        return None
    if method in ("half", "float", "double", "bfloat16", "short", "int", "long", "bool") and not positional:
        return _CASTS[method]
    if method == "to" and len(positional) == 1:
        return given_dtype(positional[0], resolver)
    if method in _KEEP or (method in _KEEP_FLOAT and before in _FLOATS):
        return before
    return None


def _of_numbers(nodes: Sequence[cst.BaseExpression]) -> str | None:
    """The type that torch gives literals: floats win over integers, integers over booleans."""
    found: set[str | None] = set()
    for node in nodes:
        if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Minus | cst.Plus):
            node = node.expression
        if isinstance(node, cst.List | cst.Tuple):
            found.add(_of_numbers([element.value for element in node.elements]))
        elif isinstance(node, cst.Float):
            found.add(DEFAULT)
        elif isinstance(node, cst.Integer):
            found.add("I64")
        elif isinstance(node, cst.Name) and node.value in ("True", "False"):
            found.add("BOOL")
        else:
            found.add(None)
    if not found or None in found:
        return None
    return next(dtype for dtype in (DEFAULT, "I64", "BOOL") if dtype in found)
