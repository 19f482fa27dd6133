"""`MaskedLM`: what every encoder of this package offers around its layers."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from ms_models.families.encoder_config import EncoderConfig
from ms_models.families.pretrained import Pretrained
from ms_models.parallel.collectives import GatherFromGroup
from ms_models.parallel.place import Place
from ms_models.parallel.vocabulary import IGNORED, VocabParallelCrossEntropy


class MaskedLM(Pretrained):
    """An encoder that says which tokens were hidden; its output is cut along the vocabulary.

    A family's class defines `encode` (tokens to hidden states), `head` (hidden states to this rank's logits) and
    `read_config`.

    Values are dropped while the cell is in training (`set_train(True)`), by the rates of `config.json`. What is
    dropped follows from the ids of each sample, see `ms_models.layers.dropout`.

    Attributes:
        new_weights: names of weights that the checkpoint did not have and that say nothing before they are trained.
    """

    def __init__(self, config: EncoderConfig, place: Place) -> None:
        super().__init__(config, place)
        self.new_weights: tuple[str, ...] = ()
        self.vocab, self.vocab_rows = config.vocab_size, place.vocab_rows
        group = place.mesh.group("tp")
        self.gather_vocab = GatherFromGroup(group, 2)
        self.cross_entropy = VocabParallelCrossEntropy(config.vocab_size, place.vocab_rows, group)

    def construct(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, S, vocab]`, the whole vocabulary on every rank.

        Args:
            input_ids: `[B, S]` int32 or int64.
            attention_mask: `[B, S]`, 0 for padding anywhere; None for none.
            token_type_ids: `[B, S]`, the segment of each token; None for the first segment everywhere.
            position_ids: `[B, S]`, rows of the position table; counted by the family's rule where not given.

        Raises:
            ValueError: sequences longer than the position table. Positions and segments outside of their tables make
                NaN.
        """
        logits = self.gather_vocab(self.head(self.encode(input_ids, attention_mask, token_type_ids, position_ids)))
        return logits if logits.shape[-1] == self.vocab else logits[..., : self.vocab]

    def loss(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over labelled positions, and their number; both fp32 scalars, equal on all tp ranks.

        A label is the token that stands at its own position before it was hidden; -100 is ignored. The caller divides
        by the number of labelled positions of the whole global batch. Ids outside of the vocabulary make the loss NaN.

        Args:
            input_ids: `[B, S]` int32 or int64.
            labels: `[B, S]`, same dtype.
            attention_mask: `[B, S]`, 0 for padding anywhere; None for none.
            token_type_ids: `[B, S]`, the segment of each token; None for the first segment everywhere.
        """
        logits = self.head(self.encode(input_ids, attention_mask, token_type_ids))
        targets = labels.reshape(-1)
        losses = self.cross_entropy(logits.reshape(-1, self.vocab_rows), targets)
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        total = ops.where(known, losses.sum(), float("nan"))
        return total, (targets != IGNORED).astype(ms.float32).sum()

    def measure(
        self,
        x_BSM: Tensor | None,
        chunk: int,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`[2]` fp32: the summed loss, and at how many labelled positions the label is the likeliest token.

        Args:
            x_BSM: not used, an encoder is one chunk; nor is `chunk`.
            chunk: 0.
            input_ids: `[B, S]` int32 or int64.
            labels: see `loss`.
            attention_mask: see `loss`.
        """
        logits = self.head(self.encode(input_ids, attention_mask)).reshape(-1, self.vocab_rows)
        targets = labels.reshape(-1)
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        total = ops.where(known, self.cross_entropy(logits, targets).sum(), float("nan"))
        return ops.stack((total, self.cross_entropy.hits(logits, targets).sum()))

    def parameters_of(self, chunk: int) -> list[Parameter]:
        """Trainable parameters of a chunk of this stage; an encoder is one chunk."""
        assert chunk == 0, f"an encoder has no chunk {chunk}"
        return list(self.trainable_params())

    @staticmethod
    def count_valid(labels: np.ndarray) -> int:
        """Positions that `loss` counts, which are not those of a decoder: labels are not shifted."""
        return int((labels != IGNORED).sum())
