"""`MeasuredModel`: an adapted model whose logits are known, for accuracy and samples."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
import numpy as np
from mindspore import Tensor

from ms_models.families.causal_lm import likeliest
from ms_models.train.adapter.model import AdaptedModel


class MeasuredModel(AdaptedModel):
    """As `AdaptedModel`; the configuration says where forward returns logits."""

    def measure(
        self, x: Tensor | None, chunk: int, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """`advance` for evaluations: behind the last chunk `[2]` fp32, the summed loss and the labels that were hit.

        Args:
            x: see `advance`.
            chunk: see `advance`.
            input_ids: see `advance`.
            labels: see `advance`.
            attention_mask: see `advance`.
        """
        if self.mesh.layout.pp == 1:
            return self.forward_of.measure(input_ids, labels, attention_mask)
        span, is_first, is_last = self.part(chunk)
        x = None if is_first else x
        return self.through(span, x, input_ids, labels, attention_mask, is_last=is_last, measured=is_last)

    def generate(
        self,
        input_ids: Tensor,
        new_tokens: int,
        attention_mask: Tensor,
        choose: Callable[[np.ndarray], np.ndarray] = likeliest,
    ) -> Tensor:
        """Prompts with their continuations, `[B, S + new_tokens]` int32.

        Row by row, without padding and without a cache: nothing is known of how forward would take either.

        Args:
            input_ids: `[B, S]`, padded on the left.
            new_tokens: how many tokens are added to each.
            attention_mask: `[B, S]`, 0 for padding.
            choose: tokens `[B]` from logits `[B, V]`.
        """
        ids, real = input_ids.asnumpy().astype(np.int32), attention_mask.asnumpy() != 0
        made = np.zeros((ids.shape[0], new_tokens), np.int32)
        for row in range(ids.shape[0]):
            known = ids[row][real[row]]
            for place in range(new_tokens):
                made[row, place] = choose(self._last_logits(known))[0]
                known = np.append(known, made[row, place])
        return Tensor(np.concatenate([ids, made], axis=1))

    def _last_logits(self, tokens: np.ndarray) -> np.ndarray:
        """`[1, V]`, behind the last token."""
        given = Tensor(tokens[None])
        forward = self.forward_of
        # Forward may want labels to give logits for every position; any that are tokens will do.
        output = forward.call(given, given, Tensor(np.ones_like(tokens)[None]))
        found: np.ndarray = forward.logits(output)[:, -1].astype(ms.float32).asnumpy()
        return found
