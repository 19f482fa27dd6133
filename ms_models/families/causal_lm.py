"""`CausalLM`: what every decoder of this package offers around its layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from mappings.families import Family
from mappings.shards import Shard, rank_shards
from ms_models.families.config import DecoderConfig
from ms_models.parallel.collectives import GatherFromGroup
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.vocabulary import IGNORED, VocabParallelCrossEntropy


class CausalLM(nn.Cell):
    """A decoder whose output is cut along the vocabulary.

    A family's class sets `model` (tokens to hidden states), and defines `head` (hidden states to this rank's logits)
    and `read_config`.

    Attributes:
        config: the typed settings.
        mesh: where this process sits.
        shards: by Hugging Face name, which is also the parameter's name, the piece this rank holds.
    """

    def __init__(self, config: DecoderConfig, raw: Mapping[str, Any], family: Family, mesh: Mesh) -> None:
        super().__init__()
        self.config = config
        self.mesh = mesh
        pieces = rank_shards(family, raw, mesh.layout, mesh.rank)
        self.shards: dict[str, Shard] = {piece.parameter.name: piece for piece in pieces}
        self.vocab = config.vocab_size
        self.vocab_rows = self.shards["model.embed_tokens.weight"].shape[0]
        group = mesh.group("tp")
        self.gather_vocab = GatherFromGroup(group, 2)
        self.cross_entropy = VocabParallelCrossEntropy(config.vocab_size, self.vocab_rows, group)

    def construct(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Logits `[B, S, vocab]`, the whole vocabulary on every rank.

        Args:
            input_ids: `[B, S]` int32 or int64.
            attention_mask: `[B, S]`, 0 for padding on either side; None for none.
            position_ids: `[B, S]`; 0, 1, 2 ... where not given, also under padding, as in transformers.
        """
        hidden, _ = self.model(input_ids, attention_mask, position_ids)
        logits = self.gather_vocab(self.head(hidden))
        return logits if logits.shape[-1] == self.vocab else logits[..., : self.vocab]

    def loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over valid positions, and their number; both fp32 scalars, equal on all tp ranks.

        Labels stand at the positions of the inputs and are shifted here; -100 is ignored. The caller divides by the
        number of valid positions of the whole global batch. Token ids outside the vocabulary make the loss NaN.

        Args:
            input_ids: `[B, S]` int32 or int64.
            labels: `[B, S]`, same dtype.
            attention_mask: `[B, S]`, 0 for padding on either side; None for none.
        """
        hidden, _ = self.model(input_ids, attention_mask)
        logits = self.head(hidden)
        last = ops.full((labels.shape[0], 1), IGNORED, dtype=labels.dtype)
        targets = ops.concat((labels[:, 1:], last), 1).reshape(-1)
        losses = self.cross_entropy(logits.reshape(-1, self.vocab_rows), targets)
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        total = ops.where(known, losses.sum(), float("nan"))
        return total, (targets != IGNORED).astype(ms.float32).sum()

    def check_parameters(self) -> None:
        """Asserts that the cells hold exactly the parameters, in exactly the shapes, that the family's facts name."""
        built = {parameter.name: tuple(parameter.shape) for parameter in self.get_parameters()}
        named = {name: shard.shape for name, shard in self.shards.items()}
        assert built == named, f"cells and family facts differ in {sorted(set(built.items()) ^ set(named.items()))}"
