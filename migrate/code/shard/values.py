"""What an expression of a model can be while its flow is followed: tensors with named axes, numbers, modules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import libcst as cst

from migrate.code.names.symbols import FunctionInfo
from migrate.code.shard.sizes import Size, named, unknown


@dataclass(frozen=True)
class LayerRef:
    """An attribute of a class that holds a layer."""

    owner: str
    attribute: str


@dataclass(frozen=True)
class Value:
    """Anything."""


@dataclass(frozen=True)
class Tensor(Value):
    """A tensor; cut if one of its axes is."""

    shape: tuple[Size, ...] | None = None
    """None: nothing is known. A `rest` size stands for any number of leading axes."""
    origins: frozenset[str] = frozenset()
    """Where its gradients go: parameters of the followed method, attributes, `?` for anything else; empty: nowhere."""
    exact: str | None = None
    """The parameter of the followed method that it is, unchanged."""
    layers: frozenset[LayerRef] = frozenset()
    """Linear layers whose outputs are in it, through nothing but operations."""
    fused: bool = False
    """The output of one layer that holds several parts side by side may still be split into them."""
    part: int = 0
    """Which of the parts of a fused layer it is."""
    kept_as: tuple[str, str] | None = None
    """The class and the name of the attribute that it is."""

    @property
    def is_cut(self) -> bool:
        return self.cut_axis is not None

    @property
    def cut_axis(self) -> int | None:
        """Position of the cut axis, from the end: -1 is the last."""
        if self.shape is None:
            return None
        return next((i - len(self.shape) for i, size in enumerate(self.shape) if size.cut), None)

    def with_shape(self, shape: tuple[Size, ...] | None) -> Tensor:
        return replace(self, shape=shape, exact=None, fused=False, kept_as=None)


@dataclass(frozen=True)
class Number(Value):
    """A number, by the length that it would be."""

    size: Size


@dataclass(frozen=True)
class Items(Value):
    """A tuple, list or shape."""

    items: tuple[Value, ...]


@dataclass(frozen=True)
class Constant(Value):
    """None, a text or a truth value."""

    value: object


@dataclass(frozen=True)
class Opaque(Value):
    """Something that is no tensor with a gradient; `text` is how the constructor would write it."""

    text: str | None = None


@dataclass(frozen=True)
class Kept(Value):
    """A list or dict whose elements are tensors of one kind."""

    content: Tensor


@dataclass(frozen=True)
class Closure(Value):
    """A lambda."""

    node: cst.Lambda


@dataclass(frozen=True)
class Instance(Value):
    """An object of a class of the repository."""

    name: str
    is_root: bool = False


@dataclass(frozen=True)
class Layer(Value):
    """A linear layer."""

    ref: LayerRef


@dataclass(frozen=True)
class Callable(Value):
    """A function or method of the repository."""

    info: FunctionInfo
    receiver: Instance | None = None


@dataclass(frozen=True)
class Torch(Value):
    """A name of torch or another library; `module` if it is an instance of that class."""

    name: str
    module: bool = False
    arguments: tuple[cst.Arg, ...] = ()


@dataclass(frozen=True)
class Method(Value):
    """A method of a tensor."""

    receiver: Tensor
    name: str
    node: cst.BaseExpression


NONE = Constant(None)
UNKNOWN = Tensor(None, frozenset({"?"}))
"""What may be a tensor made of parameters."""
ATTENTION_FUNCTIONS = "ALL_ATTENTION_FUNCTIONS"
"""transformers' registry of attention functions, which all take and give what the eager one of a model does."""
ATTENTION_INTERFACE = Opaque(ATTENTION_FUNCTIONS)


class UnprovedError(Exception):
    """What follows from a cut cannot be proved; the text says why."""

    def __init__(self, reason: str, node: cst.CSTNode | None = None) -> None:
        super().__init__(reason)
        self.reason, self.node = reason, node


class AxesError(UnprovedError):
    """The proof needs to know how many axes a tensor has."""


def size_of(value: Value) -> Size:
    """A value as the length of an axis."""
    match value:
        case Number():
            return value.size
        case Opaque() if value.text is not None:
            return named(value.text)
        case Tensor() if value.exact is not None:
            return named(f"<{value.exact}>")
        case Tensor() if value.is_cut:
            raise UnprovedError("a number is read from a tensor that is cut")
    return unknown()


def is_cut(value: Value) -> bool:
    """Whether a value, or something in it, differs between ranks."""
    match value:
        case Tensor():
            return value.is_cut
        case Number():
            return value.size.cut
        case Items():
            return any(is_cut(item) for item in value.items)
        case Method():
            return value.receiver.is_cut
        case Kept():
            return value.content.is_cut
    return False


def tensors_in(*values: Value) -> list[Tensor]:
    """All tensors of some values."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, Items):
            found += tensors_in(*value.items)
        elif isinstance(value, Method):
            found.append(value.receiver)
    return found


def joined(left: Value | None, right: Value | None) -> Value:
    """A value that is one or the other."""
    if left == right and left is not None:
        return left
    if left is None or left == NONE:
        return right if right is not None else NONE
    if right is None or right == NONE:
        return left
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Callable) and other == ATTENTION_INTERFACE:
            return one  # the entries of the registry do what the repository's own function does
    if isinstance(left, Items) and isinstance(right, Items) and len(left.items) == len(right.items):
        return Items(tuple(joined(a, b) for a, b in zip(left.items, right.items, strict=True)))
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        shape = left.shape if left.shape == right.shape else _common(left, right)
        return Tensor(shape, left.origins | right.origins, None, left.layers | right.layers)
    if is_cut(left) != is_cut(right) or (is_cut(left) and type(left) is not type(right)):
        raise UnprovedError("a value is cut on one way through the code and whole on another")
    if isinstance(left, Number) and isinstance(right, Number):
        return Number(replace(unknown(), cut=left.size.cut))
    found = tensors_in(left, right)
    if found:
        return Tensor(
            None, frozenset().union(*(t.origins for t in found)), None, frozenset().union(*(t.layers for t in found))
        )
    return Opaque()


def joined_all(values: Iterable[Value]) -> Value:
    """A value that is one of several; opaque for none at all."""
    found: Value | None = None
    for value in values:
        found = joined(found, value)
    return found or Opaque()


def _common(left: Tensor, right: Tensor) -> tuple[Size, ...] | None:
    if left.cut_axis != right.cut_axis:
        raise UnprovedError("a tensor is cut along one axis on one way through the code and along another, or whole")
    if left.shape is None or right.shape is None or len(left.shape) != len(right.shape):
        if left.is_cut:
            raise UnprovedError("a cut tensor has another number of axes on another way through the code")
        return None
    pairs = zip(left.shape, right.shape, strict=True)
    return tuple(a if a == b else replace(unknown(), cut=a.cut, rest=a.rest or b.rest) for a, b in pairs)
