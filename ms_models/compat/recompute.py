"""Activation checkpointing, which trades time for memory and leaves every number as it is."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

from mindspore import nn

CellT = TypeVar("CellT", bound=nn.Cell)


def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    """`function(*args)`; its activations are kept, where torch computes them again in the backward pass."""
    return function(*args)


def checkpoint_sequential(functions: Any, segments: int, input: Any) -> Any:
    """One function after the other; `segments` would say which activations are kept."""
    for function in functions:
        input = function(input)
    return input


class CheckpointImpl(Enum):
    """torch's two ways to compute activations again; here none are."""

    REENTRANT = "reentrant"
    NO_REENTRANT = "no_reentrant"


class CheckpointWrapper:
    """Added to the class of a module that was wrapped; its parameters keep their names, its values stay the same."""


def checkpoint_wrapper(module: CellT, checkpoint_impl: CheckpointImpl = CheckpointImpl.NO_REENTRANT) -> CellT:
    """Make a module a `CheckpointWrapper`; its activations are kept."""
    kind = type(module)
    if not isinstance(module, CheckpointWrapper):
        module.__class__ = type(f"Checkpoint{kind.__name__}", (CheckpointWrapper, kind), {})
    return module


def apply_activation_checkpointing(
    model: nn.Cell,
    checkpoint_wrapper_fn: Callable[[nn.Cell], nn.Cell] = checkpoint_wrapper,
    check_fn: Callable[[nn.Cell], bool] = lambda cell: True,
) -> None:
    """Wrap every cell below `model` that `check_fn` accepts, inner ones first."""
    for name, cell in model._cells.items():
        if cell is not None and not isinstance(cell, CheckpointWrapper):
            apply_activation_checkpointing(cell, checkpoint_wrapper_fn, check_fn)
            if check_fn(cell):
                model._cells[name] = checkpoint_wrapper_fn(cell)
