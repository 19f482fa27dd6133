"""Tensors that a program keeps in attributes and buffers: caches of keys and values."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from migrate.code.shard.calls import Calls
from migrate.code.shard.follower import constructor_frame
from migrate.code.shard.layers import ClassLayers, Inventory
from migrate.code.shard.record import Term
from migrate.code.shard.sizes import Size, unknown
from migrate.code.shard.values import (
    Instance,
    Kept,
    LayerRef,
    Tensor,
    UnprovedError,
    Value,
    is_cut,
    joined,
    size_of,
)


class Keeping(Calls):
    """An attribute that is given a cut tensor keeps a rank's share; what the constructor makes for it is cut, too."""

    def __init__(
        self,
        inventory: Inventory,
        cuts: dict[LayerRef, str],
        entered: frozenset[str],
        kept: dict[tuple[str, str], Tensor | Kept],
    ) -> None:
        super().__init__(inventory, cuts, entered)
        self._kept = kept
        self.kept_now: dict[tuple[str, str], Tensor | Kept] = {}

    def keep(self, owner: Instance, name: str, value: Value, node: cst.CSTNode, *, element: bool = False) -> None:
        """A cut tensor becomes an attribute, or an element of one."""
        if not is_cut(value):
            return
        if not isinstance(value, Tensor):
            raise UnprovedError(f"{name} keeps something that is cut", node)
        created = None
        initial = next((c for c in self.inventory.lineage(owner.name) if name in c.initial), None)
        if element and initial is not None:
            created = self._created(initial.initial[name], initial)
            if created is not None:
                self._cut_creation(created, value)
                shape = tuple(
                    replace(size, cut=i - len(created) == value.cut_axis) for i, (size, _) in enumerate(created)
                )
                value = Tensor(shape)
        key = (owner.name, name)
        earlier = self.kept_now.get(key) or self._kept.get(key)
        before = earlier.content if isinstance(earlier, Kept) else earlier
        settled = _forgetful(value if before is None else joined(before, _forgetful(value)))
        if before is not None and _alike(before, settled):
            settled = before
        self.kept_now[key] = Kept(settled) if element and (initial is None or created is None) else settled
        note = f"{owner.name.rpartition('.')[2]}.{name} keeps this rank's heads"
        if note not in self.record.notes:
            self.record.notes.append(note)

    def kept(self, owner: str, name: str) -> Value | None:
        found = self._kept.get((owner, name))
        if found is not None:
            self.kept_now.setdefault((owner, name), found)
        return replace(found, kept_as=(owner, name)) if isinstance(found, Tensor) else found

    def _created(self, node: cst.BaseExpression, layers: ClassLayers) -> list[tuple[Size, cst.BaseExpression]] | None:
        """The lengths in `torch.zeros(a, b, c)` of a constructor."""
        if not isinstance(node, cst.Call):
            return None
        name = layers.info.resolver.torch_name(node.func) or ""
        if name.rpartition(".")[2] not in ("zeros", "ones", "empty", "full"):
            return None
        nodes = [a.value for a in node.args if a.keyword is None]
        if nodes and isinstance(nodes[0], cst.Name):
            nodes[0] = layers.locals.get(nodes[0].value, nodes[0])
        if nodes and isinstance(nodes[0], cst.Tuple | cst.List):
            nodes = [element.value for element in nodes[0].elements]
        before, self.frame = self.frame, constructor_frame(layers)
        try:
            return [(size_of(self.value(n)), n) for n in nodes]
        finally:
            self.frame = before

    def _cut_creation(self, created: list[tuple[Size, cst.BaseExpression]], value: Tensor) -> None:
        axis = value.cut_axis
        if axis is None or -axis > len(created):
            raise UnprovedError("a cut tensor is kept in a tensor with fewer axes")
        node = created[axis][1]
        self.record.shares[node] = Term(node, None)


def _forgetful(value: Value) -> Tensor:
    """A tensor of which only the cut axis is remembered."""
    assert isinstance(value, Tensor) and value.shape is not None
    return Tensor(tuple(size if size.cut else unknown() for size in value.shape))


def _alike(left: Tensor, right: Tensor) -> bool:
    return left.cut_axis == right.cut_axis and len(left.shape or ()) == len(right.shape or ())
