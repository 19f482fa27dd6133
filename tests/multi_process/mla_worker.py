"""DeepSeek-V3 on two ranks under every way to cut it, against one process; see `grid_worker`.

Argument: folder with the models and their references. Nothing is judged here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import mindspore as ms
from grid_cases import Case
from grid_worker import Run
from harness import report
from mindspore import Tensor, nn, ops

from mappings.layout import ParallelLayout
from ms_models.layers.mla import LatentAttention

SEQUENCE = {"sequence_parallel": True}
CASES = [
    Case("tp2", ParallelLayout(tp=2), model="deep"),
    Case("tp2 jit", ParallelLayout(tp=2), model="deep", jit=True),
    Case("tp2 sequence parallel", ParallelLayout(tp=2), SEQUENCE, model="deep"),
    Case("tp2 plain queries, tied", ParallelLayout(tp=2), model="plain"),
    Case("tp2 plain queries, tied, sequence parallel", ParallelLayout(tp=2), SEQUENCE, model="plain"),
    Case("ep2", ParallelLayout(dp=2, ep=2), model="deep"),
    Case("cp2 ring", ParallelLayout(cp=2), model="deep"),
    Case("cp2 ulysses", ParallelLayout(cp=2), {"context": "ulysses"}, model="deep"),
    Case("pp2", ParallelLayout(pp=2), accumulation=2, model="deep"),
    Case("pp2 tied", ParallelLayout(pp=2), accumulation=2, model="plain"),
]


class Unshared(nn.Cell):
    """Lets the first `width` features enter, and forgets that the others are shared by the heads of all ranks."""

    def __init__(self, enter: nn.Cell, width: int) -> None:
        super().__init__()
        self.enter, self.width = enter, width

    def construct(self, x: Tensor) -> Tensor:
        if x.shape[-1] <= self.width:
            return self.enter(x)
        return ops.concat((self.enter(x[..., : self.width]), x[..., self.width :]), -1)


def faults(folder: Path) -> dict[str, Any]:
    """The first case with something before the heads that has the gradient of this rank's heads only."""
    result: dict[str, Any] = {}
    for name in ("latents not entered", "shared key not entered"):
        run = Run(CASES[0], folder)
        for _, cell in run.model.cells_and_names():
            if isinstance(cell, LatentAttention):
                rest = Unshared(cell.enter, max(cell.config.kv_rank, cell.config.q_rank))
                cell.enter = rest if name.startswith("shared") else nn.Identity()
        result[name] = run.compare()
    return result


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    folder = Path(sys.argv[1])
    return {"cases": {case.name: Run(case, folder).compare() for case in CASES}, "faults": faults(folder)}


if __name__ == "__main__":
    report(work)
