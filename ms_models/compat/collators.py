"""Collators of transformers: samples of a data set become a batch of tensors; the tokenizer pads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops


def default_data_collator(features: list[Any], return_tensors: str = "pt") -> dict[str, Any]:
    """A batch of everything that is no text: `label` and `label_ids` become `labels`.

    Samples are mappings, or objects with attributes; the first one says what there is. Numbers become int64 or float32.
    """
    samples = [sample if isinstance(sample, Mapping) else vars(sample) for sample in features]
    first = samples[0]
    batch: dict[str, Any] = {}
    for name in ("label", "label_ids"):
        if first.get(name) is not None:
            batch["labels"] = stacked([sample[name] for sample in samples])
            break
    for name, value in first.items():
        if name not in ("label", "label_ids") and value is not None and not isinstance(value, str):
            batch[name] = stacked([sample[name] for sample in samples])
    return batch if return_tensors == "pt" else {name: value.asnumpy() for name, value in batch.items()}


@dataclass
class DefaultDataCollator:
    """`default_data_collator` as an object."""

    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> dict[str, Any]:
        return default_data_collator(features, return_tensors or self.return_tensors)


@dataclass
class DataCollatorWithPadding:
    """Pads samples to the longest one of the batch, or as `padding` says."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        batch = padded(self, features, self.return_tensors)
        for name in ("label", "label_ids"):
            if name in batch:
                batch["labels"] = batch.pop(name)
        return batch


@dataclass
class DataCollatorForTokenClassification:
    """Pads samples and, on the same side and to the same length, their labels."""

    tokenizer: Any
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        kind = return_tensors or self.return_tensors
        name = "label" if "label" in features[0] else "labels"
        batch = padded(self, [{k: v for k, v in sample.items() if k != name} for sample in features], kind)
        if name in features[0]:
            rows = [plain(sample[name]) for sample in features]
            width = batch["input_ids"].shape[1]
            batch[name] = filled(rows, width, self.label_pad_token_id, self.tokenizer.padding_side, kind)
        return batch


@dataclass
class DataCollatorForSeq2Seq:
    """Pads samples, and their labels to a length of their own; the model may make decoder inputs of the labels."""

    tokenizer: Any
    model: Any = None
    padding: Any = True
    max_length: int | None = None
    pad_to_multiple_of: int | None = None
    label_pad_token_id: int = -100
    return_tensors: str = "pt"

    def __call__(self, features: list[dict[str, Any]], return_tensors: str | None = None) -> Any:
        kind = return_tensors or self.return_tensors
        name = "label" if "label" in features[0] else "labels"
        batch = padded(self, [{k: v for k, v in sample.items() if k != name} for sample in features], kind)
        rows: list[Any] = [sample.get(name) for sample in features]
        if all(row is None for row in rows):
            batch["labels"] = None
            return batch
        rows = [plain(row) for row in rows]
        width = max(map(len, rows))
        if self.padding == "max_length" and self.max_length is not None:
            width = self.max_length
        if self.pad_to_multiple_of is not None and self.padding not in (False, "do_not_pad"):
            width = -(-width // self.pad_to_multiple_of) * self.pad_to_multiple_of
        batch["labels"] = filled(rows, width, self.label_pad_token_id, self.tokenizer.padding_side, kind)
        if hasattr(self.model, "prepare_decoder_input_ids_from_labels"):
            batch["decoder_input_ids"] = self.model.prepare_decoder_input_ids_from_labels(labels=batch["labels"])
        return batch


def padded(collator: Any, samples: list[dict[str, Any]], kind: str) -> Any:
    """Samples padded by the tokenizer of a collator, with the collator's settings: tensors, or arrays for "np"."""
    settings = {name: getattr(collator, name) for name in ("padding", "max_length") if hasattr(collator, name)}
    samples = [{name: plain(value) for name, value in sample.items()} for sample in samples]
    warned = getattr(collator.tokenizer, "deprecation_warnings", {})
    before = warned.get("Asking-to-pad-a-fast-tokenizer", False)
    warned["Asking-to-pad-a-fast-tokenizer"] = True  # samples are tokenized long before: no warning on that
    try:
        batch = collator.tokenizer.pad(
            samples, pad_to_multiple_of=collator.pad_to_multiple_of, return_tensors="np", **settings
        )
    finally:
        warned["Asking-to-pad-a-fast-tokenizer"] = before
    return {name: Tensor(_as_torch(value)) if kind == "pt" else value for name, value in batch.items()}


def stacked(values: list[Any]) -> Tensor:
    """Tensors, arrays, numbers or lists of numbers as one tensor, in the types that torch gives them."""
    if isinstance(values[0], Tensor):
        return ops.stack(values)
    if isinstance(values[0], np.ndarray | np.generic):
        return Tensor(np.stack(values))
    return Tensor(_as_torch(np.array(values)))


def filled(rows: list[list[Any]], width: int, filler: int, side: str, kind: str = "pt") -> Any:
    """Rows of different lengths as int64 `[rows, width]`, filled up on one side.

    Raises:
        ValueError: a row is longer than `width`.
    """
    if any(len(row) > width for row in rows):
        raise ValueError(f"a row has {max(map(len, rows))} labels, but the batch is {width} wide")
    fillers = [[filler] * (width - len(row)) for row in rows]
    joined = [row + more if side == "right" else more + row for row, more in zip(rows, fillers, strict=True)]
    array = np.array(joined, np.int64).reshape(len(rows), width)
    return Tensor(array, ms.int64) if kind == "pt" else array


def plain(value: Any) -> Any:
    """A tensor or an array as a list, a sequence as one."""
    if isinstance(value, Tensor):
        return value.asnumpy().tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple | range) else value


def _as_torch(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Python's floats become float32, as in torch."""
    return array.astype(np.float32) if array.dtype == np.float64 else array
