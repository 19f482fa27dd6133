"""Several prepared directories as one stream of rows, each by its weight.

The stream is divided into blocks of `BLOCK` positions. Every block holds the same number of rows of each source, spread
evenly with some jitter, in an order that the seed and the number of the block decide. So the source of a position, and
how many rows that source gave before it, follow from the position alone: nothing is kept but the position, any layout
sees the same stream, and resuming costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from ms_models.data.order import SampleOrder
from ms_models.data.records import PreparedData, Split

BLOCK = 1 << 14
"""Weights count in steps of one in this many."""
Parts = Sequence[tuple[Path, float]]
"""Directories of prepared data, and the weight of each."""


class BlendedOrder:
    """Which row of which source stands at which position.

    Args:
        rows: of each source.
        weights: of each source, above 0; their sum does not matter.
        seed: of the order.
    """

    def __init__(self, rows: Sequence[int], weights: Sequence[float], seed: int) -> None:
        self.seed = seed
        self.shares = _shares(weights)
        """Positions of a block that each source has, int64."""
        self._orders = [
            SampleOrder(count, seed, () if len(rows) == 1 else (number,)) for number, count in enumerate(rows)
        ]
        self._cached: tuple[int, np.ndarray, np.ndarray] | None = None

    def __getitem__(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of sources, and rows in them, at global `positions` (any shape), int64."""
        if len(self._orders) == 1:
            return np.zeros(positions.shape, np.int64), self._orders[0][positions]
        sources, before = self._places(positions)
        rows = np.empty(positions.shape, np.int64)
        for number, order in enumerate(self._orders):
            chosen = sources == number
            if chosen.any():
                rows[chosen] = order[before[chosen]]
        return sources, rows

    def drawn(self, position: int) -> list[int]:
        """How many rows each source gave before `position`."""
        if len(self._orders) == 1:
            return [position]
        block, offset = divmod(position, BLOCK)
        sources, _ = self._block(block)
        return [
            int(block * share + (sources[:offset] == number).sum()) for number, share in enumerate(self.shares.tolist())
        ]

    def _places(self, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        blocks, offsets = np.divmod(positions, BLOCK)
        sources, before = np.empty(positions.shape, np.int64), np.empty(positions.shape, np.int64)
        for block in np.unique(blocks):
            chosen = blocks == block
            of_block, ranks = self._block(int(block))
            found = of_block[offsets[chosen]]
            sources[chosen] = found
            before[chosen] = block * self.shares[found] + ranks[offsets[chosen]]
        return sources, before

    def _block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The source at each offset of a block, and how many of its rows came before in the block."""
        if self._cached is None or self._cached[0] != block:
            generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self.seed, block, BLOCK])))
            sources = np.repeat(np.arange(len(self.shares)), self.shares)
            ranks = np.concatenate([np.arange(share) for share in self.shares])
            order = np.argsort((ranks + generator.random(BLOCK)) / self.shares[sources], kind="stable")
            sources = sources[order]
            # the k-th place of a source is its k-th row
            ranks = np.empty(BLOCK, np.int64)
            for number, share in enumerate(self.shares):
                ranks[sources == number] = np.arange(share)
            self._cached = (block, sources, ranks)
        return self._cached[1], self._cached[2]


def described(parts: Parts) -> PreparedData:
    """The description of several directories as if they were one; of a single one, its own.

    Names of shards begin with the number of their source then.

    Raises:
        UserError: one is no prepared data, or they differ in sequence length, tokenizer or isolation of documents.
    """
    found = [PreparedData.read(directory) for directory, _ in parts]
    first = found[0]
    if len(found) == 1:
        return first
    for (directory, _), data in zip(parts[1:], found[1:], strict=True):
        for name, ours, theirs in (
            ("sequences of", first.seq_length, data.seq_length),
            ("tokenizer", first.tokenizer["sha256"], data.tokenizer["sha256"]),
            ("separated documents", first.isolates, data.isolates),
        ):
            if ours != theirs:
                raise UserError(
                    f"{directory}: cannot be blended with {parts[0][0]}: {name} {theirs} against {ours}; "
                    "prepare it anew"
                )
    splits = {
        name: Split(
            rows=sum(data.splits[name].rows for data in found),
            tokens=sum(data.splits[name].tokens for data in found),
            files={
                f"{number}/{file}": record
                for number, data in enumerate(found)
                for file, record in data.splits[name].files.items()
            },
        )
        for name in first.splits
    }
    largest = max(data.tokenizer["largest_id"] for data in found)
    return replace(
        first,
        splits=splits,
        tokenizer={**first.tokenizer, "largest_id": largest},
        sources=[
            {
                "name": str(directory),
                "weight": weight,
                "rows": {name: data.splits[name].rows for name in data.splits},
            }
            for (directory, weight), data in zip(parts, found, strict=True)
        ],
    )


def _shares(weights: Sequence[float]) -> np.ndarray:
    """Weights as numbers of positions that add up to a block: largest remainder, and at least one each."""
    exact = np.array(weights, np.float64) / sum(weights) * BLOCK
    shares = np.maximum(np.floor(exact).astype(np.int64), 1)
    while (missing := BLOCK - int(shares.sum())) != 0:
        gap = exact - shares
        if missing > 0:
            shares[np.argmax(gap)] += 1
        else:
            shares[np.argmin(np.where(shares > 1, gap, np.inf))] -= 1
    return shares
