"""What following a flow has found out: the changes that it asks for."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from migrate.code.shard.values import LayerRef, UnprovedError


@dataclass(frozen=True)
class Term:
    """A number in the source, or the constant 3 of `chunk(3)`; `within` is the function that it stands in."""

    node: cst.BaseExpression
    within: str | None


@dataclass
class Record:
    """Collected while a method is followed."""

    inferred: dict[cst.CSTNode, Term] = field(default_factory=dict)
    """Lengths in reshapes that become -1."""
    shares: dict[cst.CSTNode, Term] = field(default_factory=dict)
    """Numbers that become a rank's share."""
    entered: dict[cst.CSTNode, cst.BaseExpression] = field(default_factory=dict)
    """Expressions of whole tensors that meet cut ones."""
    entering_classes: set[str] = field(default_factory=set)
    """Classes in whose methods these stand."""
    whole_places: set[cst.CSTNode] = field(default_factory=set)
    """Lengths that shaped whole tensors, and inputs of whole layers: what stands there must not change."""
    heads: dict[tuple[LayerRef, int], Term] = field(default_factory=dict)
    """How many pieces of a part of a layer's output must stay whole."""
    widths: dict[tuple[LayerRef, int], Term] = field(default_factory=dict)
    """How wide such a piece is, where nobody says how many there are."""
    parts: dict[LayerRef, list[Term] | int] = field(default_factory=dict)
    """The parts of a fused layer: their widths, or their number."""
    entering: set[str] = field(default_factory=set)
    """Parameters of the method that meet cut tensors."""
    column_inputs: dict[str, int] = field(default_factory=dict)
    """Parameters of the method that column layers read as they are, with the number of layers."""
    escaped: set[str] = field(default_factory=set)
    """Entered parameters that also go where nothing is cut."""
    calls: list[LayerRef] = field(default_factory=list)
    """Linear layers in the order of their calls."""
    fed_by: dict[LayerRef, frozenset[LayerRef]] = field(default_factory=dict)
    """Linear layers whose outputs reach a layer."""
    attention: set[LayerRef] = field(default_factory=set)
    """Layers whose outputs meet in a softmax or an attention function."""
    followed: set[str] = field(default_factory=set)
    """Functions of the repository that took part."""
    notes: list[str] = field(default_factory=list)
    """What a user should know."""

    def enter(self, node: cst.BaseExpression, owner: str | None) -> None:
        """Put down an expression that has to pass EnterParallel, in a method of a class."""
        self.entered[node] = node
        if owner is not None:
            self.entering_classes.add(owner)

    def check(self) -> None:
        """Refuses changes of code that runs for whole tensors as well.

        Raises:
            UnprovedError: there is such a place.
        """
        for node in [*self.shares, *self.entered]:
            if node in self.whole_places:
                raise UnprovedError("the same code runs for tensors that are cut and for whole ones", node)
