"""Rows of prepared data by number.

They are read through `mindspore.dataset.MindDataset` with a list of row numbers. That gives exact random access, native
prefetching, and no state of its own. (`FileReader` reads from the start only.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from ms_models.data.records import Split
from ms_models.data.rows import FIELDS

Row = Mapping[str, np.ndarray]


class RowReader:
    """Rows of the same split of one or several directories."""

    def __init__(self, directories: Sequence[Path], splits: Sequence[Split]) -> None:
        self.directories, self.splits = directories, splits

    def batches(self, sources: np.ndarray, rows: np.ndarray, size: int) -> Iterator[dict[str, np.ndarray]]:
        """Batches `[size, S]` of the given rows in the given order.

        Args:
            sources: number of the directory of each row.
            rows: numbers of the rows, as many; a multiple of `size`.
            size: rows a batch.

        Raises:
            UserError: a shard is damaged.
        """
        readers = {
            number: self._rows(number, rows[sources == number])
            for number in range(len(self.directories))
            if (sources == number).any()
        }
        order = sources.tolist()
        for start in range(0, len(rows), size):
            batch = [next(readers[number]) for number in order[start : start + size]]
            yield {name: np.stack([row[name] for row in batch]) for name in FIELDS}

    def _rows(self, number: int, rows: np.ndarray) -> Iterator[Row]:
        import mindspore.dataset as ds

        directory, split = self.directories[number], self.splits[number]
        files = [str(directory / name) for name in split.files if name.endswith(".mindrecord")]
        # A pipeline takes at most as many row numbers as there are rows.
        for start in range(0, len(rows), split.rows):
            part = rows[start : start + split.rows].tolist()
            try:
                # One worker keeps the order of the list.
                reader = ds.MindDataset(
                    files, columns_list=list(FIELDS), sampler=ds.SubsetSampler(part), num_parallel_workers=1
                )
                yield from reader.create_dict_iterator(num_epochs=1, output_numpy=True)
            except RuntimeError as error:
                reason = str(error).strip().splitlines()[0]
                raise UserError(
                    f"{directory}: a shard cannot be read ({reason}); see `msmigrate data --verify {directory}`"
                ) from error
