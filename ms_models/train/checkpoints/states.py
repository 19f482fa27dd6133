"""Plain state that goes into the manifest of a checkpoint: one place to add what else a run has to remember."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mappings.errors import UserError

RESERVED = ("step", "tokens", "optimizer_step", "config")


class Stateful(Protocol):
    """Something that goes on where it was: position in the data, steps left out, loss scale."""

    def state(self) -> dict[str, Any]:
        """Plain data (what JSON holds), the same on every rank."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave."""


def capture(states: Mapping[str, Stateful]) -> dict[str, dict[str, Any]]:
    """The state of each, by name."""
    assert not set(states) & set(RESERVED), "names of the run's own fields"
    return {name: one.state() for name, one in states.items()}


def restore(states: Mapping[str, Stateful], saved: Mapping[str, Any], where: str) -> None:
    """Gives each its state.

    Args:
        states: by name.
        saved: `training` of a manifest.
        where: for messages.

    Raises:
        UserError: the checkpoint lacks one of them, or has one that nothing here takes.
    """
    there = [name for name in saved if name not in RESERVED]
    problems = [f"{name} is missing" for name in states if name not in saved]
    problems += [f"{name} is unexpected" for name in there if name not in states]
    if problems:
        raise UserError(f"{where}: training state does not fit this run: {'; '.join(problems)}")
    for name, one in states.items():
        one.load_state(saved[name])
