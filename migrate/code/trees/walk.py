"""Reading a tree without libcst's visitors, which rebuild every node they pass and look at every blank."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator

import libcst as cst

_LAYOUT = frozenset(
    {
        "whitespace", "lpar", "rpar", "comma", "semicolon", "leading_lines", "lines_after_decorators", "header",
        "footer", "trailing_whitespace", "lbracket", "rbracket", "lbrace", "rbrace", "equal", "dot", "indent",
        "newline", "colon", "first_colon", "second_colon", "asynchronous", "star", "operator", "encoding",
        "default_indent",
    }
)  # fmt: skip
_ORDER = ("decorators", "name", "type_parameters", "params", "returns", "bases", "keywords", "body")
"""Of classes and functions, whose fields stand in the text in another order than in libcst's classes."""


@functools.cache
def child_fields(kind: type) -> tuple[str, ...]:
    """Fields of a class of nodes that hold more than layout, in the order of the text."""
    names = [f.name for f in dataclasses.fields(kind)]
    found = [n for n in names if n not in _LAYOUT and not n.startswith("whitespace")]
    return tuple(sorted(found, key=_ORDER.index) if "decorators" in found else found)


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Direct children in the order of the text; blanks, comments, brackets and operators are left out."""
    found: list[cst.CSTNode] = []
    for name in child_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif type(value) in (list, tuple):
            found += value
    return found


def walk(node: cst.CSTNode, skip: Collection[type] = ()) -> Iterator[cst.CSTNode]:
    """The node and everything below it, parents first, in the order of the text.

    Args:
        node: where to begin.
        skip: kinds of nodes that are neither given nor entered; `node` itself is always entered.
    """
    pending = [node]
    while pending:
        current = pending.pop()
        yield current
        below = children(current)
        if skip:
            below = [child for child in below if type(child) not in skip]
        pending += reversed(below)


@functools.cache
def _all_fields(kind: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def has_comments(node: cst.CSTNode) -> bool:
    """Whether there is a comment in a node or below it."""
    pending = [node]
    while pending:
        current = pending.pop()
        if isinstance(current, cst.Comment):
            return True
        for name in _all_fields(type(current)):
            value = getattr(current, name)
            for child in value if type(value) in (list, tuple) else (value,):
                if isinstance(child, cst.CSTNode) and type(child) is not cst.SimpleWhitespace:
                    pending.append(child)
    return False


__all__ = ["child_fields", "children", "has_comments", "walk"]
