"""Dotted paths of the layers of a repository's modules, read from what the constructors assign."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from mappings.errors import UserError
from migrate.code.shard.layers import EMBEDDING, Inventory, LayerInfo
from migrate.code.shard.plan_file import Entry
from migrate.code.shard.values import LayerRef

MAX_DEPTH = 10
Tree = dict[str, LayerInfo | None]
"""Path below a class -> the layer, or None for another module."""


def module_paths(inventory: Inventory, name: str, seen: tuple[str, ...] = ()) -> Tree:
    """Everything below a class; the elements of a list are one path with `*`."""
    if not seen and name in inventory.trees:
        return inventory.trees[name]
    found: Tree = {}
    if len(seen) > MAX_DEPTH or name in seen:
        return found
    facts = inventory.analysis.facts
    for ancestor in inventory.lineage(name):
        for attribute, layer in ancestor.layers.items():
            found.setdefault(attribute, layer)
    for (owner, attribute), kind in facts.attributes.items():
        if kind.kind != "object" or owner not in inventory.analysis.symbols.lineage(name) or attribute in found:
            continue
        for path, child in _children(attribute, kind.name, [item.name for item in kind.items]):
            if not inventory.analysis.symbols.is_module(child.split("|")[0]):
                continue
            found.setdefault(path, None)
            for one in child.split("|"):
                if one in inventory.classes:
                    below = module_paths(inventory, one, (*seen, name))
                    found.update({f"{path}.{rest}": layer for rest, layer in below.items()})
    if not seen:
        inventory.trees[name] = found
    return found


def _children(attribute: str, kind: str, elements: list[str]) -> Iterator[tuple[str, str]]:
    yield attribute, kind
    if kind.startswith("torch.nn."):
        yield from ((f"{attribute}.*", element) for element in elements if element)


class Matcher:
    """Finds the layers that the paths of a plan mean."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        self.trees = {name: module_paths(inventory, name) for name in inventory.classes}

    def matches(self, entry: Entry) -> dict[LayerRef, LayerInfo]:
        """The layers of an entry.

        Raises:
            UserError: none, something that is no layer, or one layer of several that share a class.
        """
        found: dict[LayerRef, LayerInfo] = {}
        other: list[str] = []
        for tree in self.trees.values():
            for path, layer in tree.items():
                if not _fits(entry.path, path):
                    continue
                if layer is None:
                    other.append(path)
                    continue
                _check_stars(entry, path)
                found[layer.ref] = layer
        if other and not found:
            raise UserError(f"{entry.where}: {entry.path!r} is no Linear and no Embedding but a module around them")
        if not found:
            known = sorted({path for tree in self.trees.values() for path, layer in tree.items() if layer is not None})
            longest = [p for p in known if p.rpartition(".")[2] == entry.path.rpartition(".")[2]] or known
            hint = f"; there are {', '.join(longest[:4])}" if longest else ""
            raise UserError(f"{entry.where}: {entry.path!r} matches no Linear and no Embedding{hint}")
        for layer in found.values():
            if layer.kind == EMBEDDING and entry.cut in ("column", "row"):
                raise UserError(f"{entry.where}: {entry.path!r} is an Embedding; it is cut by vocabulary")
        return found


def _fits(pattern: str, path: str) -> bool:
    mine, given = pattern.split("."), path.split(".")
    if len(mine) != len(given):
        return False
    return all(fnmatchcase(b, a) or (b == "*" and a.isdigit()) for a, b in zip(mine, given, strict=True))


def _check_stars(entry: Entry, path: str) -> None:
    for mine, given in zip(entry.path.split("."), path.split("."), strict=True):
        if given == "*" and mine != "*":
            raise UserError(
                f"{entry.where}: {entry.path!r} names one of several modules that share their source; "
                f"write {path!r}, which cuts all of them"
            )
