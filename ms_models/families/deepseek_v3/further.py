"""Further-token layers: layer k of them guesses the token k positions beyond the next one (DeepSeek-V3, section 2.2).

`h'_i = eh_proj([enorm(embedding of token i + k), hnorm(h_i)])`, then one decoder layer and a norm, then the model's own
head; `h` is what the model's final norm gave, or what the norm of the further-token layer before gave. Embedding first,
and norms before the chain goes on, as transformers 5 reads the published checkpoints.
"""

from __future__ import annotations

from mindspore import Tensor, nn, ops

from ms_models.families.deepseek_v3.config import DeepseekV3Config
from ms_models.families.deepseek_v3.layers import DeepseekV3DecoderLayer
from ms_models.families.sharding import Sharding
from ms_models.parallel.vocabulary import IGNORED

GROUP = "mtp"
"""What the family's facts call the tensors of these layers."""


class SharedHead(nn.Cell):
    """The norm before the head, which itself is the model's."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding) -> None:
        super().__init__()
        self.norm = sharding.norm(config.hidden_size, config.rms_norm_eps)


class FurtherTokenLayer(DeepseekV3DecoderLayer):
    """A decoder layer, and what is before and behind it: all within one cell, which may be computed again whole."""

    def __init__(self, config: DeepseekV3Config, sharding: Sharding, layer: int) -> None:
        super().__init__(config, sharding, layer)
        width, eps = config.hidden_size, config.rms_norm_eps
        self.enorm = sharding.norm(width, eps)
        self.hnorm = sharding.norm(width, eps)
        self.eh_proj = sharding.replicated(2 * width, width, bias=False)
        self.shared_head = SharedHead(config, sharding)

    def construct(
        self, x_BSN: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What the head reads, and the next further-token layer.

        Args:
            x_BSN: embedded tokens and hidden states side by side, N twice the model's width.
            rotary: see `DeepseekV3DecoderLayer`.
            bias: see there.
            past: see there.
        """
        embedded, hidden = ops.split(x_BSN, x_BSN.shape[-1] // 2, -1)
        x_BSM = self.eh_proj(ops.concat((self.enorm(embedded), self.hnorm(hidden)), -1))
        x_BSM, present = super().construct(x_BSM, rotary, bias, past)
        return self.shared_head.norm(x_BSM), present


def ahead(tokens_BS: Tensor, steps: int, filler: int = IGNORED) -> Tensor:
    """The token `steps` positions later; `filler` where the sequence has ended."""
    rest = ops.full((tokens_BS.shape[0], steps), filler, dtype=tokens_BS.dtype)
    return ops.concat((tokens_BS[:, steps:], rest), 1)


def in_same_document(ahead_BS: Tensor, mask_BS: Tensor, steps: int) -> Tensor:
    """What `ahead` made of labels, without those that a token of another document of the row would have to guess.

    Args:
        ahead_BS: labels `steps` positions later; the token before each one guesses it.
        mask_BS: numbers of documents, 0 for padding.
        steps: see `ahead`.
    """
    guessing = ops.concat((mask_BS[:, :1], mask_BS[:, :-1]), 1)
    is_other = ops.logical_and(ahead(mask_BS, steps, 0) != guessing, guessing != 0)
    return ops.where(is_other, IGNORED, ahead_BS)
