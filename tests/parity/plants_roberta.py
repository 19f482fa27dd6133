"""Faults planted into a RoBERTa: its positions; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("roberta", {})
WORDS = "roberta.embeddings.word_embeddings"
TABLE = "roberta.embeddings.position_embeddings"
PLANTS = {
    "positions from 0": Plant("F", TABLE, "a BERT's positions"),
    "positions from pad": Plant("F", TABLE, "off by one"),
    "positions count padding": Plant("F", TABLE, "an offset instead of a count"),
    "row of padding trained": Plant("G", f"{WORDS}.weight", "`padding_idx` forgotten", WORDS),
}
BENIGN = ("nothing",)


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families.bert.model import BertEmbeddings
    from ms_models.families.roberta.model import RobertaEmbeddings
    from ms_models.parallel.vocabulary import VocabParallelEmbedding

    count = RobertaEmbeddings.count
    return {
        "nothing": (RobertaEmbeddings, "count", count),
        "positions from 0": (RobertaEmbeddings, "count", BertEmbeddings.count),
        "positions from pad": (RobertaEmbeddings, "count", lambda self, ids: ops.maximum(count(self, ids) - 1, 1)),
        "positions count padding": (
            RobertaEmbeddings,
            "count",
            lambda self, ids: BertEmbeddings.count(self, ids) + self.pad + 1,
        ),
        "row of padding trained": (VocabParallelEmbedding, "construct", VocabParallelEmbedding.look_up),
    }
