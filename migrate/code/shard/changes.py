"""The changes that cut layers, by the node of the source that is changed."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst
import libcst.matchers as m

from migrate.code.context import code_of
from migrate.code.shard.blocks import COLUMN, ClassCuts
from migrate.code.shard.constructor_text import constructor_text
from migrate.code.shard.layers import EMBEDDING, ClassLayers, Inventory, LayerInfo
from migrate.code.shard.record import Term
from migrate.code.shard.values import LayerRef, UnprovedError

CELLS = {
    "column": "ColumnParallelLinear",
    "row": "RowParallelLinear",
    "vocabulary": "VocabParallelLinear",
}
ENTER = "enter_parallel"
"""Attribute of a rewritten module that whole tensors pass."""


@dataclass(frozen=True)
class NewLayer:
    """The call of a cell that replaces a call of a torch layer."""

    torch_name: str
    cell: str
    keywords: tuple[tuple[str, str], ...] = ()
    """Arguments that torch's layer does not have, as text."""


@dataclass
class Changes:
    """All changes of a repository."""

    layers: dict[cst.CSTNode, NewLayer] = field(default_factory=dict)
    inferred: set[cst.CSTNode] = field(default_factory=set)
    shares: set[cst.CSTNode] = field(default_factory=set)
    entered: set[cst.CSTNode] = field(default_factory=set)
    constructors: set[cst.CSTNode] = field(default_factory=set)
    """Constructors that make `ENTER`."""
    methods: dict[cst.CSTNode, tuple[str, ...]] = field(default_factory=dict)
    """Methods whose parameters are entered at their beginning."""

    refused: dict[cst.CSTNode, str] = field(default_factory=dict)
    """Layers that stay whole against the plan, and why."""

    def update(self, other: Changes) -> None:
        self.layers.update(other.layers)
        self.inferred |= other.inferred
        self.shares |= other.shares
        self.entered |= other.entered
        self.constructors |= other.constructors
        self.methods.update(other.methods)


def block_changes(inventory: Inventory, found: ClassCuts) -> Changes:
    """What cutting the proved layers of a class takes.

    Raises:
        UnprovedError: the constructor cannot say what the cut layers have to know.
    """
    record = found.record
    classes = {found.name, *(ref.owner for ref in found.cuts)}
    own = {f.name for name in classes for c in inventory.lineage(name) for f in c.info.methods.values()}
    for term in record.shares.values():
        if term.within is not None and term.within not in own:
            raise UnprovedError(f"{code_of(term.node)} is a length of the whole in a function that others may call")
    changes = Changes(inferred=set(record.inferred), shares=set(record.shares), entered=set(record.entered))
    for ref, cut in found.cuts.items():
        layer = inventory.of(ref)
        keywords = _column_keywords(inventory, found, layer, changes) if cut == COLUMN else ()
        changes.layers[layer.call] = NewLayer(layer.kind, CELLS[cut], keywords)
    entering = {found.name} if found.entered else set[str]()
    own_methods = {ancestor.info.name for ancestor in inventory.lineage(found.name)}
    entering |= {found.name if owner in own_methods else owner for owner in record.entering_classes}
    for name in sorted(entering):
        made = inventory.classes[name]
        if made.init is None or after_base_constructor(made.init.node) is None or ENTER in made.definitions:
            raise UnprovedError(f"the class has no constructor that could make {ENTER}, or has that name")
        changes.constructors.add(made.init.node)
    forward = inventory.analysis.symbols.method(found.name, "forward")
    if found.entered and forward is not None:
        names = [p.name.value for p in forward.parameters if f"param:{p.name.value}" in found.entered]
        changes.methods[forward.node] = tuple(names)
    return changes


def after_base_constructor(function: cst.FunctionDef) -> int | None:
    """Place in a constructor behind the call of the base's, `super().__init__()` or `nn.Module.__init__(self)`."""
    call = m.Call(func=m.Attribute(attr=m.Name("__init__")))
    for position, statement in enumerate(function.body.body):
        if m.matches(statement, m.SimpleStatementLine(body=[m.Expr(call)])):
            return position + 1
    return None


def vocabulary_change(layer: LayerInfo) -> Changes:
    """What cutting an embedding or an output head takes."""
    cell = "VocabParallelEmbedding" if layer.kind == EMBEDDING else CELLS["vocabulary"]
    return Changes(layers={layer.call: NewLayer(layer.kind, cell)})


def _column_keywords(
    inventory: Inventory, found: ClassCuts, layer: LayerInfo, changes: Changes
) -> tuple[tuple[str, str], ...]:
    record, ref = found.record, layer.ref
    layers = inventory.classes[ref.owner]
    parts = record.parts.get(ref)
    keywords: list[tuple[str, str]] = []
    count = 1
    if isinstance(parts, int):
        keywords.append(("parts", str(parts)))
        count = parts
    elif parts is not None:
        texts = [constructor_text(term, layer, layers) for term in parts]
        if None in texts:
            raise UnprovedError(f"the constructor does not know the widths of the parts of {ref.attribute}")
        keywords.append(("parts", f"({', '.join(map(str, texts))})"))
        count = len(texts)
    heads = [_heads(found, layer, inventory, part if count > 1 else 0, changes) for part in range(count)]
    if heads and None not in heads:
        same = len(set(heads)) == 1
        keywords.append(("heads", str(heads[0]) if same else f"({', '.join(map(str, heads))})"))
    return tuple(keywords)


def _heads(found: ClassCuts, layer: LayerInfo, inventory: Inventory, part: int, changes: Changes) -> str | None:
    record, layers = found.record, inventory.classes[layer.ref.owner]
    term = record.heads.get((layer.ref, part)) or (record.heads.get((layer.ref, 0)) if part else None)
    if term is not None:
        text = constructor_text(term, layer, layers)
        if text is None:
            _check_at_run_time(layer.ref, found, changes)
        return text
    width = record.widths.get((layer.ref, part))
    outputs = (layer.arguments or {}).get("out_features")
    if width is None or outputs is None or layer.ref in record.parts:
        return None
    return _quotient(outputs.value, width, layer, layers)


def _check_at_run_time(ref: LayerRef, found: ClassCuts, changes: Changes) -> None:
    """A number of heads that the constructor does not know is divided, and checked, where it stands."""
    for (layer, _), term in found.record.heads.items():
        if layer == ref and term.node in changes.inferred:
            changes.inferred.discard(term.node)
            changes.shares.add(term.node)


def _quotient(outputs: cst.BaseExpression, width: Term, layer: LayerInfo, layers: ClassLayers) -> str | None:
    """Number of heads from the width of the output and that of a head."""
    text = constructor_text(width, layer, layers)
    if text is None:
        return None
    if isinstance(outputs, cst.BinaryOperation) and isinstance(outputs.operator, cst.Multiply):
        sides = [outputs.left, outputs.right]
        others = [other for side, other in (sides, sides[::-1]) if code_of(side) == text]
        if others:
            return code_of(others[0])
    whole = code_of(outputs)
    return f"{f'({whole})' if ' ' in whole else whole} // {f'({text})' if ' ' in text else text}"
