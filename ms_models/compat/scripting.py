"""torch.jit's decorators: functions and modules stay what they are, as scripted and eager code mean the same."""

from __future__ import annotations

from typing import Any

__all__ = ["annotate", "export", "ignore", "script", "unused"]


def script(obj: Any) -> Any:
    """The function, class or module itself."""
    return obj


export = unused = script
"""Marks that only the compiler of TorchScript reads."""


def ignore(drop: Any = False, **options: Any) -> Any:
    """A mark that only the compiler of TorchScript reads; a decorator with and without brackets."""
    return drop if callable(drop) else script


def annotate(the_type: Any, the_value: Any) -> Any:
    """The value; its type only matters to the compiler of TorchScript."""
    return the_value
