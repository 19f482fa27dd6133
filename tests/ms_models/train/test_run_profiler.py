"""The profiler of MindSpore over some steps: what it writes on this CPU is what `migrate.profiles` reads."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from migrate.profiles.reading import read_recordings
from ms_models.train.services.profiler import FOLDER, ProfilerService


def test_the_operators_of_the_chosen_steps_are_recorded(tmp_path: Path) -> None:
    x = Tensor(np.ones((64, 64), np.float32))

    @ms.jit
    def step(x: Tensor) -> Tensor:
        return ops.matmul(x, x).sum()

    service = ProfilerService(tmp_path / FOLDER / "rank_00003", (2, 4))
    for number in range(1, 7):
        service.before_step(number)
        for _ in range(5):
            step(x).asnumpy()
        service.after_step({"step": number})
    service.close(None)
    (found,) = read_recordings(tmp_path)
    assert found.rank == 3
    calls = {kind: count for kind, count, _ in found.operators}
    assert calls["MatMul"] == 3 * 5, "those of steps 2 to 4"
    assert 0 < found.busy_s < 5 and found.communication_s == 0
