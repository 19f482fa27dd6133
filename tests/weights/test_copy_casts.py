"""Changes of dtype round as PyTorch rounds, and are listed where they lose anything."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from mappings.arrangement import Arrangement
from mappings.formats.floats import FLOATS, cast
from migrate.weights.engine import mover
from migrate.weights.engine.execute import execute
from migrate.weights.engine.plan import PlanError, plan
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile

TORCH = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def bits(dtype: str) -> np.ndarray:
    """All bit patterns of 16-bit formats; for wider ones ties, limits and their neighbours, and random patterns."""
    if dtype in ("F16", "BF16"):
        return np.arange(1 << 16, dtype="<u2")
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 1 << 32, 20_000, np.uint32)
    half = np.arange(1 << 16, dtype=np.uint32) << 16
    single = np.concatenate([wide, half, half | 0x7FFF, half | 0x8000, half | 0x8001, half | 1]).astype("<u4")
    if dtype == "F32":
        return single
    with np.errstate(invalid="ignore"):
        near = single.view("<f4").astype("<f8").view("<u8")
    return np.concatenate([near, near + 1, near - 1, rng.integers(0, 1 << 64, 20_000, np.uint64)])


@pytest.mark.parametrize(("before", "after"), list(product(FLOATS, FLOATS)))
def test_same_bits_as_torch(before, after):
    raw = bits(before)
    ours = cast(raw.view(FLOATS[before].storage), before, after)
    theirs = torch.from_numpy(raw.view(f"<i{raw.itemsize}")).view(TORCH[before]).to(TORCH[after])
    nan = theirs.isnan().numpy()
    kind = f"<i{ours.itemsize}"
    assert np.array_equal(ours.view(kind)[~nan], theirs.view(getattr(torch, f"int{8 * ours.itemsize}")).numpy()[~nan])
    found = torch.from_numpy(ours.view(kind).copy()).view(TORCH[after])
    assert np.array_equal(found.isnan().numpy(), nan) and nan.any()


def checkpoint(directory, dtype, values):
    """One matrix on disk."""
    (directory / "source").write_bytes(values.tobytes())
    whole = Arrangement.of("a", values.shape)
    tensor = SourceTensor(Stored("source", "a", dtype, whole), directory / "source", 0)
    return Checkpoint(directory, "hf", None, {}, {"a": values.shape}, (tensor,), (), (), {})


@pytest.mark.parametrize("soft", [1 << 20, 1000])
@pytest.mark.parametrize(("before", "after"), [("F32", "BF16"), ("BF16", "F32"), ("F64", "F16")])
def test_casts_while_copying(tmp_path, monkeypatch, before, after, soft):
    monkeypatch.setattr(mover, "SOFT", soft)
    values = np.random.default_rng(1).choice(bits(before), (300, 200)).view(FLOATS[before].storage)
    source = checkpoint(tmp_path, before, values)
    whole = Arrangement.of("a", values.shape)
    cuts = [whole, whole.transpose(), whole.slice(1, 0, 67), whole.slice(1, 67, 200)]
    names = [f"t{n}" for n in range(len(cuts))]
    stored = tuple(Stored("t.safetensors", n, after, cut) for n, cut in zip(names, cuts, strict=True))
    made = plan(source, [TargetFile("t.safetensors", stored, {})])
    execute(made, tmp_path, memory_budget=1 << 20, threads=1, advance=lambda amount: None)
    expected = cast(values, before, after)
    data = (tmp_path / "t.safetensors").read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for wanted in (expected, expected.T, expected[:, :67], expected[:, 67:]):
        raw = np.ascontiguousarray(wanted).tobytes()
        assert data[start : start + len(raw)] == raw
        start += len(raw)
    assert start == len(data)
    assert made.lossy == (() if after == "F32" else (f"{before} rounded to {after}",))


def test_what_loses_nothing():
    exact = {(a, b) for a, b in product(FLOATS, FLOATS) if FLOATS[a].fits(FLOATS[b])}
    assert exact == {(a, a) for a in FLOATS} | {(a, "F64") for a in FLOATS} | {("F16", "F32"), ("BF16", "F32")}


def test_integers_are_not_cast(tmp_path):
    source = checkpoint(tmp_path, "I32", np.arange(6, dtype="<i4"))
    target = Stored("t", "t", "F32", Arrangement.of("a", (6,)))
    with pytest.raises(PlanError, match="tensor 't': I32 cannot become F32"):
        plan(source, [TargetFile("t", (target,), {})])
