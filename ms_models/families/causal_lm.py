"""`CausalLM`: what every decoder of this package offers around its layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from mappings.families import Family
from mappings.shards import Shard, rank_shards
from ms_models.families.config import DecoderConfig
from ms_models.parallel.collectives import GatherFromGroup
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.vocabulary import IGNORED, VocabParallelCrossEntropy
from ms_models.saving import Origin, write_directory


class CausalLM(nn.Cell):
    """A decoder whose output is cut along the vocabulary.

    A family's class sets `model` (tokens to hidden states), and defines `head` (hidden states to this rank's logits)
    and `read_config`.

    Attributes:
        config: the typed settings.
        mesh: where this process sits.
        origin: where the weights came from; None before they are loaded.
        shards: by Hugging Face name, which is also the parameter's name, the piece this rank holds.
    """

    def __init__(self, config: DecoderConfig, raw: Mapping[str, Any], family: Family, mesh: Mesh) -> None:
        super().__init__()
        self.config = config
        self.mesh = mesh
        pieces = rank_shards(family, raw, mesh.layout, mesh.rank)
        self.shards: dict[str, Shard] = {piece.parameter.name: piece for piece in pieces}
        self.origin: Origin | None = None
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
        hidden = self.model(input_ids, attention_mask, position_ids)[0]
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
        hidden = self.model(input_ids, attention_mask)[0]
        logits = self.head(hidden)
        last = ops.full((labels.shape[0], 1), IGNORED, dtype=labels.dtype)
        targets = ops.concat((labels[:, 1:], last), 1).reshape(-1)
        losses = self.cross_entropy(logits.reshape(-1, self.vocab_rows), targets)
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        total = ops.where(known, losses.sum(), float("nan"))
        return total, (targets != IGNORED).astype(ms.float32).sum()

    def generate(self, input_ids: Tensor, max_new_tokens: int, attention_mask: Tensor | None = None) -> Tensor:
        """Continues each row with the likeliest token, again and again; keys and values are cached. Not for `ms.jit`.

        Stops early when every row has produced an end token; rows that ended first are filled with the padding token
        (the end token where the config has none). Positions count from the first token of a left-padded row.

        Args:
            input_ids: `[B, S]` int32 or int64; shorter rows padded on the left.
            max_new_tokens: at least 1.
            attention_mask: `[B, S]`, 0 for padding; None for none.

        Returns:
            `[B, S + new]`, prompt included, in the dtype of the prompt.

        Raises:
            UserError: a token outside the vocabulary, a row padded on the right, or no token wanted.
        """
        tokens = input_ids.asnumpy()
        mask = np.ones_like(tokens) if attention_mask is None else (attention_mask.asnumpy() != 0).astype(tokens.dtype)
        self._check_prompt(tokens, mask, max_new_tokens)
        ends = self.config.eos_token_ids
        filler = self.config.pad_token_id if self.config.pad_token_id is not None else (ends or (0,))[0]
        running = np.ones(len(tokens), bool)
        past = None
        fresh, positions = tokens, np.maximum(mask.cumsum(1) - 1, 0)
        for _ in range(max_new_tokens):
            hidden, past = self.model(Tensor(fresh), Tensor(mask), Tensor(positions.astype(tokens.dtype)), past)
            logits = self.gather_vocab(self.head(hidden[:, -1:]))[:, 0, : self.vocab].asnumpy()
            chosen = np.where(running, logits.argmax(-1), filler).astype(tokens.dtype)
            running &= ~np.isin(chosen, ends)
            fresh, positions = chosen[:, None], positions[:, -1:] + 1
            tokens = np.concatenate((tokens, fresh), 1)
            mask = np.concatenate((mask, np.ones_like(fresh)), 1)
            if not running.any():
                break
        return Tensor(tokens)

    def _check_prompt(self, tokens: np.ndarray, mask: np.ndarray, max_new_tokens: int) -> None:
        if max_new_tokens < 1:
            raise UserError(f"generate: max_new_tokens must be at least 1, found {max_new_tokens}")
        if not mask[:, -1].all():
            raise UserError("generate: a prompt ends in padding; pad prompts on the left")
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise UserError(f"generate: the prompt holds a token outside the vocabulary of {self.vocab}")

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes a Hugging Face directory: the tensors in the dtypes and files they were loaded from, and side files.

        Weights that were not changed are written bit for bit as they were; changed ones are rounded to nearest even.

        Raises:
            UserError: the model is cut over ranks, the target exists, or a value does not fit the stored dtype.
        """
        if self.origin is None:
            raise UserError(f"{directory}: this model was not loaded from a directory, so its format is unknown")
        if self.mesh.layout.tp > 1:
            raise UserError(
                f"{directory}: each rank of tp={self.mesh.layout.tp} holds a piece only; "
                "save a sharded checkpoint and run `msmigrate weights export` on it"
            )
        values = {parameter.name: parameter.asnumpy() for parameter in self.get_parameters()}
        pieces = {name: shard.parameter.shape for name, shard in self.shards.items()}
        write_directory(Path(directory), self.origin, {name: values[name][: pieces[name][0]] for name in values})

    def check_parameters(self) -> None:
        """Asserts that the cells hold exactly the parameters, in exactly the shapes, that the family's facts name."""
        built = {parameter.name: tuple(parameter.shape) for parameter in self.get_parameters()}
        named = {name: shard.shape for name, shard in self.shards.items()}
        assert built == named, f"cells and family facts differ in {sorted(set(built.items()) ^ set(named.items()))}"
