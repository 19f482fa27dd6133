"""What counts as a spike, and what it is measured by."""

from __future__ import annotations

import math

import pytest

from mappings.errors import UserError
from ms_models.train.config import GuardConfig
from ms_models.train.spikes import Spikes


def after(config: GuardConfig, updates: int, loss: float = 2.0, norm: float = 1.0) -> Spikes:
    spikes = Spikes(config)
    for _ in range(updates):
        spikes.add(loss, norm)
    return spikes


def test_loss_and_norm_are_measured_by_medians_over_a_window() -> None:
    config = GuardConfig(spike="skip", spike_loss=1.5, spike_norm=4, spike_window=4, spike_warmup=2)
    spikes = after(config, 2)
    assert spikes.reason(3.0, 4.0) is None, "at the limit"
    assert spikes.reason(3.1, 1.0) == "loss 3.1 is 1.6 times the median 2 of the last 2 updates"
    found = spikes.reason(3.1, 5.0)
    assert found is not None and "; gradient norm 5 is 5.0 times the median 1" in found
    spikes.add(200.0, 100.0)
    assert spikes.reason(2.9, 3.9) is None and spikes.reason(3.1, 1.0) is not None, "a median stays where it was"
    for _ in range(4):
        spikes.add(20.0, 10.0)
    assert spikes.reason(21.0, 11.0) is None, "what lies before the window is forgotten"


def test_nothing_is_a_spike_before_the_warmup_or_without_a_policy() -> None:
    config = GuardConfig(spike="stop", spike_warmup=5)
    assert after(config, 4).reason(1e9, 1e9) is None
    assert after(config, 5).reason(1e9, 1e9) is not None
    assert after(GuardConfig(), 50).reason(1e9, 1e9) is None
    assert after(config, 5).reason(math.nan, math.inf) is None, "which are not finite, another matter"
    assert after(GuardConfig(spike="skip", spike_loss=0, spike_warmup=5), 5).reason(1e9, 1.0) is None


def test_a_checkpoint_keeps_the_window() -> None:
    config = GuardConfig(spike="skip", spike_warmup=2, spike_window=3)
    first = Spikes(config)
    for number in range(5):
        first.add(number, number / 2)
    second = Spikes(config)
    second.load_state(first.state())
    assert second.state() == first.state() == {"losses": [2, 3, 4], "norms": [1.0, 1.5, 2.0]}
    assert second.reason(100.0, 1.0) == first.reason(100.0, 1.0) is not None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"spike_loss": 0.9}, "'guard.spike_loss' must be above 1, or 0"),
        ({"spike_warmup": 9, "spike_window": 8}, "above 'guard.spike_window' of 8"),
        ({"spike": "skip", "spike_loss": 0, "spike_norm": 0}, "are both 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        GuardConfig(**fields)
