"""Which layers of a repository are cut and how: by a plan file, by what classes declare, or by recognising blocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from mappings.errors import UserError
from migrate.code.analysis import Analysis
from migrate.code.findings import finding
from migrate.code.shard.blocks import VOCABULARY, ClassCuts, Found, Refusal, prove, recognise
from migrate.code.shard.changes import Changes, block_changes, vocabulary_change
from migrate.code.shard.declared import declared_plan
from migrate.code.shard.layers import EMBEDDING, Inventory, LayerInfo
from migrate.code.shard.paths import Matcher
from migrate.code.shard.plan_file import Entry, read_plan
from migrate.code.shard.values import LayerRef, UnprovedError
from migrate.code.shard.vocabulary import refused, same_vocabulary
from migrate.code.shard.weights import WeightUses
from migrate.report import Finding

AUTO = "auto"


@dataclass(frozen=True)
class CutLayer:
    """A layer that is cut."""

    layer: LayerInfo
    layer_class: str
    cut: str
    heads: str | None
    parts: str | None


@dataclass
class Sharding:
    """The decision."""

    cut: list[CutLayer] = field(default_factory=list)
    whole: list[tuple[LayerInfo, str]] = field(default_factory=list)
    """Layers that stay whole, and why."""
    changes: Changes = field(default_factory=Changes)
    findings: list[Finding] = field(default_factory=list)


@dataclass
class _Plan:
    entries: dict[LayerRef, Entry] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    is_file: bool = False


def decide(analysis: Analysis, plan: str) -> Sharding:
    """Decide for a repository.

    Args:
        analysis: the repository.
        plan: path of a plan file, or `auto`.

    Raises:
        UserError: a plan file that does not follow the schema or does not fit the repository.
    """
    inventory = Inventory(analysis)
    uses = WeightUses(inventory)
    wanted = _declared(analysis, inventory) if plan == AUTO else _planned(inventory, Path(plan))
    sharding = Sharding(findings=list(wanted.findings))
    reasons: dict[LayerRef, str] = {}
    for name in inventory.classes:
        found = _class(inventory, uses, name, wanted, {cut.layer.ref for cut in sharding.cut})
        for cuts in found.cut:
            try:
                sharding.changes.update(block_changes(inventory, cuts))
            except UnprovedError as error:
                found.refused.append(Refusal(tuple(cuts.cuts), error.reason))
                continue
            _take(sharding, inventory, cuts, wanted)
        for refusal in found.refused:
            for ref in refusal.layers:
                reasons.setdefault(ref, refusal.reason)
    _vocabulary(sharding, inventory, uses, wanted, reasons)
    _whole(sharding, inventory, wanted, reasons)
    return sharding


def _planned(inventory: Inventory, path: Path) -> _Plan:
    matcher, plan = Matcher(inventory), _Plan(is_file=True)
    for entry in read_plan(path):
        for ref in matcher.matches(entry):
            other = plan.entries.get(ref)
            if other is not None and (other.cut, other.layer_class) != (entry.cut, entry.layer_class):
                raise UserError(f"{entry.where}: {entry.path!r} is cut otherwise at {other.where} already")
            plan.entries[ref] = entry
    return plan


def _declared(analysis: Analysis, inventory: Inventory) -> _Plan:
    declared, plan = declared_plan(analysis), _Plan()
    for where, what in declared.unknown:
        file, _, line = where.rpartition(":")
        plan.findings.append(finding("M701", f"{what} of the declared plan is not known", file=file, line=int(line)))
    if not declared.entries:
        return plan
    matcher = Matcher(inventory)
    for entry in declared.entries:
        try:
            for ref in matcher.matches(entry):
                plan.entries.setdefault(ref, entry)
        except UserError as error:
            file, _, line = entry.where.rpartition(":")
            message = str(error).removeprefix(f"{entry.where}: ")
            plan.findings.append(finding("M701", f"declared plan: {message}", file=file, line=int(line)))
    return plan


def _class(inventory: Inventory, uses: WeightUses, name: str, wanted: _Plan, done: Collection[LayerRef]) -> Found:
    """What is cut in one class: exactly what a plan says, or what is recognised."""
    mine = {layer.ref: wanted.entries.get(layer.ref) for layer in inventory.classes[name].layers.values()}
    cuts = {ref: entry.cut for ref, entry in mine.items() if entry is not None and entry.cut in ("column", "row")}
    if not cuts:
        return Found() if wanted.is_file else recognise(inventory, uses, name, {*done, *wanted.entries})
    try:
        return Found(cut=[prove(inventory, uses, name, cuts)])
    except UnprovedError as error:
        return Found(refused=[Refusal(tuple(cuts), error.reason)])


def _take(sharding: Sharding, inventory: Inventory, cuts: ClassCuts, wanted: _Plan) -> None:
    for ref, cut in cuts.cuts.items():
        layer, entry = inventory.of(ref), wanted.entries.get(ref)
        keywords = dict(sharding.changes.layers[layer.call].keywords)
        layer_class = (entry.layer_class if entry else None) or cuts.classes[ref]
        sharding.cut.append(CutLayer(layer, layer_class, cut, keywords.get("heads"), keywords.get("parts")))
    layer = inventory.of(next(iter(cuts.cuts)))
    for note in dict.fromkeys(cuts.record.notes):
        sharding.findings.append(finding("M702", note, file=str(layer.file.source.path), line=layer.line))


def _vocabulary(
    sharding: Sharding, inventory: Inventory, uses: WeightUses, wanted: _Plan, reasons: dict[LayerRef, str]
) -> None:
    taken = {cut.layer.ref for cut in sharding.cut}
    chosen = {ref for ref, entry in wanted.entries.items() if entry.cut == VOCABULARY}
    if not wanted.is_file:
        kept = {ref for ref, entry in wanted.entries.items() if entry.cut != VOCABULARY}
        chosen |= {layer.ref for layer in same_vocabulary(inventory, taken | kept) if layer.ref not in kept}
    no = refused(inventory, uses, chosen)
    reasons.update(no)
    for layer in inventory.all:
        if layer.ref in chosen and layer.ref not in no:
            sharding.changes.update(vocabulary_change(layer))
            layer_class = "embedding" if layer.kind == EMBEDDING else "lm_head"
            sharding.cut.append(CutLayer(layer, layer_class, VOCABULARY, None, None))


def _whole(sharding: Sharding, inventory: Inventory, wanted: _Plan, reasons: dict[LayerRef, str]) -> None:
    cut = {entry.layer.ref for entry in sharding.cut}
    for layer in inventory.all:
        if layer.ref in cut:
            continue
        entry, reason = wanted.entries.get(layer.ref), reasons.get(layer.ref)
        if entry is not None and entry.cut == "replicated":
            reason = f"{entry.where} says so"
        elif reason is not None:
            sharding.changes.refused[layer.call] = f"{layer.ref.attribute} stays whole: {reason}"
        elif wanted.is_file:
            reason = "the plan does not name it"
        elif layer.kind == EMBEDDING:
            reason = "no output head has as many outputs as it has rows"
        else:
            reason = "no other linear layer feeds it, or is fed by it, through operations alone"
        sharding.whole.append((layer, reason))
