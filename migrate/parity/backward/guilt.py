"""Where gradients part, from the loss backwards: by descent in the free pass, module by module in the forced one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from migrate.parity.backward.naming import LOSS
from migrate.parity.backward.passes import Pass
from migrate.parity.explain.descent import Place
from migrate.parity.explain.looking import Look
from migrate.parity.explain.tree import ROOT, Tree
from migrate.parity.modules import CHOICE, LOGITS

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass
class Guilty:
    """Code that makes a wrong gradient of what the reference gave it."""

    place: Place
    what: str
    """Which gradient, in words."""
    look: Look
    others: list[str] = field(default_factory=list)
    """Modules of other layers that are wrong at the same place."""


@dataclass(frozen=True)
class Descent:
    """Where gradients part in the free pass."""

    path: tuple[str, ...]
    """Modules whose gradients differ, from the outermost to the guilty one."""
    place: Place


def descend(free: Pass) -> Descent | None:
    """Walks from the loss to the module where gradients part; None if nothing differs.

    Of the submodules, the last computed comes first. One in which anything differs is entered if what arrives at it
    agrees; if that differs already, the code behind it is guilty, since all that was computed later agrees.
    """
    path: list[str] = []
    node = ROOT
    while True:
        children = list(reversed(free.tree.children[node]))
        child = next((one for one in children if _is_wrong_at(free, one)), None)
        if child is None:
            if node == ROOT:
                return None
            return Descent(tuple(path), _in_front(free.tree, node))
        arrived = free.arriving(child)
        if arrived is not None and arrived.wrong:
            return Descent(tuple(path), behind(free.tree, child))
        path.append(child)
        node = child


def guilty(forced: Pass) -> list[Guilty]:
    """Every independent fault, from the loss backwards; those of like layers are one."""
    found: dict[tuple[str, ...], Guilty] = {}
    for place, what, look in _faults(forced):
        key = tuple(_NUMBER.sub("*", name or "") for name in (place.module, place.into, place.behind))
        if key in found:
            found[key].others.append(place.module)
        else:
            found[key] = Guilty(place, what, look)
    return list(found.values())


def behind(tree: Tree, module: str) -> Place:
    """The code that makes the gradient which arrives at a module: what uses its output."""
    parent = tree.parents[module]
    siblings = tree.children[parent]
    following = siblings[siblings.index(module) + 1 :]
    if module == LOGITS:
        return Place(LOSS)
    if following[:1] == [LOGITS]:
        return Place(LOGITS)
    # Between logits and choice lies the router; the weights of a choice go into the experts alone.
    if following and (module.endswith(CHOICE) or following[0] == f"{module}{CHOICE}"):
        return Place(following[0])
    return Place(parent, into=following[0] if following else None, behind=module)


def _in_front(tree: Tree, module: str) -> Place:
    """The code of a module that hands gradients back to its input, or the module where it has no submodules."""
    return Place(module, into=next(iter(tree.children[module]), None))


def _is_wrong_at(free: Pass, module: str) -> bool:
    arrived = free.arriving(module)
    return (arrived is not None and arrived.wrong) or free.differs(module)


def _faults(forced: Pass) -> Iterator[tuple[Place, str, Look]]:
    """A module whose code gives something wrong to a submodule is named once, for the first of them."""
    tree, named = forced.tree, set[str]()
    for module in _backwards(tree, ROOT):
        arrived = forced.arriving(module)
        if arrived is not None and arrived.wrong:
            place = behind(tree, module)
            if place.module not in named:
                named.add(place.module)
                yield place, f"the gradient it gives {module}", arrived
        found = forced.wrong(module)
        if found is None or module in named:
            continue
        what, look = found
        arriving = [forced.arriving(child) for child in tree.children[module]]
        # The children come later in this walk; one is named with this module where it is given a wrong gradient.
        if look is forced.handed(module) and any(one is not None and one.wrong for one in arriving):
            continue
        named.add(module)
        yield _in_front(tree, module) if look is forced.handed(module) else Place(module), what, look


def _backwards(tree: Tree, module: str) -> Iterator[str]:
    """Everything below a module, the last computed first, each before its submodules."""
    for child in reversed(tree.children[module]):
        yield child
        yield from _backwards(tree, child)
