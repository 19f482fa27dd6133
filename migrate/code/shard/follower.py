"""The state of following a method: the function that is followed, and what was found out on the way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import libcst as cst

from migrate.code.context import code_of
from migrate.code.names.resolve import Resolver
from migrate.code.shard.layers import ClassLayers, Inventory
from migrate.code.shard.record import Record, Term
from migrate.code.shard.sizes import Size
from migrate.code.shard.values import (
    UNKNOWN,
    Callable,
    Instance,
    LayerRef,
    Number,
    Opaque,
    Tensor,
    UnprovedError,
    Value,
    is_cut,
    tensors_in,
)


@dataclass
class Frame:
    """A function that is being followed."""

    name: str
    resolver: Resolver
    owner: str | None
    is_root: bool
    env: dict[str, Value]
    fallback: ClassLayers | None = None
    """For an expression of a constructor: whose local variables names may mean."""
    returned: list[Value] = field(default_factory=list)


class Follower(ABC):
    """What is known while a method is followed, and what becomes of values that have no rule."""

    def __init__(self, inventory: Inventory, cuts: dict[LayerRef, str], entered: frozenset[str]) -> None:
        self.inventory, self.cuts, self.entered = inventory, cuts, entered
        self.symbols, self.facts = inventory.analysis.symbols, inventory.analysis.facts
        self.record = Record()
        self.frame: Frame
        self.expansions: dict[str, tuple[Size, ...]] = {}
        """What the unknown leading axes of a tensor turned out to be."""
        self.terms: dict[int, Term] = {}
        """Where numbers stand, by identity of the value."""
        self._alive: list[Number] = []
        self._reads: dict[int, cst.BaseExpression] = {}
        self.lenient = False
        """Whether what other objects keep is not known yet, so that it is no reason to give up."""
        self.owners = {ref.owner for ref in cuts}
        """Classes whose layers are cut: only their source changes."""

    def spread(self, rest: Size, count: int) -> tuple[Size, ...]:
        """What follows shows how many leading axes there are."""
        name = str(rest.factors[0])
        self.expansions[name] = tuple(Size((f"{name}.{i}",)) for i in range(count))
        return self.expansions[name]

    def may_change(self) -> bool:
        """Whether the method that is followed belongs to a class whose source changes."""
        return self.frame.is_root or self.frame.owner in self.owners

    @abstractmethod
    def _call(self, node: cst.Call) -> Value:
        """Value of a call."""

    @abstractmethod
    def run(self, function: Callable, arguments: dict[str, Value]) -> Value:
        """What a function of the repository returns."""

    def value(self, node: cst.BaseExpression) -> Value:
        """Value of an expression.

        Raises:
            UnprovedError: something is done with a cut value of which it is not known what comes out.
        """
        method = getattr(self, f"_{type(node).__name__.lower()}", None)
        try:
            return method(node) if method else self._other(node)
        except UnprovedError as error:
            error.node = error.node or node
            raise

    def _other(self, node: cst.CSTNode) -> Value:
        """An expression without a rule: nothing that is cut may be in it."""
        found = [self.value(child) for child in node.children if isinstance(child, cst.BaseExpression)]
        return self.called(found, code_of(node))

    def mixed(self, operands: Sequence[Value], what: str) -> Value:
        """The result of something unknown: it carries the layers and gradients of the operands."""
        if any(is_cut(operand) for operand in operands):
            raise UnprovedError(f"{what}: what becomes of a cut tensor here is not known")
        tensors = tensors_in(*operands)
        if not tensors:
            return Opaque()
        for tensor in tensors:
            self.escape(tensor)
        origins = frozenset({"?"}) if any(t.origins for t in tensors) else frozenset[str]()
        return Tensor(None, origins, None, frozenset().union(*(t.layers for t in tensors)))

    def called(self, operands: Sequence[Value], what: str) -> Value:
        """The result of something that may use parameters that are not among the operands."""
        found = self.mixed(operands, what)
        return replace(found, origins=UNKNOWN.origins) if isinstance(found, Tensor) else UNKNOWN

    def escape(self, tensor: Tensor) -> None:
        """A whole tensor goes where other parameters may take part: it must not be one whose gradients are added."""
        self.record.escaped |= {origin for origin in tensor.origins if origin in self.entered}

    def expanded(self, shape: tuple[Size, ...]) -> tuple[Size, ...]:
        """A shape with the leading axes that have become known since."""
        if shape and shape[0].rest and shape[0].factors and str(shape[0].factors[0]) in self.expansions:
            return (*self.expansions[str(shape[0].factors[0])], *shape[1:])
        return shape

    def known(self, value: Value) -> Value:
        """A tensor with the axes that have become known since it was made."""
        if isinstance(value, Tensor) and value.shape is not None:
            return replace(value, shape=self.expanded(value.shape))
        return value


def constructor_frame(layers: ClassLayers) -> Frame:
    """For evaluating an expression of a constructor; its parameters stand for themselves."""
    assert layers.init is not None
    env: dict[str, Value] = {p.name.value: Opaque(f"{layers.info.name}:{p.name.value}") for p in layers.init.parameters}
    env["self"] = Instance(layers.info.name)
    return Frame(layers.init.name, layers.info.resolver, layers.info.name, False, env, layers)
