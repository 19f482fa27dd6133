"""What a capture of the backward pass holds, the same for both frameworks."""

from __future__ import annotations

from collections.abc import Sequence

from migrate.parity.job import Job

ARRIVING = "GO"
"""Stage: the gradient of the loss by what each module gives, as it arrives there."""
HANDED = "GI"
"""Stage: what each module hands back to its first input, without what other users of that input hand back."""
OWN = "GP"
"""Stage: the gradient of each parameter; of a tied one, what each module that uses it adds (see `part`)."""
CELLS = "cells.json"
"""Which classes a module of the candidate is made of: by module, pairs of file and dotted name."""
FREE, FORCED = "free", "forced"
"""Folders of the candidate's two captures."""
LOSS = "loss"
"""What stands behind the logits, as a place of a fault."""
_IN = " in "


def part(parameter: str, module: str) -> str:
    """The name, in `OWN`, of what one module adds to the gradient of a tied parameter."""
    return f"{parameter}{_IN}{module}"


def split(name: str) -> tuple[str, str | None]:
    """(parameter, module of a `part` or None) of a name in `OWN`."""
    parameter, found, module = name.partition(_IN)
    return parameter, module if found else None


def tied_tables(job: Job) -> list[str]:
    """Embeddings whose weight is that of the head, too; `Job.renamed` has ties beside other names."""
    shared = set(job.renamed.values())
    return [module for module in job.modules if f"{module}.weight" in shared]


def owner(name: str, modules: Sequence[str], otherwise: str) -> str:
    """The innermost module that a parameter belongs to, or what stands for none (the head).

    Args:
        name: in `OWN`.
        modules: that were recorded.
        otherwise: for parameters outside of all.
    """
    parameter, module = split(name)
    if module is not None:
        return module
    known, path = set(modules), parameter
    while "." in path:
        path = path.rpartition(".")[0]
        if path in known:
            return path
    return otherwise
