"""What a trainer returns, and the nested tensors of an evaluation: gathered batch by batch, padded to one width."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
from mindspore import Tensor


class EvalPrediction:
    """Predictions and labels of a data set as arrays, and inputs and losses where they were asked for."""

    def __init__(self, predictions: Any, label_ids: Any, inputs: Any = None, losses: Any = None) -> None:
        self.predictions, self.label_ids = predictions, label_ids
        self.inputs, self.losses = inputs, losses
        self.elements = (predictions, label_ids, *(given for given in (inputs, losses) if given is not None))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.elements)

    def __getitem__(self, idx: int) -> Any:
        if not 0 <= idx < len(self.elements):
            raise IndexError("tuple index out of range")
        return self.elements[idx]


class EvalLoopOutput(NamedTuple):
    """Result of `Trainer.evaluation_loop`."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None
    num_samples: int | None


class PredictionOutput(NamedTuple):
    """Result of `Trainer.predict`."""

    predictions: Any
    label_ids: Any
    metrics: dict[str, float] | None


class TrainOutput(NamedTuple):
    """Result of `Trainer.train`; `training_loss` is the mean over the updates."""

    global_step: int
    training_loss: float
    metrics: dict[str, float]


class Batches:
    """Results of an evaluation, batch after batch; joined along the first axis unless `joined` is off."""

    def __init__(self, joined: bool = True) -> None:
        self._joined = joined
        self._parts: list[Any] = []

    def add(self, batch: Any) -> None:
        """Take the tensors of a batch, as arrays."""
        self._parts.append(mapped(_array, batch))

    def arrays(self) -> Any:
        """Everything that was added; None for nothing."""
        if not self._parts:
            return None
        return joined(self._parts) if self._joined else self._parts


def mapped(function: Callable[[Any], Any], value: Any) -> Any:
    """A function on every tensor of nested tuples, lists and mappings; everything else stays."""
    if isinstance(value, Mapping):
        return {key: mapped(function, item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(mapped(function, item) for item in value)
    return function(value) if isinstance(value, Tensor | np.ndarray) else value


def joined(parts: list[Any], filler: int = -100) -> Any:
    """Nested arrays of several batches one after the other; where their second axes differ, padded at the end.

    Raises:
        TypeError: something that is no array.
    """
    first = parts[0]
    if isinstance(first, Mapping):
        return {key: joined([part[key] for part in parts], filler) for key in first}
    if isinstance(first, tuple | list):
        return type(first)(joined(list(column), filler) for column in zip(*parts, strict=True))
    if not isinstance(first, np.ndarray):
        raise TypeError(f"Unsupported type for concatenation: got {type(first)}")
    arrays = [np.atleast_1d(part) for part in parts]
    if arrays[0].ndim > 1 and len({array.shape[1] for array in arrays}) > 1:
        width = max(array.shape[1] for array in arrays)
        arrays = [padded(array, width, filler) for array in arrays]
    return np.concatenate(arrays)


def padded(array: np.ndarray[Any, Any], width: int, filler: int = -100) -> np.ndarray[Any, Any]:
    """An array whose second axis is filled up at the end."""
    result = np.full_like(array, filler, shape=(array.shape[0], width, *array.shape[2:]))
    result[:, : array.shape[1]] = array
    return result


def batch_size_of(batch: Any) -> int | None:
    """Length of the first axis of the first tensor that has one."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, tuple | list):
        return next((size for size in map(batch_size_of, batch) if size is not None), None)
    return batch.shape[0] if isinstance(batch, Tensor | np.ndarray) and batch.ndim else None


def plain_numbers(value: Any) -> Any:
    """Arrays and tensors of one element as numbers, in nested lists and dictionaries."""
    if isinstance(value, dict):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(plain_numbers(item) for item in value)
    if isinstance(value, np.generic):
        return value.item()
    return value.item() if isinstance(value, Tensor) and value.size == 1 else value


def _array(tensor: Any) -> np.ndarray[Any, Any]:
    if not isinstance(tensor, Tensor):
        return np.asarray(tensor)
    return (tensor.astype(ms.float32) if tensor.dtype == ms.bfloat16 else tensor).asnumpy()
