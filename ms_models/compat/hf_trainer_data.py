"""The part of a trainer that makes loaders of its data sets."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from .data import DataLoader, IterableDataset
from .samplers import RandomSampler, Sampler, SequentialSampler
from .seeded_order import LengthGroupedSampler, SeededRandomSampler


class TrainerData:
    """Loaders of training, evaluation and test data; a subclass of the trainer may override each method."""

    args: Any
    model: Any
    accelerator: Any
    data_collator: Callable[[list[Any]], Any]
    train_dataset: Any
    eval_dataset: Any
    processing_class: Any
    label_names: list[str]
    _signature_columns: list[str] | None = None

    def get_train_dataloader(self) -> Any:
        """Loader of the training data of this rank.

        Raises:
            ValueError: there are none.
        """
        if self.train_dataset is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        sampler = self._get_train_sampler()
        return self._loader(self.train_dataset, self.args.train_batch_size, sampler)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Loader of evaluation data: the trainer's, one of several by its name, or a data set.

        Raises:
            ValueError: there are none.
        """
        if eval_dataset is None and self.eval_dataset is None:
            raise ValueError("Trainer: evaluation requires an eval_dataset.")
        if isinstance(eval_dataset, str):
            eval_dataset = self.eval_dataset[eval_dataset]
        dataset = self.eval_dataset if eval_dataset is None else eval_dataset
        return self._loader(dataset, self.args.eval_batch_size, self._get_eval_sampler(dataset))

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Loader of a data set for `predict`."""
        return self._loader(test_dataset, self.args.eval_batch_size, self._get_eval_sampler(test_dataset))

    def num_examples(self, dataloader: Any) -> int:
        """Samples of a loader; estimated where its data set has no length."""
        dataset: Any = getattr(dataloader, "dataset", None)
        if has_length(dataset):
            return len(dataset)
        return len(dataloader) * self.args.per_device_train_batch_size

    def _loader(self, dataset: Any, batch_size: int, sampler: Iterable[int] | None) -> Any:
        ordered = not isinstance(dataset, IterableDataset) and hasattr(dataset, "__getitem__")
        if not ordered and not isinstance(dataset, IterableDataset):
            dataset = _Stream(dataset)
        loader = DataLoader(
            dataset,
            batch_size=batch_size,
            sampler=sampler if ordered else None,
            drop_last=self.args.dataloader_drop_last,
            collate_fn=self._collator_of_used_columns(),
            num_workers=self.args.dataloader_num_workers,
        )
        return self.accelerator.prepare(loader)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler | None:
        dataset = self.train_dataset if train_dataset is None else train_dataset
        if dataset is None or not has_length(dataset):
            return None
        if self.args.train_sampling_strategy == "sequential":
            return SequentialSampler(dataset)
        if self.args.train_sampling_strategy == "group_by_length":
            size = self.args.train_batch_size * self.args.gradient_accumulation_steps
            return LengthGroupedSampler(self._lengths(dataset), size)
        if self.args.data_seed is not None:
            return SeededRandomSampler(dataset, self.args.data_seed)
        return RandomSampler(dataset)

    def _get_eval_sampler(self, eval_dataset: Any) -> Sampler | None:
        if eval_dataset is None or not has_length(eval_dataset):
            return None
        if self.args.train_sampling_strategy == "group_by_length":
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return LengthGroupedSampler(self._lengths(eval_dataset), self.args.eval_batch_size, seed)
        return SequentialSampler(eval_dataset)

    def _lengths(self, dataset: Any) -> list[int]:
        if self.args.length_column_name in (getattr(dataset, "column_names", None) or ()):
            return list(dataset[self.args.length_column_name])
        names = getattr(self.processing_class, "model_input_names", None) or ["input_ids"]
        if not hasattr(dataset[0], "keys") or names[0] not in dataset[0]:
            raise ValueError(f"lengths can only be found for samples that are dictionaries with a {names[0]!r} key")
        return [len(dataset[number][names[0]]) for number in range(len(dataset))]

    # -- columns that the model does not take
    def _collator_of_used_columns(self) -> Callable[[list[Any]], Any]:
        if not self.args.remove_unused_columns:
            return self.data_collator
        self._set_signature_columns_if_needed()
        used, collate = set(self._signature_columns or ()), self.data_collator

        def collate_used(samples: list[Any]) -> Any:
            kept = [{k: v for k, v in s.items() if k in used} if isinstance(s, dict) else s for s in samples]
            if isinstance(kept[0], dict) and not kept[0]:
                raise ValueError(
                    f"no column of the data set is an argument of the model ({', '.join(sorted(used))}); set "
                    "remove_unused_columns=False if the collator makes them"
                )
            return collate(kept)

        return collate_used

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:
            names = list(inspect.signature(self.model.construct).parameters)
            self._signature_columns = [*names, "label", "label_ids", *self.label_names]

    def _prepare_inputs(self, inputs: Any) -> Any:
        """The batch as the model gets it.

        Raises:
            ValueError: it is empty.
        """
        if len(inputs) == 0:
            raise ValueError("the batch is empty: no column of the data set is an argument of the model")
        return inputs

    def _prepare_input(self, data: Any) -> Any:
        """Part of a batch as the model gets it; tensors need no device."""
        return data


class _Stream(IterableDataset):
    """Data that can only be iterated over, such as a streamed data set."""

    def __init__(self, samples: Iterable[Any]) -> None:
        self._samples = samples

    def __iter__(self) -> Any:
        return iter(self._samples)

    def __getattr__(self, name: str) -> Any:
        if name == "_samples":  # while a copy is made
            raise AttributeError(name)
        return getattr(self._samples, name)


def has_length(dataset: Any) -> bool:
    """Whether `len` works."""
    try:
        return len(dataset) is not None
    except (TypeError, AttributeError, RuntimeError, NotImplementedError):
        return False
