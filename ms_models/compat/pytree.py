"""Nested containers: their leaves, and the same structure around other leaves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class TreeSpec:
    """Structure of a nested tuple, list or dictionary."""

    def __init__(self, rebuild: Callable[[list[Any]], Any] | None, children: Sequence[TreeSpec]) -> None:
        self._rebuild, self._children = rebuild, list(children)
        self.num_leaves: int = 1 if rebuild is None else sum(child.num_leaves for child in self._children)

    def build(self, leaves: list[Any]) -> Any:
        """The structure around `num_leaves` leaves, which are taken off the front of the list."""
        if self._rebuild is None:
            return leaves.pop(0)
        return self._rebuild([child.build(leaves) for child in self._children])


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    """Leaves from left to right, and the structure; tuples, named tuples, lists and dictionaries are no leaves."""
    if isinstance(tree, dict):
        keys, values = list(tree), list(tree.values())
        kind = type(tree)
        rebuild: Callable[[list[Any]], Any] = lambda parts: kind(zip(keys, parts, strict=True))  # noqa: E731
    elif isinstance(tree, tuple) and hasattr(tree, "_fields"):
        values = list(tree)
        named: Any = type(tree)
        rebuild = lambda parts: named(*parts)  # noqa: E731
    elif isinstance(tree, list | tuple):
        values = list(tree)
        rebuild = type(tree)
    else:
        return [tree], TreeSpec(None, ())
    parts = [tree_flatten(value) for value in values]
    return [leaf for leaves, _ in parts for leaf in leaves], TreeSpec(rebuild, [spec for _, spec in parts])


def tree_unflatten(leaves: Sequence[Any], treespec: TreeSpec) -> Any:
    """The structure around other leaves.

    Raises:
        ValueError: another number of leaves than the structure has.
    """
    if len(leaves) != treespec.num_leaves:
        raise ValueError(f"the structure has {treespec.num_leaves} leaves, not {len(leaves)}")
    return treespec.build(list(leaves))


def tree_map(func: Callable[..., Any], tree: Any) -> Any:
    """The same structure with `func(leaf)` for every leaf."""
    leaves, spec = tree_flatten(tree)
    return tree_unflatten([func(leaf) for leaf in leaves], spec)
