"""8- and 4-bit floats mean what torch and ml_dtypes say, for every code, and blocks what transformers says.

ml_dtypes is among the packages of `.[dev]`, but nothing else here needs it, so it is used where it is installed.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.integrations import finegrained_fp8, mxfp4

from mappings.errors import UserError
from migrate.weights.decoding.fp8 import BlockFp8
from migrate.weights.decoding.mxfp4 import Mxfp4
from migrate.weights.decoding.tables import MINIFLOATS, scales, to_bf16, values
from migrate.weights.tensors import Part

REFERENCES = ["torch", *(["ml_dtypes"] if find_spec("ml_dtypes") else [])]
EIGHT_BITS = {
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu",
}


def wide(reference: str, codes: np.ndarray, kind: str) -> np.ndarray:
    """Codes as fp32, as a reference understands them."""
    if reference == "torch":
        return torch.from_numpy(codes.copy()).view(getattr(torch, kind)).to(torch.float32).numpy()
    return codes.view(getattr(import_module(reference), kind)).astype(np.float32)


def in_bf16(reference: str, numbers: np.ndarray) -> np.ndarray:
    """Numbers of fp32, rounded to BF16 by a reference."""
    if reference == "torch":
        return torch.from_numpy(numbers.copy()).to(torch.bfloat16).to(torch.float32).numpy()
    return numbers.astype(import_module(reference).bfloat16).astype(np.float32)


def same(ours: Any, theirs: Any) -> bool:
    """Equal bits, any NaN equal to any other."""
    nan = np.isnan(theirs)
    return bool(np.array_equal(np.isnan(ours), nan)) and bool(
        np.array_equal(ours[~nan].view(np.uint32), theirs[~nan].view(np.uint32))
    )


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("dtype", EIGHT_BITS)
def test_every_code_of_eight_bits(dtype: str, reference: str) -> None:
    assert same(values(dtype), wide(reference, np.arange(256, dtype=np.uint8), EIGHT_BITS[dtype]))


def test_every_code_of_four_bits() -> None:
    positive = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]  # OCP microscaling formats 1.0, table of E2M1
    assert same(values("F4"), np.array([*positive, *(-v for v in positive)], np.float32))
    for reference in REFERENCES[1:]:  # torch has no arithmetic for them
        assert same(values("F4"), wide(reference, np.arange(16, dtype=np.uint8), "float4_e2m1fn"))
    assert set(MINIFLOATS) | {"F8_E8M0"} == {*EIGHT_BITS, "F4"}


@pytest.mark.parametrize("reference", REFERENCES)
def test_rounding_to_bf16_is_that_of_others(reference: str) -> None:
    generator = np.random.default_rng(0)
    bits = np.concatenate(
        [
            generator.integers(0, 2**32, 200_000, dtype=np.uint32),
            (np.arange(2**16, dtype=np.uint32) << 16) | 0x8000,  # every tie
            (np.arange(2**16, dtype=np.uint32) << 16) | 0x7FFF,
            (np.arange(2**16, dtype=np.uint32) << 16) | 0x8001,
        ]
    )
    numbers = bits.view(np.float32)
    theirs = in_bf16(reference, numbers)
    ours = (to_bf16(numbers).astype(np.uint32) << 16).view(np.float32)
    assert same(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_scales(dtype: torch.dtype) -> None:
    spelled = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}[dtype]
    stored = torch.randn(50).to(dtype)
    assert same(scales(stored.view(torch.uint8).numpy(), spelled), stored.float().numpy())
    with pytest.raises(ValueError, match="not known"):
        scales(np.zeros(8, np.uint8), "I64")


def part(path: Path, tensor: torch.Tensor, name: str, dtype: str, offset: int) -> Part:
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(raw)
    return Part(path, name, dtype, tuple(tensor.shape), offset, len(raw))


def read(path: Path, offset: int, count: int) -> memoryview:
    with path.open("rb") as file:
        file.seek(offset)
        return memoryview(file.read(count))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "f").touch()
    return tmp_path / "f"


@pytest.mark.parametrize(
    ("shape", "block"), [((130, 200), (128, 128)), ((576, 70), (128, 128)), ((7, 9), (1, 9)), ((7, 9), (7, 9))]
)
@pytest.mark.parametrize("scale_dtype", ["F32", "F8_E8M0"])
@pytest.mark.parametrize("dtype", ["BF16", "F32"])
def test_fp8_in_blocks_that_are_cut_at_the_edges(
    path: Path, shape: tuple[int, int], block: tuple[int, int], scale_dtype: str, dtype: str
) -> None:
    generator = torch.Generator().manual_seed(3)
    codes = torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)
    grid = [-(-n // b) for n, b in zip(shape, block, strict=True)]
    stored = torch.rand(grid, generator=generator) + 0.01
    if scale_dtype == "F8_E8M0":
        stored = torch.randint(110, 140, grid, dtype=torch.uint8, generator=generator).view(torch.float8_e8m0fnu)
    numbers = codes.view(torch.float8_e4m3fn).float()
    spread = stored.float().repeat_interleave(block[0], 0).repeat_interleave(block[1], 1)[: shape[0], : shape[1]]
    expected = (numbers * spread).to(torch.bfloat16 if dtype == "BF16" else torch.float32)

    weight = part(path, codes, "w.weight", "F8_E4M3", 3)
    decoder = BlockFp8(weight, part(path, stored, "w.weight_scale_inv", scale_dtype, 10**6), block, dtype)
    cut = shape[0] // 2 + 1
    found = np.concatenate([decoder.rows(0, cut, read), decoder.rows(cut, shape[0], read)])
    as_floats = (found.astype(np.uint32) << 16).view(np.float32) if dtype == "BF16" else found
    assert same(as_floats, expected.float().numpy())
    wrong = decoder.rows(0, cut, lambda *place: memoryview(bytes(read(*place))[::-1]))
    assert not np.array_equal(wrong, found[:cut])


@pytest.mark.filterwarnings("error")
def test_fp8_beyond_the_numbers_is_quiet(path: Path) -> None:
    """Inf times zero and what is too large for fp32 are what the arithmetic makes of them, without a warning."""
    codes = torch.tensor([[0x7C, 0x7B, 0xFC, 0x00]], dtype=torch.uint8)  # Inf, the largest, -Inf, 0 of E5M2
    weight = part(path, codes, "w.weight", "F8_E5M2", 0)
    scale = part(path, torch.tensor([[0.0, 3e38, 1.0, float("inf")]]), "w.weight_scale_inv", "F32", 10**3)
    found = BlockFp8(weight, scale, (1, 1), "F32").rows(0, 1, read)
    assert same(found, np.array([[np.nan, np.inf, -np.inf, np.nan]], np.float32))


def test_fp8_scales_of_another_grid_are_refused(path: Path) -> None:
    weight = part(path, torch.zeros(130, 128, dtype=torch.uint8), "w.weight", "F8_E4M3", 0)
    for grid in ((1, 1), (2, 2), (3, 1), (1, 2)):
        scale = part(path, torch.ones(grid), "w.weight_scale_inv", "F32", 10**5)
        with pytest.raises(UserError, match=r"needs \[2, 1\]"):
            BlockFp8(weight, scale, (128, 128))


def test_fp8_blocks_are_transformers_s(path: Path) -> None:
    codes = torch.randint(0, 256, (256, 128), dtype=torch.uint8)
    stored = torch.rand(2, 1) + 0.01
    weight = part(path, codes, "w.weight", "F8_E4M3", 0)
    decoder = BlockFp8(weight, part(path, stored, "w.weight_scale_inv", "F32", 10**6), (128, 128), "F32")
    theirs = finegrained_fp8.Fp8Dequantize(None)._dequantize_one(codes.view(torch.float8_e4m3fn), stored, torch.float32)
    assert same(decoder.rows(0, 256, read), theirs.float().numpy())


@pytest.mark.parametrize("reference", REFERENCES)
def test_mxfp4_every_code_under_every_scale(path: Path, reference: str) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1).reshape(256, 16, 16)
    exponents = torch.arange(256, dtype=torch.uint8)[:, None].expand(256, 16)
    decoder = Mxfp4(part(path, codes, "w_blocks", "U8", 0), part(path, exponents, "w_scales", "U8", 10**6))
    assert decoder.shape == (256, 512)
    found = np.concatenate([decoder.rows(0, 100, read), decoder.rows(100, 256, read)])
    nibbles = torch.stack([codes & 15, codes >> 4], -1).reshape(256, 512).numpy()
    scale = wide(reference, np.arange(256, dtype=np.uint8), "float8_e8m0fnu")
    elements = values("F4")[nibbles] if reference == "torch" else wide(reference, nibbles, "float4_e2m1fn")
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (elements.astype(np.float64) * scale[:, None].astype(np.float64)).astype(np.float32)
    assert same((found.astype(np.uint32) << 16).view(np.float32), in_bf16(reference, exact))


def test_mxfp4_is_transformers_s(path: Path) -> None:
    experts, rows, groups = 2, 6, 3
    codes = torch.randint(0, 256, (experts, rows, groups, 16), dtype=torch.uint8)
    exponents = torch.randint(100, 150, (experts, rows, groups), dtype=torch.uint8)
    theirs = mxfp4.convert_moe_packed_tensors(codes, exponents)  # [experts, groups * 32, rows]
    decoder = Mxfp4(part(path, codes, "w_blocks", "U8", 0), part(path, exponents, "w_scales", "U8", 10**6))
    found = decoder.rows(0, experts * rows, read).astype(np.uint32) << 16
    expected = theirs.transpose(1, 2).contiguous().float().numpy().reshape(experts * rows, -1)
    assert same(found.view(np.float32), expected)


def test_mxfp4_misfits_are_refused(path: Path) -> None:
    codes = part(path, torch.zeros(2, 3, 16, dtype=torch.uint8), "w_blocks", "U8", 0)
    with pytest.raises(UserError, match=r"needs \[2, 3\]"):
        Mxfp4(codes, part(path, torch.zeros(3, 2, dtype=torch.uint8), "w_scales", "U8", 10**4))
    scale = part(path, torch.zeros(2, 3, dtype=torch.uint8), "w_scales", "U8", 10**4)
    with pytest.raises(UserError, match="no MXFP4 blocks"):
        Mxfp4(part(path, torch.zeros(2, 3, 8, dtype=torch.uint8), "w_blocks", "U8", 0), scale)
