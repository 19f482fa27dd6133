"""The compiled update is compiled once: new gradients, learning rates and factors are inputs of its graph."""

from __future__ import annotations

from mindspore.graph import api
from test_run_optimizer import Ours


def graphs() -> set[str]:
    """Graphs of the optimizer that this process has compiled."""
    return {phase for phase in api.ms_compile_cache if "ms_models/train/optimizer.py" in phase}


def test_later_updates_compile_nothing() -> None:
    before = graphs()
    ours = Ours(jit=True)
    ours.step(0)
    compiled = graphs()
    assert len(compiled - before) == 1
    for number in (1, 2):
        ours.step(number)
    assert graphs() == compiled
