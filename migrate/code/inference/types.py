"""What the converter knows about the type of an expression: tensor, a known other thing, or unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Type:
    """A type as far as conversion needs it.

    Kinds: `tensor`, `parameter`, `number`, `value` (known, no tensor), `none`, `dtype`, `device`, `shape`, `tuple`,
    `list` (any homogeneous sequence or iterator), `dict`, `tensors` (a batch: nested containers whose leaves are
    tensors), `object` (an instance of class `name`, or of one of `a|b`), `super`, `class`, `function`, `method`,
    `torch` (a reference to torch name `name`), `external` (a name of another library), `unknown`,
    `pending` (no information yet; counts as unknown).
    """

    kind: str
    name: str = ""
    items: tuple[Type, ...] = ()
    """Of a tuple: every item. Of list and dict: the one type of the elements. Of a module list: of its modules."""

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("tensor", "parameter")

    @property
    def is_known(self) -> bool:
        return self.kind not in ("unknown", "pending")

    @property
    def alternatives(self) -> tuple[Type, ...]:
        """The types that an object of one of several classes may have; itself for everything else."""
        if self.kind == "object" and "|" in self.name:
            return tuple(Type("object", name, self.items) for name in self.name.split("|"))
        return (self,)

    @property
    def element(self) -> Type:
        """What iterating or indexing gives."""
        if self.kind == "tensors":
            return TENSORS
        if self.is_tensor:
            return TENSOR
        if self.kind == "shape":
            return NUMBER
        if self.kind == "tuple":
            return join_all(self.items)
        if self.kind in ("list", "dict", "object") and self.items:
            return self.items[0]
        return PENDING if self.kind in ("list", "dict", "pending") else UNKNOWN


TENSOR = Type("tensor")
TENSORS = Type("tensors")
PARAMETER = Type("parameter")
NUMBER = Type("number")
VALUE = Type("value")
NONE = Type("none")
DTYPE = Type("dtype")
DEVICE = Type("device")
SHAPE = Type("shape")
UNKNOWN = Type("unknown")
PENDING = Type("pending")

MAX_ALTERNATIVES = 8
"""An object that may be of more classes than this is of an unknown one."""

_SIMPLE_RETURNS = {
    "tensor": TENSOR,
    "parameter": PARAMETER,
    "dtype": DTYPE,
    "device": DEVICE,
    "shape": SHAPE,
    "scalar": NUMBER,
    "number": NUMBER,
    "int": NUMBER,
    "float": NUMBER,
    "bool": NUMBER,
    "str": VALUE,
    "value": VALUE,
    "list": VALUE,
    "none": NONE,
}


def list_of(element: Type) -> Type:
    return Type("list", items=(element,))


def tuple_of(*items: Type) -> Type:
    return Type("tuple", items=items)


def instance(name: str, element: Type | None = None) -> Type:
    """An object of a class, torch's or the repository's."""
    return Type("object", name, () if element is None else (element,))


def join(left: Type | None, right: Type | None) -> Type | None:
    """The type of something that is one or the other; None means no information yet."""
    if left is None or left == right:
        return right
    if right is None:
        return left
    if left.kind == "pending" or right.kind == "pending":
        return right if left.kind == "pending" else left
    kinds = {left.kind, right.kind}
    if "none" in kinds:  # Optional[T]: its methods are only called when it is a T
        return right if left.kind == "none" else left
    if "unknown" in kinds:
        return UNKNOWN
    if kinds <= {"tensor", "parameter", "number"} and kinds != {"number"}:
        return TENSOR  # `total = 0.0; total = total + loss`: numbers have no method that is converted
    if kinds == {"tensor", "tensors"}:
        return TENSOR
    if kinds == {"number", "value"}:
        return VALUE
    if kinds == {"tuple"} and len(left.items) == len(right.items):
        return Type("tuple", items=tuple(join(a, b) or UNKNOWN for a, b in zip(left.items, right.items, strict=True)))
    if kinds <= {"list", "tuple"}:
        return Type("list", items=_joined_items(left, right))
    if left.kind == right.kind and left.kind in ("list", "dict"):
        return Type(left.kind, items=_joined_items(left, right))
    if left.kind == right.kind == "object":
        names = sorted({*left.name.split("|"), *right.name.split("|")})
        name = "|".join(names) if "" not in names and len(names) <= MAX_ALTERNATIVES else ""
        return Type("object", name, _joined_items(left, right))
    return UNKNOWN


def either(left: Type | None, right: Type | None) -> Type | None:
    """The type of an annotation `left | right`; of a tensor or a tuple of them: a container with tensors as leaves."""
    found = join(left, right)
    if found != UNKNOWN or left is None or right is None:
        return found
    leaves = [one.element if one.kind in ("tuple", "list") else one for one in (left, right)]
    return TENSORS if all(leaf.is_tensor or leaf == TENSORS for leaf in leaves) else found


def _joined_items(left: Type, right: Type) -> tuple[Type, ...]:
    items = join_known([*left.items, *right.items])
    return () if items is None else (items,)


def join_known(types: list[Type]) -> Type | None:
    """Join of several, None for none at all."""
    result: Type | None = None
    for item in types:
        result = join(result, item)
    return result


def join_all(types: tuple[Type, ...]) -> Type:
    """Join of several; unknown for none at all."""
    return join_known(list(types)) or UNKNOWN


def from_returns(returns: str | None, name: str) -> Type:
    """The type that a table row's `returns` states for a call of torch name `name`."""
    if returns is None:
        return UNKNOWN
    if returns in _SIMPLE_RETURNS:
        return _SIMPLE_RETURNS[returns]
    if match := re.fullmatch(r"tensors\((\d+)\)", returns):
        return tuple_of(*[TENSOR] * int(match[1]))
    if returns == "tensors":
        return list_of(TENSOR)
    if returns in ("parameters",):
        return list_of(PARAMETER)
    if returns in ("module", "optimizer", "scheduler", "dataset", "loader", "sampler", "generator"):
        return instance(name)
    return UNKNOWN
