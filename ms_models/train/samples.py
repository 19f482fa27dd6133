"""`Sampler`: what a model makes of the beginnings of texts, at each evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mindspore import Tensor

from ms_models.data.loader import validation_batches
from ms_models.families.causal_lm import likeliest
from ms_models.train.config import RunConfig
from ms_models.train.texts import Texts


class Sampler:
    """Continues `metrics.prompts` and the first tokens of validation sequences, the same on every rank.

    Attributes:
        refusal: why there will be no samples; None where there will, or where none were asked for.

    Raises:
        UserError: a prompt, and no tokenizer.
    """

    def __init__(self, config: RunConfig, model: Any) -> None:
        self._config, self._model = config.metrics, model
        self._seed = config.train.seed
        self._texts = Texts.of(config)
        self._prompts = [self._texts.tokens(text) for text in config.metrics.prompts]
        wanted = config.metrics.prefixes
        self.refusal = _refusal(config, model) if wanted or self._prompts else None
        if wanted and self.refusal is None:
            rows = validation_batches(config.data_parts, micro_batch_size=1, limit=wanted)
            self._prompts += [_beginning(row, config.metrics.prefix_tokens) for row in rows]
        self._new = config.metrics.sample_tokens
        limit = getattr(getattr(model, "config", None), "max_position_embeddings", None)
        if self._prompts and self.refusal is None and limit is not None:
            longest = max(map(len, self._prompts))
            self._new = min(self._new, limit - longest)
            if self._new < 1:
                self.refusal = (
                    f"samples: left out, a prompt of {longest} tokens fills the {limit} positions of the model"
                )

    def samples(self, step: int) -> list[dict[str, str]]:
        """Continuations after a step. Every rank calls it.

        Returns:
            `prompt` and `text` of each.
        """
        if not self._prompts or self.refusal is not None:
            return []
        longest = max(map(len, self._prompts))
        ids = np.zeros((len(self._prompts), longest), np.int32)
        mask = np.zeros_like(ids)
        for row, prompt in enumerate(self._prompts):
            ids[row, longest - len(prompt) :] = prompt
            mask[row, longest - len(prompt) :] = 1
        choose = Drawing(self._config.temperature, [self._seed, step]) if self._config.temperature else likeliest
        made = self._model.generate(Tensor(ids), self._new, Tensor(mask), choose).asnumpy()[:, longest:]
        return [
            {"prompt": self._texts.text(prompt), "text": self._texts.text(row.tolist())}
            for prompt, row in zip(self._prompts, made, strict=True)
        ]


class Drawing:
    """Draws tokens `[B]` from `[B, V]`; ranks with equal logits draw the same.

    Args:
        temperature: logits are divided by it.
        seed: of the draws.
    """

    def __init__(self, temperature: float, seed: Sequence[int]) -> None:
        self._temperature, self._generator = temperature, np.random.default_rng(seed)

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """One token for each row: the largest logit plus Gumbel noise, which is a draw from the softmax."""
        noise = self._generator.gumbel(size=logits.shape)
        chosen: np.ndarray = (logits.astype(np.float64) / self._temperature + noise).argmax(-1)
        return chosen


def _beginning(row: Any, length: int) -> list[int]:
    real = row["input_ids"][0][row["attention_mask"][0] != 0]
    found: list[int] = real[:length].tolist()
    return found or row["input_ids"][0][:1].tolist()


def _refusal(config: RunConfig, model: Any) -> str | None:
    layout = config.layout
    if not hasattr(model, "generate"):
        return f"samples: {type(model).__name__} does not generate"
    cut = [f"{name}={value}" for name, value in (("pp", layout.pp), ("cp", layout.cp)) if value > 1]
    cut += ["zero=3"] if layout.zero == 3 else []
    cut += ["parallel.sequence_parallel"] if layout.tp > 1 and config.parallel.sequence_parallel else []
    if cut:
        return f"samples: left out, with {' and '.join(cut)} no rank holds what a single token needs"
    return None
