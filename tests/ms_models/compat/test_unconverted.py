"""Stand-ins for names of torch: they let a file be imported and refuse to be used."""

from __future__ import annotations

import types

import pytest

from ms_models.compat.unconverted import NotConvertedError, torch


def test_annotations_work_and_every_use_is_refused() -> None:
    def f(x: torch.Tensor | None = None) -> torch.somewhere.Thing:
        return torch.somewhere.Thing(x)

    with pytest.raises(NotConvertedError, match=r"^torch\.somewhere\.Thing was not converted"):
        f()
    mine = types.new_class("Mine", (torch.optim.Optimizer,))  # as a class statement does
    with pytest.raises(NotConvertedError, match=r"torch\.optim\.Optimizer"):
        mine([])
    two = types.new_class("Two", (torch.nn.Module, torch.optim.Optimizer))
    with pytest.raises(NotConvertedError, match=r"torch\.nn\.Module"):
        two()

    for use in (
        lambda: isinstance(1, torch.Tensor),
        lambda: bool(torch.compile),
        lambda: torch.float32 == torch.float32,
        lambda: [*torch.Size],
        lambda: {torch.float32: 1},
        lambda: torch.nn.Module.__init__(1),
    ):
        with pytest.raises(NotConvertedError):
            use()
    assert not hasattr(torch, "__version__")
