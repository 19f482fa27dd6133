"""How a Gemma 2 is cut: as a Llama. Looked-up rows are scaled; the two further norms of a layer are on every rank."""

from __future__ import annotations

from ms_models.families.llama.sharding import LlamaSharding
from ms_models.parallel.vocabulary import VocabParallelEmbedding


class Gemma2Sharding(LlamaSharding):
    """Makes each class of layer in the form this rank holds."""

    def embedding(self, hidden: int, padding_id: int | None) -> VocabParallelEmbedding:
        """Token embedding times the root of the model's width."""
        return VocabParallelEmbedding(self.vocab_rows, hidden, self.group, padding_id, scale=hidden**0.5)
