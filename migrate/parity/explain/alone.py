"""Each module judged alone, on the reference's own inputs: a guilty one is told from those that inherit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from migrate.parity.explain.descent import Place
from migrate.parity.explain.looking import NOT_RUN, Look, Looking
from migrate.parity.explain.tree import Tree

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass
class Guilty:
    """Code that computes something wrong from what the reference gave it."""

    place: Place
    look: Look
    """What it computes wrongly: an output, or what it hands to a submodule."""
    others: list[str] = field(default_factory=list)
    """Modules of other layers that are wrong at the same place."""


def guilty(tree: Tree, inputs: Looking, outputs: Looking) -> list[Guilty]:
    """Every independent fault, in the order of computation; those of like layers are one.

    A module that the candidate does not run is one; what is computed without it is not.

    Args:
        tree: of the modules.
        inputs: what arrived at each module in the forced pass, against the reference.
        outputs: what each module made of the reference's input, against the reference.
    """
    found: dict[tuple[str, str, str], Guilty] = {}
    for place, look in _faults(tree, inputs, outputs):
        key = (_kind(place.module), _kind(place.into or ""), _kind(place.behind or ""))
        if key in found:
            found[key].others.append(place.module)
        else:
            found[key] = Guilty(place, look)
    return list(found.values())


def _faults(tree: Tree, inputs: Looking, outputs: Looking) -> Iterator[tuple[Place, Look]]:
    """A module that hands something wrong to a submodule is named once, for the first of them."""
    named: set[str] = set()
    skipped = {name for name in tree.parents if outputs.lacks(name)}
    # What is computed without a submodule that should have run is wrong for that reason; so is what has no input of
    # its own to be fed with (the head).
    without = {tree.parents[name] for name in skipped}
    for name, _ in tree.walk():
        parent = tree.parents[name]
        if name in skipped:
            if parent not in skipped:
                yield Place(name), NOT_RUN
            continue
        arrived = inputs(name)
        if arrived is not None and arrived.wrong and parent not in named | without:
            named.add(parent)
            yield Place(parent, into=name, behind=tree.before(name)), arrived
        look = outputs(name)
        if look is not None and look.wrong and name not in named | without:
            children = tree.children[name]
            # The children come later in this walk; one of them is named with its parent where its input is wrong, too.
            if any((one := inputs(child)) is not None and one.wrong for child in children):
                continue
            if arrived is None and tree.before(name) in skipped:
                continue
            named.add(name)
            yield Place(name, behind=children[-1] if children else None), look


def _kind(name: str) -> str:
    """A name without the number of the layer."""
    return _NUMBER.sub("*", name)
