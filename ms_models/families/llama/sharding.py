"""How a Llama is cut over the tensor-parallel ranks, by class of layer. `model.py` asks here for its layers.

| class | layers | cut |
|---|---|---|
| embedding | embed_tokens | vocabulary rows; results summed |
| attention | q, k, v | column parallel: whole heads per rank |
| attention | o | row parallel: results summed |
| ffn | gate, up | column parallel |
| ffn | down | row parallel: results summed |
| lm_head | lm_head | vocabulary rows: each rank makes some of the logits |
| norm | all | on every rank |

The same facts stand per parameter in `mappings/families/llama.yaml` (`cut`); a model checks that both agree.
"""

from __future__ import annotations

from ms_models.layers.norm import HeadRMSNorm
from ms_models.parallel.collectives import CopyToGroup
from ms_models.parallel.linear import ColumnParallelLinear, RowParallelLinear
from ms_models.parallel.mesh import Group
from ms_models.parallel.vocabulary import VocabParallelEmbedding


class LlamaSharding:
    """Makes each class of layer in the form this rank holds."""

    def __init__(self, group: Group, vocab_rows: int) -> None:
        """Args: the tensor-parallel group; vocabulary rows per rank, padding included."""
        self.group = group
        self.vocab_rows = vocab_rows

    def local(self, heads: int) -> int:
        """Heads per rank, of `heads` in all."""
        return heads // self.group.size

    def enter(self) -> CopyToGroup:
        """What a replicated tensor passes once before column-parallel layers."""
        return CopyToGroup(self.group)

    def embedding(self, hidden: int, padding_id: int | None) -> VocabParallelEmbedding:
        """Token embedding; the row of `padding_id` learns nothing from lookups."""
        return VocabParallelEmbedding(self.vocab_rows, hidden, self.group, padding_id)

    def attention_in(self, hidden: int, outputs: int, *, bias: bool) -> ColumnParallelLinear:
        """q, k or v."""
        return ColumnParallelLinear(hidden, outputs, self.group, bias=bias)

    def attention_out(self, inputs: int, hidden: int, *, bias: bool) -> RowParallelLinear:
        """The output projection."""
        return RowParallelLinear(inputs, hidden, self.group, bias=bias)

    def head_norm(self, head_dim: int, eps: float) -> HeadRMSNorm:
        """The norm of queries or keys, in families that have it; its gradient is summed over the ranks' heads."""
        return HeadRMSNorm(head_dim, eps, self.group)

    def ffn_in(self, hidden: int, ffn: int, *, bias: bool) -> ColumnParallelLinear:
        """gate or up."""
        return ColumnParallelLinear(hidden, ffn, self.group, bias=bias)

    def ffn_out(self, ffn: int, hidden: int, *, bias: bool) -> RowParallelLinear:
        """down."""
        return RowParallelLinear(ffn, hidden, self.group, bias=bias)

    def lm_head(self, hidden: int) -> ColumnParallelLinear:
        """Makes the logits of this rank's vocabulary rows."""
        return ColumnParallelLinear(hidden, self.vocab_rows * self.group.size, self.group)
