"""The fused attention for Ascend: called only where its meaning is torch's, and then with the right arguments.

The kernel cannot run here. A stand-in does what its documentation says, so that the arguments are judged by the result.
"""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from ms_models.compat import flash_attention

CALLS: list[dict[str, Any]] = []


def kernel(query: Any, key: Any, value: Any, head_num: int, **options: Any) -> ms.Tensor:
    """`ops.flash_attention_score` by its documentation: True is left out, mode 2 is a triangle from the top left."""
    CALLS.append(options)
    assert options["input_layout"] == "BNSD" and head_num == query.shape[1] and query.dtype == ms.float16
    q, k, v = (t.asnumpy().astype(np.float32) for t in (query, key, value))
    k, v = (np.repeat(t, head_num // t.shape[1], axis=1) for t in (k, v))
    scores = q @ k.swapaxes(-2, -1) * options["scalar_value"]
    mask = options["attn_mask"]
    if options["sparse_mode"] == 2:
        assert mask.shape == (2048, 2048) and mask.dtype == ms.bool_
        left_out = mask.asnumpy()
        assert left_out[0, 1] and not left_out[1, 0] and not left_out[7, 7]
        scores = np.where(left_out[: scores.shape[-2], : scores.shape[-1]], -np.inf, scores)
    else:
        assert options["sparse_mode"] == 0 and mask is None
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return ms.Tensor((weights / weights.sum(-1, keepdims=True) @ v).astype(np.float16))


@pytest.fixture(autouse=True)
def _ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    CALLS.clear()
    monkeypatch.setattr(flash_attention, "accelerator_available", lambda: True)
    monkeypatch.setattr(ms.ops, "flash_attention_score", kernel)


def tensors(lengths: tuple[int, int] = (5, 5), shared: int = 4, dtype: Any = np.float16) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    shapes = [(2, 4, lengths[0], 16), (2, shared, lengths[1], 16), (2, shared, lengths[1], 16)]
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def compare(inputs: list[np.ndarray[Any, Any]], **options: Any) -> None:
    expected = torch.nn.functional.scaled_dot_product_attention(*map(torch.from_numpy, inputs), **options)
    given = {k: ms.Tensor(v.numpy()) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
    actual = flash_attention.scaled_dot_product_attention(*map(ms.Tensor, inputs), **given)
    # half precision keeps 11 bits; torch and the plain operations round in between
    assert np.allclose(expected.float().numpy(), actual.asnumpy().astype(np.float32), rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize("lengths", [(5, 5), (3, 7), (7, 3)])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}, {"is_causal": True, "scale": 1}])
def test_fused(lengths: tuple[int, int], options: dict[str, Any]) -> None:
    compare(tensors(lengths), **options)
    assert len(CALLS) == 1


def test_fused_with_shared_heads() -> None:
    compare(tensors(shared=2), enable_gqa=True, is_causal=True)
    assert len(CALLS) == 1


def test_plain_for_what_the_kernel_does_not_promise() -> None:
    compare(tensors(dtype=np.float32))
    compare(tensors(), attn_mask=torch.tensor([[True, False, True, True, False]] * 4 + [[False] * 5]))
    compare([array[0] for array in tensors()], is_causal=True)
    query, key, value = tensors()
    compare([query, key, value[..., :8].copy()])
    compare([array[..., :8].copy() for array in tensors()])
    compare([np.tile(array, 33) for array in tensors((2, 2))])
    compare([np.tile(array, (1, 65, 1, 1)) for array in tensors((2, 2))])
    compare([array[..., :8].copy() for array in tensors()])
    compare([np.tile(array, (1, 1, 1, 33)) for array in tensors()], scale=0.01)  # 528 wide
    compare([np.tile(array, (1, 65, 1, 1)) for array in tensors()])  # 260 heads
    assert not CALLS


def test_plain_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attention, "accelerator_available", lambda: False)
    compare(tensors(), is_causal=True)
    assert not CALLS
