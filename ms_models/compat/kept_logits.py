"""Which positions a language model's head computes."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, ops


def slice_logits_to_keep(hidden_states: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The last `logits_to_keep` positions of `[batch, positions, size]`, all for 0.

    A tensor says which: numbers for all rows `[n]` or for each `[batch, n]`, or True and False `[batch, positions]`.
    """
    if not isinstance(logits_to_keep, int):
        if logits_to_keep.ndim == 2 and logits_to_keep.dtype != ms.bool_:
            wanted = (*logits_to_keep.shape, hidden_states.shape[-1])
            return ops.gather_elements(hidden_states, 1, logits_to_keep.expand_dims(-1).broadcast_to(wanted))
        return hidden_states[logits_to_keep] if logits_to_keep.ndim == 2 else hidden_states[:, logits_to_keep, :]
    length = hidden_states.shape[1]
    begin = -logits_to_keep if logits_to_keep <= 0 else max(length - logits_to_keep, 0)
    return hidden_states if begin == 0 else hidden_states[:, begin:, :]
