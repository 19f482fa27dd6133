"""The dropout of `ms_models.layers.dropout` written a second time, in NumPy, and put into a transformers model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

SPREAD = np.uint32(0x61C88647)
SITE = 0x3C6EF35F


def scramble(x: np.ndarray) -> np.ndarray:
    """lowbias32 on unsigned numbers."""
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x846CA68B)
    return x ^ (x >> np.uint32(16))


def sample_seeds(ids: np.ndarray) -> np.ndarray:
    """One number per row of ids."""
    place = scramble(np.arange(ids.shape[1], dtype=np.uint32))
    return scramble(scramble(ids.astype(np.uint32) * SPREAD + place).sum(axis=1, dtype=np.uint32))


def keep(shape: tuple[int, ...], seeds: np.ndarray, site: int, rate: float) -> np.ndarray:
    """Which values of a tensor `[B, ..., N]` stay."""
    row = np.arange(np.prod(shape[1:-1]), dtype=np.uint32) * SPREAD
    start = scramble(seeds + np.uint32(site * SITE % (1 << 31)))
    key = scramble(start[:, None] + row).reshape(*shape[:-1], 1)
    value = key + scramble(np.arange(shape[-1], dtype=np.uint32) + SPREAD)
    value = value * (value + value + np.uint32(1)) + scramble(key + SPREAD)
    value = value * (value + value + np.uint32(1))
    return (value.astype(np.int64) ^ (1 << 31)) >= round(rate * (1 << 32))  # upper bit flipped: signed order


def patch(monkeypatch: pytest.MonkeyPatch, ids: np.ndarray) -> list[float]:
    """Makes the n-th dropout of every forward pass of transformers drop what our n-th site drops.

    Returns:
        The rates it was called with, filled during the pass.
    """
    seeds, rates = sample_seeds(ids), list[float]()

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        assert training
        rates.append(p)
        mask = torch.tensor(keep(tuple(x.shape), seeds, len(rates) - 1, p))
        return x * mask / (1 - p)

    monkeypatch.setattr(torch.nn.functional, "dropout", dropout)
    return rates
