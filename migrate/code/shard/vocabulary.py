"""Embeddings and output heads that are cut along the vocabulary.

Cutting either is exact whatever they are used for, because the rows that are looked up are added and the logits are
gathered. Which ones are worth it: a table of as many rows as a Linear has outputs. Layers that share a weight are cut
together or not at all.
"""

from __future__ import annotations

from collections.abc import Collection

from migrate.code.context import code_of
from migrate.code.shard.layers import EMBEDDING, LINEAR, Inventory, LayerInfo
from migrate.code.shard.values import LayerRef
from migrate.code.shard.weights import WeightUses

TIED_KEYS = "_tied_weights_keys"


def same_vocabulary(inventory: Inventory, taken: Collection[LayerRef]) -> list[LayerInfo]:
    """Embeddings with as many rows as a Linear outside of `taken` has outputs, and these."""
    tables = [layer for layer in inventory.all if layer.kind == EMBEDDING]
    heads = [layer for layer in inventory.all if layer.kind == LINEAR and layer.ref not in taken]
    rows = {size for table in tables if (size := _size(table, "num_embeddings"))}
    outputs = {size for head in heads if (size := _size(head, "out_features"))}
    shared = rows & outputs
    found = [table for table in tables if _size(table, "num_embeddings") in shared]
    return found + [head for head in heads if _size(head, "out_features") in shared]


def _size(layer: LayerInfo, argument: str) -> str | None:
    """The last name of a length: `config.vocab_size` and `args.vocab_size` are the same."""
    given = (layer.arguments or {}).get(argument)
    return None if given is None else code_of(given.value).rpartition(".")[2]


def refused(inventory: Inventory, uses: WeightUses, wanted: Collection[LayerRef]) -> dict[LayerRef, str]:
    """Layers of `wanted` that must stay whole, and why."""
    found: dict[LayerRef, str] = {}
    for ref in wanted:
        if inventory.of(ref).arguments is None:
            found[ref] = "it has arguments that a cut layer does not have"
        elif (reason := uses.reason(ref) or uses.handed_on(ref)) is not None:
            found[ref] = reason
    pairs = [*uses.ties, *_declared_ties(inventory, wanted)]
    for _ in range(len(pairs) + 1):
        cut = set(wanted) - set(found)
        for left, right, place in pairs:
            for ref, other in ((left, right), (right, left)):
                if ref in cut and other not in cut:
                    found.setdefault(ref, f"{place} gives it the weight of {other.attribute}, which stays whole")
    return found


def _declared_ties(inventory: Inventory, wanted: Collection[LayerRef]) -> list[tuple[LayerRef, LayerRef, str]]:
    """transformers ties a head to the embedding of its model where a class says so."""
    found = []
    tables = [layer.ref for layer in inventory.all if layer.kind == EMBEDDING]
    tables = [ref for ref in tables if ref in wanted] or tables
    for ref in wanted:
        if inventory.of(ref).kind != LINEAR:
            continue
        for name in inventory.analysis.symbols.lineage(ref.owner):
            if (name, TIED_KEYS) in inventory.analysis.facts.attributes:
                found += [(ref, table, f"{TIED_KEYS} of {name.rpartition('.')[2]}") for table in tables]
    return found
