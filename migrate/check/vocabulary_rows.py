"""Which stored tensors have one row for each token of the vocabulary, as the family of a model names them."""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError
from migrate.check.subject import Subject


@dataclass(frozen=True)
class VocabularyRows:
    """Names of tensors whose first axis is the vocabulary."""

    embedding: str
    heads: tuple[str, ...]
    """Output head, its biases, and the names under which a tied model may store them a second time."""

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (self.embedding, *self.heads)


# What most decoders call them; for models whose family or sizes cannot be read.
USUAL = VocabularyRows("model.embed_tokens.weight", ("lm_head.weight",))


def vocabulary_rows(subject: Subject) -> VocabularyRows:
    """The names in this model."""
    if subject.family is None:
        return USUAL
    try:
        rows = [parameter for parameter in subject.parameters if parameter.padded]
        ties = subject.family.ties(subject.config)
    except UserError:
        return USUAL  # C414
    tables = [parameter.name for parameter in rows if parameter.layer_class == "embedding"]
    if not tables:
        return USUAL
    heads = [parameter.name for parameter in rows if parameter.name != tables[0]]
    return VocabularyRows(tables[0], (*heads, *(name for name, same in ties.items() if same in (tables[0], *heads))))
