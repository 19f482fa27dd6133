"""Collators for language models: labels are the inputs themselves, or the tokens that were hidden."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor

from .collators import filled, padded, plain
from .random import default_generator


@dataclass
class DataCollatorForLanguageModeling:
    """Pads samples; with `mlm` some tokens are hidden (BERT, Devlin et al., 2019), and labels are -100 for the others.

    Numbers are drawn as transformers draws them, from another generator: the same distribution, not the same tokens.

    Raises:
        ValueError: a tokenizer without a mask token, or probabilities outside of [0, 1].
        NotImplementedError: `whole_word_mask`.
    """

    tokenizer: Any
    mlm: bool = True
    whole_word_mask: bool = False
    mlm_probability: float | None = 0.15
    mask_replace_prob: float = 0.8
    random_replace_prob: float = 0.1
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.whole_word_mask:
            raise NotImplementedError("DataCollatorForLanguageModeling(whole_word_mask=True) is not converted")
        if self.mlm and self.tokenizer.mask_token is None:
            raise ValueError("This tokenizer does not have a mask token, which masked language modeling needs")
        shares = (self.mlm_probability or 0.0, self.mask_replace_prob, self.random_replace_prob)
        if not all(0 <= share <= 1 for share in shares) or shares[1] + shares[2] > 1:
            raise ValueError(f"probabilities and their sum should be between 0 and 1, but are {shares}")
        self._own = None if self.seed is None else np.random.default_rng(self.seed)

    def __call__(self, features: list[Any], return_tensors: str | None = None) -> Any:
        if isinstance(features[0], Mapping):
            batch = padded(self, features, "np")
        else:
            batch = {"input_ids": self._rows(features)}
        special = batch.pop("special_tokens_mask", None)
        batch.pop("offset_mapping", None)
        tokens = batch["input_ids"].astype(np.int64)
        if self.mlm:
            batch["input_ids"], batch["labels"] = self._masked(tokens, special)
        else:
            pad = self.tokenizer.pad_token_id
            batch["labels"] = tokens if pad is None else np.where(tokens == pad, -100, tokens)
        if (return_tensors or self.return_tensors) == "np":
            return batch
        return {name: Tensor(np.ascontiguousarray(value)) for name, value in batch.items()}

    def _rows(self, samples: list[Any]) -> np.ndarray[Any, Any]:
        rows = [plain(sample) for sample in samples]
        width = max(map(len, rows))
        if self.pad_to_multiple_of is not None:
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        if self.tokenizer.pad_token is None and any(len(row) != width for row in rows):
            raise ValueError("samples of different lengths need a tokenizer with a pad token")
        return np.asarray(filled(rows, width, self.tokenizer.pad_token_id or 0, self.tokenizer.padding_side, "np"))

    def _masked(self, tokens: np.ndarray[Any, Any], special: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Inputs with hidden tokens, and labels; special tokens are never hidden."""
        source = default_generator.numpy if self._own is None else self._own
        if special is None:
            rows = tokens.tolist()
            special = [self.tokenizer.get_special_tokens_mask(row, already_has_special_tokens=True) for row in rows]
        chosen = (source.random(tokens.shape) < (self.mlm_probability or 0.0)) & ~np.asarray(special, bool)
        labels = np.where(chosen, tokens, -100)
        hidden = (source.random(tokens.shape) < self.mask_replace_prob) & chosen
        inputs = np.where(hidden, self.tokenizer.convert_tokens_to_ids(self.tokenizer.mask_token), tokens)
        if self.mask_replace_prob < 1 and self.random_replace_prob > 0:
            share = self.random_replace_prob / (1 - self.mask_replace_prob)
            replaced = (source.random(tokens.shape) < share) & chosen & ~hidden
            inputs = np.where(replaced, source.integers(len(self.tokenizer), size=tokens.shape), inputs)
        return inputs, labels


@dataclass
class DataCollatorWithFlattening:
    """All samples in one row, with `position_ids` that begin again; the first label of each is `separator_id`."""

    return_tensors: str = "pt"
    return_position_ids: bool = True
    separator_id: int = -100
    return_flash_attn_kwargs: bool = False
    return_seq_idx: bool = False
    position_ids_start: int = 0

    def __call__(self, features: list[Any], return_tensors: Any = None, separator_id: int | None = None) -> Any:
        separator = self.separator_id if separator_id is None else separator_id
        samples = [{k: plain(v) for k, v in s.items()} for s in features if len(s["input_ids"])]
        if not samples:
            raise ValueError("every example of the batch is empty")
        lengths = [len(sample["input_ids"]) for sample in samples]
        rows: dict[str, Any] = {
            "input_ids": [token for sample in samples for token in sample["input_ids"]],
            "labels": [n for s in samples for n in [separator, *s.get("labels", s["input_ids"])[1:]]],
        }
        if self.return_position_ids:
            rows["position_ids"] = [self.position_ids_start + i for length in lengths for i in range(length)]
        if self.return_seq_idx:
            rows["seq_idx"] = [number for number, length in enumerate(lengths) for _ in range(length)]
        batch: dict[str, Any] = {
            name: np.array([row], np.int32 if name == "seq_idx" else np.int64) for name, row in rows.items()
        }
        if self.return_flash_attn_kwargs:
            ends = np.cumsum([0, *lengths]).astype(np.int32)
            batch["cu_seq_lens_q"] = batch["cu_seq_lens_k"] = ends
            batch["max_length_q"] = batch["max_length_k"] = max(lengths)
        if (return_tensors or self.return_tensors) == "np":
            return batch
        return {name: Tensor(v) if isinstance(v, np.ndarray) else v for name, v in batch.items()}
