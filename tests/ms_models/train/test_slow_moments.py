"""A second moment that forgets slowly: one minus its factor has to be taken in double precision."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import test_run_optimizer
from test_run_optimizer import CONFIG, Ours

from ms_models.train.gradients import clip_factor

BETA = 0.999


@pytest.mark.parametrize("jit", [True, False])
def test_a_factor_near_one_is_not_rounded_twice(jit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_run_optimizer, "CONFIG", replace(CONFIG, betas=(0.9, BETA)))
    ours = Ours(jit)
    expected = {name: np.zeros(start.shape) for name, start in ours.start.items()}
    for number in range(2):
        factor = clip_factor(ours.step(number), CONFIG.clip_norm)
        for name, moment in expected.items():
            gradient = ours.grads[number][name].astype(np.float64) * factor
            expected[name] = moment * BETA + gradient**2 * (1 - BETA)
    for name, found in ours.optimizer.state().items():
        kind, _, parameter = name.partition(".")
        if kind == "exp_avg_sq":
            # 1 - 0.999 in fp32 is off by 1.3e-5 of itself, and so would be the moment.
            np.testing.assert_allclose(found, expected[parameter], rtol=1e-6)
