"""What annotations state."""

from __future__ import annotations

import libcst as cst

from migrate.code.inference.library_types import is_class, is_output
from migrate.code.inference.types import (
    DEVICE,
    DTYPE,
    NONE,
    NUMBER,
    PARAMETER,
    SHAPE,
    TENSOR,
    UNKNOWN,
    Type,
    either,
    instance,
    join_known,
    list_of,
    tuple_of,
)
from migrate.code.names.resolve import Resolver
from migrate.code.names.symbols import Symbols
from migrate.code.trees.dotted import dotted

_LIST_ANNOTATIONS = {"builtins.list", "typing.List", "typing.Sequence", "typing.Iterable", "typing.Iterator",
                     "collections.abc.Sequence", "collections.abc.Iterable", "collections.abc.Iterator"}  # fmt: skip
_TUPLE_ANNOTATIONS = {"builtins.tuple", "typing.Tuple"}
_DICT_ANNOTATIONS = {"builtins.dict", "typing.Dict", "typing.Mapping", "collections.abc.Mapping"}
_NUMBER_ANNOTATIONS = {"builtins.int", "builtins.float", "builtins.bool", "builtins.complex"}
_ANY_ANNOTATIONS = {"typing.Any", "builtins.object"}


class Annotations:
    """Annotations of one file, read with that file's names."""

    def __init__(self, symbols: Symbols, resolver: Resolver) -> None:
        self.symbols, self.resolver = symbols, resolver

    def read(self, node: cst.BaseExpression | None) -> Type | None:
        """The type an annotation states; None if it states nothing."""
        if node is None:
            return None
        if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
            quoted = unquoted(node)
            return None if quoted is None else self.read(quoted)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.BitOr):
            sides = [self.read(node.left), self.read(node.right)]
            return self._output(sides) or either(*sides)
        if isinstance(node, cst.Subscript):
            return self._subscripted(node)
        if isinstance(node, cst.Name) and node.value == "None":
            return NONE
        name = self._name(node)
        if name is None or name in _ANY_ANNOTATIONS:
            return None
        if name in _NUMBER_ANNOTATIONS:
            return NUMBER
        if name in ("torch.Tensor", "torch.FloatTensor", "torch.LongTensor", "torch.BoolTensor"):
            return TENSOR
        if name == "torch.nn.Parameter":
            return PARAMETER
        if name in ("torch.dtype", "torch.device", "torch.Size"):
            return {"dtype": DTYPE, "device": DEVICE, "Size": SHAPE}[name.rpartition(".")[2]]
        if name in self.symbols.classes or name.startswith("torch.") or is_class(name):
            return instance(name)
        if name in _LIST_ANNOTATIONS or name in _TUPLE_ANNOTATIONS:
            return list_of(UNKNOWN)
        return Type("dict", items=(UNKNOWN,)) if name in _DICT_ANNOTATIONS else Type("value", name)

    def _subscripted(self, node: cst.Subscript) -> Type | None:
        name = self._name(node.value)
        inner = [self.read(e.slice.value) for e in node.slice if isinstance(e.slice, cst.Index)]
        if name in ("typing.Optional", "typing.Union"):
            return self._output(inner) or (
                join_known([t for t in inner if t is not None]) if None not in inner else None
            )
        if name is not None and name.startswith("jaxtyping.") and inner:
            return inner[0]  # `Float[Tensor, "b n d"]`
        if name in _LIST_ANNOTATIONS and inner:
            return list_of(inner[0] or UNKNOWN)
        if name in _DICT_ANNOTATIONS and len(inner) == 2:
            return Type("dict", items=(inner[1] or UNKNOWN,))
        if name in _TUPLE_ANNOTATIONS and inner:
            second = node.slice[-1].slice
            if isinstance(second, cst.Index) and isinstance(second.value, cst.Ellipsis):
                return list_of(inner[0] or UNKNOWN)
            return tuple_of(*[t or UNKNOWN for t in inner])
        return None

    def _output(self, alternatives: list[Type | None]) -> Type | None:
        """The output of `Union[Tuple, ModelOutput]`: whoever asks for its fields has got no tuple."""
        outputs = [one for one in alternatives if one is not None and is_output(self.symbols, one)]
        others = [one for one in alternatives if one is None or one.kind not in ("tuple", "list", "tensors", "none")]
        return outputs[0] if len(outputs) == 1 == len(others) else None

    def _name(self, node: cst.BaseExpression) -> str | None:
        """Qualified name; the names of a quoted annotation have no scope and are looked up at the top of the file."""
        name = self.resolver.qualified(node)
        if name is None and not self.resolver.has_scope(node) and (text := dotted(node)):
            return self.resolver.top_level(text)
        return name


def unquoted(node: cst.SimpleString | cst.ConcatenatedString) -> cst.BaseExpression | None:
    """The expression in a quoted annotation; None if it is none."""
    try:
        return cst.parse_expression(str(node.evaluated_value).strip())
    except (cst.ParserSyntaxError, ValueError):
        return None
