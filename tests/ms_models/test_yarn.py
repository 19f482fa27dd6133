"""YaRN frequencies and factors against transformers, element by element."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from mappings.errors import UserError
from ms_models.layers.yarn import YarnRope

WIDTH, THETA = 64, 10000.0
CONFIG = {"max_position_embeddings": 512}
# The published settings of DeepSeek-V3; then each further field, alone and together.
PUBLISHED = {
    "factor": 40,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 4096,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "deepseek": PUBLISHED,
    "defaults": {"factor": 4.0},
    "nulls": {"factor": 4.0, "beta_fast": None, "beta_slow": None, "mscale": None, "attention_factor": None},
    "unequal mscale": {**PUBLISHED, "mscale": 0.707},
    "one mscale": {"factor": 8.0, "mscale_all_dim": 0.707},
    "attention factor": {**PUBLISHED, "attention_factor": 1.7},
    "narrow ramp": {**PUBLISHED, "beta_fast": 8, "beta_slow": 2, "truncate": False},
    "short context": {**PUBLISHED, "original_max_position_embeddings": 4},  # bounds beyond the first pair
    "step": {**PUBLISHED, "beta_fast": 1, "original_max_position_embeddings": 4, "truncate": False},
}
# The power of the base is rounded once here, in fp32 in torch.
TOLERANCE = 3e-7


def reference(fields: dict[str, Any]) -> tuple[np.ndarray, float]:
    config = transformers.LlamaConfig(
        head_dim=WIDTH,
        max_position_embeddings=CONFIG["max_position_embeddings"],
        rope_parameters={**fields, "rope_type": "yarn", "rope_theta": THETA},
    )
    frequencies, factor = ROPE_INIT_FUNCTIONS["yarn"](config)
    return frequencies.numpy(), factor


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_transformers(name: str) -> None:
    yarn = YarnRope.read(SETTINGS[name], CONFIG)
    frequencies, factor = reference(SETTINGS[name])
    found = yarn.frequencies(THETA, WIDTH)
    assert found.dtype == np.float32 and found.shape == frequencies.shape
    np.testing.assert_allclose(found, frequencies, rtol=TOLERANCE, atol=0)
    assert yarn.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("fault", [{"factor": 41.0}, {"beta_fast": 16.0}, {"beta_slow": 2.0}, {"original": 2048.0}])
def test_a_wrong_setting_is_seen(fault: dict[str, float]) -> None:
    wrong = replace(YarnRope.read(PUBLISHED, CONFIG), **fault).frequencies(THETA, WIDTH)  # type: ignore[arg-type]
    assert np.abs(wrong / reference(PUBLISHED)[0] - 1).max() > 100 * TOLERANCE


def test_scale_of_scores_is_that_of_deepseek() -> None:
    assert YarnRope.read(PUBLISHED, CONFIG).score_scale == pytest.approx((0.1 * math.log(40) + 1) ** 2)
    assert YarnRope.read({"factor": 4.0, "mscale": 1.0}, CONFIG).score_scale == 1.0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "factor of the rotary embedding must be a positive number, found None"),
        ({"factor": 0.5}, "factor of the YaRN rotary embedding must be at least 1, found 0.5"),
        ({"factor": "4"}, "factor of the rotary embedding must be a positive number, found '4'"),
        (
            {"factor": 4.0, "beta_fast": -1},
            "beta_fast of the rotary embedding must be a positive number, found -1",
        ),
        ({"factor": 4.0, "truncate": "no"}, "truncate of the YaRN rotary embedding must be a boolean, found 'no'"),
    ],
)
def test_odd_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        YarnRope.read(fields, CONFIG)
