"""Which linear layers form a block that can be cut: columns of the first ones, rows of the last one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from migrate.code.shard.flow import follow
from migrate.code.shard.layers import LINEAR, Inventory
from migrate.code.shard.record import Record
from migrate.code.shard.values import LayerRef, UnprovedError
from migrate.code.shard.weights import WeightUses

COLUMN, ROW, VOCABULARY = "column", "row", "vocabulary"


@dataclass
class ClassCuts:
    """The cuts of the layers of one class, proved."""

    name: str
    cuts: dict[LayerRef, str]
    classes: dict[LayerRef, str]
    """`attention` or `ffn`."""
    record: Record
    entered: frozenset[str]


@dataclass
class Refusal:
    """Layers that stay whole, and why."""

    layers: tuple[LayerRef, ...]
    reason: str


@dataclass
class Found:
    """What was found out about a repository."""

    cut: list[ClassCuts] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)


def recognise(inventory: Inventory, uses: WeightUses, name: str, done: Collection[LayerRef] = ()) -> Found:
    """The blocks of a class: layers whose outputs reach another layer through nothing but operations.

    Layers of classes that only this one makes may take part, but not those in `done`.
    """
    found = Found()
    linears = _linears(inventory, name)
    if not linears or inventory.analysis.symbols.method(name, "forward") is None:
        return found
    try:
        flow = follow(inventory, name, {})
    except UnprovedError as error:
        if len(linears) > 1:
            found.refused.append(
                Refusal(tuple(linears), f"{inventory.classes[name].info.node.name.value}: {error.reason}")
            )
        return found
    accepted: dict[LayerRef, str] = {}
    proved: ClassCuts | None = None
    taken: set[LayerRef] = set(done)
    for last in dict.fromkeys(flow.calls):
        first = flow.fed_by[last] - taken
        if not first or last in taken or last in first:
            continue
        block = {**dict.fromkeys(sorted(first, key=lambda ref: ref.attribute), COLUMN), last: ROW}
        mine = [ref in linears for ref in block]
        if not any(mine) or not all(own or uses.only_inside(r.owner, name) for r, own in zip(block, mine, strict=True)):
            continue
        try:
            proved = prove(inventory, uses, name, {**accepted, **block})
        except UnprovedError as error:
            found.refused.append(Refusal(tuple(block), error.reason))
            continue
        accepted.update(block)
        taken |= set(block)
    if proved is not None:
        found.cut.append(proved)
    # what was tried with a layer that found its block otherwise is no news
    found.refused = [refusal for refusal in found.refused if not taken & set(refusal.layers)]
    return found


def prove(inventory: Inventory, uses: WeightUses, name: str, cuts: Mapping[LayerRef, str]) -> ClassCuts:
    """Proof that a class computes the same with some of its layers cut.

    Raises:
        UnprovedError: there is none.
    """
    for ref in cuts:
        layer = inventory.of(ref)
        if layer.arguments is None:
            raise UnprovedError(f"{ref.attribute} has arguments that a cut layer does not have")
        if (reason := uses.reason(ref)) is not None:
            raise UnprovedError(reason)
        if (place := next((place for left, right, place in uses.ties if ref in (left, right)), None)) is not None:
            raise UnprovedError(f"{place} gives {ref.attribute} and another layer one weight")
    names = [name, *inventory.heirs(name)]
    if len(names) > 1 and any(ref.owner != name for ref in cuts):
        raise UnprovedError("classes inherit from one whose layers form a block with those of another class")
    proofs = [_proof(inventory, each, dict(cuts)) for each in names]
    record, entered = proofs[0]
    if any(other.followed != record.followed for other, _ in proofs[1:]):
        raise UnprovedError("a class that inherits the layers uses them in methods of its own")
    for ref in cuts:
        if (reason := uses.called_elsewhere(ref, record.followed)) is not None:
            raise UnprovedError(reason)
        if ref not in record.calls:
            raise UnprovedError(f"{ref.attribute} is not called where the flow was followed")
    _check_rows(record, cuts)
    return ClassCuts(name, dict(cuts), _classes(record, cuts), record, entered)


def _proof(inventory: Inventory, name: str, cuts: dict[LayerRef, str]) -> tuple[Record, frozenset[str]]:
    """The flow with the parameters of the method that have to be entered at its beginning."""
    first = follow(inventory, name, cuts)
    # several layers that read the same tensor share one sum of its gradients
    several = {origin for origin, count in first.column_inputs.items() if count > 1}
    wanted = frozenset(several | first.entering)
    second = follow(inventory, name, cuts, wanted)
    if not second.escaped:
        return second, wanted
    if second.escaped & first.entering:
        text = ", ".join(sorted(origin.removeprefix("param:") for origin in second.escaped & first.entering))
        raise UnprovedError(f"{text} meets cut tensors and is also used where nothing is cut")
    wanted -= second.escaped
    last = follow(inventory, name, cuts, wanted)
    if last.escaped:
        raise UnprovedError("inputs of the cut layers are also used where nothing is cut")
    return last, wanted


def _check_rows(record: Record, cuts: Mapping[LayerRef, str]) -> None:
    """A column layer whose output reaches no row layer would not have been proved; a row layer needs its columns."""
    for ref, cut in cuts.items():
        if cut == ROW and not record.fed_by.get(ref):
            raise UnprovedError(f"{ref.attribute} is cut by rows, and no layer that is cut by columns feeds it")


def _classes(record: Record, cuts: Mapping[LayerRef, str]) -> dict[LayerRef, str]:
    """A block is attention if what some of its layers compute meets in a softmax, and ffn otherwise."""
    found = dict.fromkeys(cuts, "ffn")
    for ref, cut in cuts.items():
        if cut == ROW and record.fed_by[ref] & record.attention:
            found.update(dict.fromkeys([ref, *record.fed_by[ref]], "attention"))
    return found


def _linears(inventory: Inventory, name: str) -> list[LayerRef]:
    layers = inventory.classes[name].layers.values()
    return [layer.ref for layer in layers if layer.kind == LINEAR]
