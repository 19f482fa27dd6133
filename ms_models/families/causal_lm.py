"""`CausalLM`: what every decoder of this package offers around its layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, ops

from mappings.errors import UserError
from ms_models.families.decoder import Decoder
from ms_models.families.pretrained import Pretrained
from ms_models.families.recomputing import recompute
from ms_models.parallel.collectives import GatherFromGroup, all_reduce
from ms_models.parallel.linear import like
from ms_models.parallel.place import Place
from ms_models.parallel.vocabulary import IGNORED, VocabParallelCrossEntropy


def likeliest(logits: np.ndarray) -> np.ndarray:
    """Tokens `[B]` from logits `[B, vocab]`."""
    chosen: np.ndarray = logits.argmax(-1)
    return chosen


class CausalLM(Pretrained):
    """A decoder whose output is cut along the vocabulary.

    A family's class sets `model_class` and defines `read_config`.
    """

    model_class: type[Decoder]
    body_name = "model"
    """How `body`, the decoder without its head, is called in the names of its parameters."""
    renamed: Mapping[str, str] = {}
    """Further beginnings of parameter names (with `body_name` in them) and what stands in their place."""
    cached_until: float | None = None
    """Length of the longest sequence beyond which keys change, so that cached ones are computed again, once."""

    def __init__(self, config: Any, place: Place) -> None:
        super().__init__(config, place)
        sharding = self.sharding(place)
        place.context.check_heads(sharding.local(config.num_attention_heads))
        self.vocab = config.vocab_size
        self.last_chunk = len(place.chunks) - 1
        self.is_first, self.is_last = place.is_first, place.is_last
        self.body = self.model_class(config, sharding)
        self.enter_head: Any = sharding.enter() if place.is_last else None
        tied = config.tie_word_embeddings
        self.lm_head: Any = None if tied or not place.is_last else sharding.lm_head(config.hidden_size)
        group = place.mesh.group("tp")
        self.experts_group = place.mesh.group("ep")
        self.vocab_rows = place.vocab_rows
        self.gather_vocab = GatherFromGroup(group, 2)
        self.cross_entropy = VocabParallelCrossEntropy(config.vocab_size, place.vocab_rows, group)
        ends = [cell for cell in (self.body.embed_tokens, self.lm_head, self.cross_entropy) if cell is not None]
        recompute(place.options.recompute, self.body.layers, ends)
        numbers = {f"body.layers.{index}.": f"body.layers.{layer}." for index, layer in enumerate(self.body.numbers)}
        self.rename_parameters(numbers, {"body.": f"{self.body_name}."}, self.renamed)
        self.check_parameters()

    def head(self, x_BSM: Tensor) -> Tensor:
        """Logits `[B, S, V]` of this rank's vocabulary rows."""
        x_BSM = self.enter_head(x_BSM)
        if self.lm_head is None:
            return ops.dense(x_BSM, like(self.body.embed_tokens.weight, x_BSM))
        return self.lm_head(x_BSM)

    def construct(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        """Logits `[B, S, vocab]`, the whole vocabulary on every rank; for a model that is whole on this rank.

        Args:
            input_ids: `[B, S]` int32 or int64.
            attention_mask: `[B, S]`, 0 for padding on either side; None for none.
            position_ids: `[B, S]`; 0, 1, 2 ... where not given, also under padding, as in transformers.
        """
        hidden = self.body(input_ids, attention_mask, position_ids)[0]
        logits = self.gather_vocab(self.head(hidden))
        return logits if logits.shape[-1] == self.vocab else logits[..., : self.vocab]

    def loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Cross-entropy summed over valid positions, and their number; both fp32 scalars, equal on all tp ranks.

        Of a sequence that is divided over context-parallel ranks, which all pass it whole, those of this rank's part.

        Labels stand at the positions of the inputs and are shifted here; -100 is ignored. The caller divides by the
        number of valid positions of the whole global batch. Token ids outside the vocabulary make the loss NaN. For a
        model that is whole on this rank.

        Args:
            input_ids: `[B, S]` int32 or int64.
            labels: `[B, S]`, same dtype.
            attention_mask: `[B, S]`, 0 for padding on either side; None for none.
        """
        total = self.advance(None, 0, input_ids, labels, attention_mask)
        return total, (self.targets(labels) != IGNORED).astype(ms.float32).sum()

    def advance(
        self,
        x_BSM: Tensor | None,
        chunk: int,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """One chunk of this pipeline stage: hidden states for the next one, or the summed loss behind the last.

        Args:
            x_BSM: what the chunk before gave; not used by the first of all.
            chunk: which of this stage's chunks.
            input_ids: `[B, S]`, the same on every stage.
            labels: see `loss`.
            attention_mask: see `loss`.
        """
        if self.is_first and chunk == 0:
            x_BSM = self.body.embed(input_ids)
        x_BSM = self.body.through(x_BSM, chunk, input_ids.shape[1], attention_mask)[0]
        if not self.is_last or chunk < self.last_chunk:
            return x_BSM
        return self.total_loss(x_BSM, input_ids, labels, attention_mask)

    def measure(
        self,
        x_BSM: Tensor | None,
        chunk: int,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
    ) -> Tensor:
        """`advance` for evaluations: behind the last chunk `[2]` fp32, the summed loss and how many targets were hit.

        The loss is that of the next token alone, whatever else a family trains on. A target is hit where it is the
        likeliest token. Of a divided sequence this rank's part.
        """
        if not self.is_last or chunk < self.last_chunk:
            return self.advance(x_BSM, chunk, input_ids, labels, attention_mask)
        if self.is_first and chunk == 0:
            x_BSM = self.body.embed(input_ids)
        x_BSM = self.body.through(x_BSM, chunk, input_ids.shape[1], attention_mask)[0]
        logits = self.head(self.body.finish(x_BSM)).reshape(-1, self.vocab_rows)
        targets = self.targets(labels).reshape(-1)
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        total = ops.where(known, self.cross_entropy(logits, targets).sum(), float("nan"))
        return ops.stack((total, self.cross_entropy.hits(logits, targets).sum()))

    def parameters_of(self, chunk: int) -> list[Parameter]:
        """Trainable parameters that a chunk of this stage uses: its layers, and the ends of the model."""
        first, last = self.body.chunks[chunk]
        layers = list(self.body.layers)
        own = [parameter for layer in layers[first:last] for parameter in layer.trainable_params()]
        if (self.is_first and chunk == 0) or (self.is_last and chunk == self.last_chunk):
            of_layers = {parameter.name for layer in layers for parameter in layer.trainable_params()}
            own += [parameter for parameter in self.trainable_params() if parameter.name not in of_layers]
        return own

    def total_loss(
        self, x_BSM: Tensor, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """The summed loss of what the last layer gave."""
        logits = self.head(self.body.finish(x_BSM))
        losses = self.cross_entropy(logits.reshape(-1, self.vocab_rows), self.targets(labels).reshape(-1))
        known = ops.logical_and(input_ids >= 0, input_ids < self.vocab).all()
        return ops.where(known, losses.sum(), float("nan"))

    def targets(self, labels: Tensor) -> Tensor:
        """The label of the next position, `[B, S]`, none at the last one; of a divided sequence this rank's part."""
        last = ops.full((labels.shape[0], 1), IGNORED, dtype=labels.dtype)
        return self.body.own(ops.concat((labels[:, 1:], last), 1))

    def generate(
        self,
        input_ids: Tensor,
        max_new_tokens: int,
        attention_mask: Tensor | None = None,
        choose: Callable[[np.ndarray], np.ndarray] = likeliest,
    ) -> Tensor:
        """Continues each row with one token, again and again; keys and values are cached. Not for `ms.jit`.

        Stops early when every row has produced an end token; rows that ended first are filled with the padding token
        (the end token where the config has none). Positions count from the first token of a left-padded row.

        Args:
            input_ids: `[B, S]` int32 or int64; shorter rows padded on the left.
            max_new_tokens: at least 1.
            attention_mask: `[B, S]`, 0 for padding; None for none.
            choose: tokens `[B]` from logits `[B, vocab]`, the same on all tp ranks; the likeliest where not given.

        Returns:
            `[B, S + new]`, prompt included, in the dtype of the prompt.

        Ranks that hold experts together call it together, with prompts of one shape.

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
            if past is not None and positions.max() == self.cached_until:
                fresh, positions, past = tokens, np.maximum(mask.cumsum(1) - 1, 0), None
            hidden, past = self.body(Tensor(fresh), Tensor(mask), Tensor(positions.astype(tokens.dtype)), past)
            logits = self.gather_vocab(self.head(hidden[:, -1:]))[:, 0, : self.vocab].asnumpy()
            chosen = np.where(running, choose(logits), filler).astype(tokens.dtype)
            running &= ~np.isin(chosen, ends)
            fresh, positions = chosen[:, None], positions[:, -1:] + 1
            tokens = np.concatenate((tokens, fresh), 1)
            mask = np.concatenate((mask, np.ones_like(fresh)), 1)
            if not self._is_any(running):
                break
        return Tensor(tokens)

    def _is_any(self, running: np.ndarray) -> bool:
        """Whether a row is still to be continued, of those of all ranks that hold the experts together."""
        if self.experts_group.size == 1:
            return bool(running.any())
        return bool(all_reduce(Tensor([float(running.any())], ms.float32), self.experts_group).asnumpy()[0] > 0)

    def _check_prompt(self, tokens: np.ndarray, mask: np.ndarray, max_new_tokens: int) -> None:
        if max_new_tokens < 1:
            raise UserError(f"generate: max_new_tokens must be at least 1, found {max_new_tokens}")
        if not mask[:, -1].all():
            raise UserError("generate: a prompt ends in padding; pad prompts on the left")
        if tokens.min() < 0 or tokens.max() >= self.vocab:
            raise UserError(f"generate: the prompt holds a token outside the vocabulary of {self.vocab}")
