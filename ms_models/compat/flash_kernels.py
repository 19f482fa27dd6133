"""What transformers' model files import of flash attention: its CUDA kernels are absent."""

from __future__ import annotations

from typing import Any, TypedDict

from mindspore import Tensor


class FlashAttentionKwargs(TypedDict, total=False):
    """Arguments of packed sequences."""

    cu_seq_lens_q: Tensor | None
    cu_seq_lens_k: Tensor | None
    max_length_q: int | None
    max_length_k: int | None


def is_flash_attn_available(*args: Any, **kwargs: Any) -> bool:
    """Never."""
    return False


def flash_attn_supports_top_left_mask(*args: Any, **kwargs: Any) -> bool:
    """Only the kernels differ in the corner at which a mask begins."""
    return False


def _flash_attention_forward(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("flash attention is a CUDA kernel; use the attention 'sdpa' or 'eager'")
