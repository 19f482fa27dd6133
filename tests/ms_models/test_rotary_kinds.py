"""Every kind of rotary embedding against transformers, element by element: frequencies, tables, rotation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.glm4 import modeling_glm4
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
from transformers.models.phi3 import modeling_phi3

from mappings.errors import UserError
from ms_models.layers.long_rope import LongRope
from ms_models.layers.rotary import KINDS, RopeConfig, Rotary, inverse_frequencies, rotate, rotate_pairs

ms.runtime.launch_blocking()

WIDTH, ORIGINAL, LIMIT = 12, 16, 40
LISTS = {
    "short_factor": [1.0, 1.1, 1.3, 1.7, 2.0, 2.5],
    "long_factor": [1.5, 2.5, 4.0, 7.0, 9.0, 13.0],
    "original_max_position_embeddings": ORIGINAL,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 48},
    "yarn": {"factor": 4.0, "original_max_position_embeddings": ORIGINAL},
    "longrope": LISTS,
    "longrope, factor": {**LISTS, "factor": 8.0},
    "longrope, attention factor": {**LISTS, "attention_factor": 1.7},
    "longrope, not extended": {**LISTS, "original_max_position_embeddings": LIMIT},
}
# The power of the base is rounded once here and in fp32 in torch: the last bit, and what follows from it.
FREQUENCY, TABLE = 1e-6, 1e-6
LENGTHS = [9, ORIGINAL, ORIGINAL + 1, LIMIT, LIMIT + 1, 3 * LIMIT]


def settings(name: str, theta: float = 1e4) -> dict[str, Any]:
    return {**SETTINGS[name], "rope_type": name.split(",")[0], "rope_theta": theta}


def reference(name: str, width: int = WIDTH, **fields: Any) -> transformers.LlamaConfig:
    return transformers.LlamaConfig(
        hidden_size=48,
        num_attention_heads=4,
        head_dim=width,
        max_position_embeddings=LIMIT,
        rope_parameters={**settings(name), **fields},
    )


def tables(rotary: Any, positions: np.ndarray) -> np.ndarray:
    return np.stack([table.asnumpy()[:, :, 0] for table in rotary(ms.Tensor(positions.astype(np.int32)))])


def expected_tables(config: transformers.LlamaConfig, positions: np.ndarray) -> np.ndarray:
    """Of a fresh module: one of kind `dynamic` remembers what it met."""
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.tensor(positions))
    half = cos.shape[-1] // 2
    return np.stack([cos[..., :half].numpy(), sin[..., :half].numpy()])


def test_every_kind_of_transformers_is_known_or_refused() -> None:
    assert {name.split(",")[0] for name in SETTINGS} == set(KINDS)
    assert set(ROPE_INIT_FUNCTIONS) - set(KINDS) == {"proportional"}
    with pytest.raises(UserError, match="rope type 'proportional' is not supported"):
        RopeConfig.from_json({"rope_parameters": {"rope_type": "proportional"}})


@pytest.mark.parametrize("theta", [1e4, 1e6])
@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "default"])
def test_frequencies_and_factor(name: str, theta: float) -> None:
    config = reference(name, rope_theta=theta)
    rope = RopeConfig.from_json(config.to_dict())
    expected, factor = ROPE_INIT_FUNCTIONS[rope.kind](config)
    found = inverse_frequencies(rope, WIDTH)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=FREQUENCY, atol=0)
    assert rope.scaling.attention_factor == pytest.approx(factor, rel=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_tables_at_every_length(name: str) -> None:
    config = reference(name)
    rotary = Rotary(RopeConfig.from_json(config.to_dict()), WIDTH)
    compiled = ms.jit(rotary.construct)
    worst = 0.0
    for length in LENGTHS:
        positions = np.stack([np.arange(length), np.maximum(np.arange(length) - 5, 0)])  # the second padded on the left
        expected = expected_tables(config, positions)
        for run in (rotary, compiled) if length in (ORIGINAL, LIMIT + 1) else (rotary,):
            found = tables(run, positions)
            np.testing.assert_allclose(found, expected, rtol=0, atol=TABLE * length)
            worst = max(worst, float(np.abs(found - expected).max()))
    print(f"{name}: tables {worst:.1e}")  # for the cards (`pytest -s`)


def test_a_part_of_a_sequence_turns_as_the_whole() -> None:
    """A context-parallel rank holds some of the positions only."""
    for name in ("longrope", "dynamic"):
        rotary = Rotary(RopeConfig.from_json(reference(name).to_dict()), WIDTH)
        whole = np.arange(3 * LIMIT)[None]
        part = ms.Tensor(whole[:, :7].astype(np.int32))
        found = [table.asnumpy()[:, :, 0] for table in rotary(part, ms.Tensor(whole.astype(np.int32)))]
        assert np.array_equal(np.stack(found), tables(rotary, whole)[:, :, :7])
        assert not np.array_equal(np.stack(found), tables(rotary, whole[:, :7]))


@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn"])
@pytest.mark.parametrize("part", [0.5, 0.34])
def test_frequencies_of_a_part_of_a_head(kind: str, part: float) -> None:
    width = 20  # of which 10 or, by 0.34, 6 dimensions turn
    config = reference(kind, width, partial_rotary_factor=part)
    found = inverse_frequencies(RopeConfig.from_json(config.to_dict(), partial=True), width)
    expected, _ = ROPE_INIT_FUNCTIONS[kind](config)
    assert len(found) == {0.5: 5, 0.34: 3}[part]
    np.testing.assert_allclose(found, expected.numpy(), rtol=FREQUENCY, atol=0)


@pytest.mark.parametrize("kind", ["default", "linear"])
def test_an_odd_part_is_rounded_up(kind: str) -> None:
    rope = RopeConfig.from_json({"rope_parameters": settings(kind), "partial_rotary_factor": 0.36}, partial=True)
    config = transformers.Glm4Config(head_dim=20, rope_parameters={**settings(kind), "partial_rotary_factor": 0.36})
    expected = modeling_glm4.Glm4RotaryEmbedding(config).inv_freq.numpy()
    assert len(expected) == 4  # 7 of 20 dimensions, so 8 turn
    np.testing.assert_allclose(inverse_frequencies(rope, 20), expected, rtol=FREQUENCY, atol=0)


@pytest.mark.parametrize("turned", [20, 12])
@pytest.mark.parametrize(("turn", "module"), [(rotate, modeling_phi3), (rotate_pairs, modeling_glm4)])
def test_rotation(turn: Any, module: Any, turned: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 3, 20)).astype(np.float32)
    cos, sin = rng.normal(size=(2, 2, 5, turned // 2)).astype(np.float32)
    both = [torch.tensor(np.concatenate((table, table), -1)) for table in (cos, sin)]
    expected, _ = module.apply_rotary_pos_emb(torch.tensor(x), torch.tensor(x), *both, unsqueeze_dim=2)
    for run in (turn, ms.jit(turn)):
        found = run(ms.Tensor(x), ms.Tensor(cos[:, :, None]), ms.Tensor(sin[:, :, None])).asnumpy()
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-6)
        assert np.array_equal(found[..., turned:], x[..., turned:])
    other = rotate if turn is rotate_pairs else rotate_pairs
    wrong = other(ms.Tensor(x), ms.Tensor(cos[:, :, None]), ms.Tensor(sin[:, :, None])).asnumpy()
    assert np.abs(wrong - expected.numpy()).max() > 0.1


def test_faults_are_seen() -> None:
    config = reference("longrope")
    rope = RopeConfig.from_json(config.to_dict())
    assert isinstance(rope.scaling, LongRope)
    wrong = {
        "lists swapped": {"short_factor": rope.scaling.long_factor, "long_factor": rope.scaling.short_factor},
        "switch one too late": {"original": ORIGINAL + 1.0},
        "factor forgotten": {"scale": 1.0},
    }
    positions = np.arange(ORIGINAL + 1)[None]
    expected = expected_tables(config, positions)
    for fault in wrong.values():
        spoiled = Rotary(replace(rope, scaling=replace(rope.scaling, **fault)), WIDTH)  # type: ignore[arg-type]
        assert np.abs(tables(spoiled, positions) - expected).max() > 1e-2


def test_the_original_length_beside_the_settings_wins() -> None:
    """Phi-3 keeps it there."""
    inner = settings("longrope")
    beside = {"max_position_embeddings": 64, "original_max_position_embeddings": 8, "rope_parameters": inner}
    without = {name: value for name, value in inner.items() if not name.startswith("original")}
    for config, original in (
        (beside, 8),
        ({**beside, "rope_parameters": without}, 8),
        ({"max_position_embeddings": 64, "rope_parameters": inner}, ORIGINAL),
        ({"max_position_embeddings": 64, "rope_parameters": without}, 64),
    ):
        scaling = RopeConfig.from_json(config).scaling
        assert isinstance(scaling, LongRope) and scaling.original == original


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rope_type": "linear"}, "factor of the rotary embedding must be a positive number, found None"),
        ({"rope_type": "dynamic", "factor": True}, "factor of the rotary embedding must be a positive number"),
        ({"rope_type": "linear", "factor": float("inf")}, "factor of the rotary embedding must be a positive number"),
        ({**LISTS, "rope_type": "longrope", "long_factor": 2.0}, "long_factor .* must be a list of numbers, found 2.0"),
        ({**LISTS, "rope_type": "longrope", "short_factor": [0] * 6}, "short_factor .* positive number, found 0"),
        ({**LISTS, "rope_type": "longrope", "long_factor": [2.0] * 5}, "long_factor .* has 5 numbers, 12 .* need 6"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor must not exceed 1, found 1.5"),
        ({"partial_rotary_factor": 0.05}, "partial_rotary_factor 0.05 of head_dim=12 rotates nothing"),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.2}, "more than 2 rotated dimensions"),
        ({"full_attention": {"rope_theta": 1e4}}, r"by layer type \(full_attention\) are not supported here"),
    ],
)
def test_odd_settings_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Rotary(RopeConfig.from_json({"rope_parameters": fields, "max_position_embeddings": 64}, partial=True), WIDTH)
    assert "\n" not in str(caught.value)
