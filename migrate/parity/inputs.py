"""The batch both sides see: padded on either side, unequal masks, some labels ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mappings.families.positions import longest_sequence
from migrate.parity.job import CAUSAL, MASKED

IGNORED = -100
BATCH = 3
# Odd, so that it meets no other size of a model and a transposed axis cannot hide.
LENGTH = 41
SHORTEST = 4
LONGEST_WINDOW = 512
BEYOND = 9
"""Positions behind the window."""


def make_batch(
    config: Mapping[str, Any],
    seed: int,
    task: str = CAUSAL,
    *,
    rows: int = BATCH,
    parts: int = 1,
    segments: bool = True,
) -> dict[str, np.ndarray]:
    """A batch for the model of a `config.json`; the same for the same seed.

    Row 0 is full, row 1 padded on the right, row 2 on the left, and so on. A pad token, where the model names one, also
    stands among the real tokens: transformers gives its row no gradient there, and a port must do the same. Sequences
    are longer than a sliding window, so that it is felt, unless that has more than `LONGEST_WINDOW` positions.

    Labels of a decoder are the inputs, -100 under padding, at the first token after left padding (the position that
    predicts it sees nothing, and frameworks differ there) and at a few other places, so that rows have unequal numbers
    of valid positions. Those of an encoder stand at a quarter of the tokens, in unequal numbers too, and are what was
    there before: most of these places hold another token. Its segments change within each row.

    Args:
        config: contents of `config.json`.
        seed: of everything random.
        task: `causal` or `masked`.
        rows: B.
        parts: that the length must be a multiple of, for ranks that divide sequences.
        segments: whether those of an encoder change within rows; the runner knows the first one only.

    Returns:
        `input_ids`, `labels`, `attention_mask` and for encoders `token_type_ids`, `[B, S]` int64; S is 41 where nothing
        speaks against it.
    """
    rng = np.random.default_rng(seed)
    limit = longest_sequence(config)
    window = sliding_window(config)
    wanted = LENGTH if window is None or window > LONGEST_WINDOW else max(LENGTH, window + BEYOND)
    length = wanted if limit is None else max(SHORTEST, min(wanted, limit[0]))
    length = max(length // parts, 1) * parts
    pad = config.get("pad_token_id")
    mask = np.ones((rows, length), np.int64)
    mask[1::3, length - length // 3 :] = 0
    mask[2::3, : length // 4] = 0
    ids = rng.integers(0, config["vocab_size"], (rows, length), dtype=np.int64)
    if type(pad) is int and 0 <= pad < config["vocab_size"]:
        ids[mask == 0] = ids[0, 1] = pad
    if task == MASKED:
        return _hidden(config, rng, ids, mask, segments)
    labels = ids.copy()
    labels[rng.random((rows, length)) < 0.1] = IGNORED
    labels[mask == 0] = IGNORED
    labels[2::3, length // 4] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _hidden(
    config: Mapping[str, Any], rng: np.random.Generator, ids: np.ndarray, mask: np.ndarray, changing: bool
) -> dict[str, np.ndarray]:
    chosen = (rng.random(ids.shape) < 0.25) & (mask == 1)
    chosen[:, ids.shape[1] // 2] = True  # no row without a label
    labels = np.where(chosen, rng.integers(0, config["vocab_size"], ids.shape), IGNORED)
    kinds = config.get("type_vocab_size", 2) if changing else 1
    segments = np.arange(ids.size).reshape(ids.shape) // 5 % (kinds if type(kinds) is int else 1)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels, "token_type_ids": segments}


def sliding_window(config: Mapping[str, Any]) -> int | None:
    """Width of the sliding window of attention; None where the model has none."""
    window = config.get("sliding_window")
    return window if type(window) is int and config.get("use_sliding_window", True) else None


def unseen(config: Mapping[str, Any], length: int) -> dict[str, str]:
    """What of a configuration a comparison with rows of this length does not show: the field, and why.

    Both sides are in evaluation mode, where nothing is dropped, so rates of dropout do not matter and are not compared.
    """
    found = {}
    window = sliding_window(config)
    if window is not None and window >= length:
        found[f"sliding_window {window}"] = f"rows of {length} positions do not reach beyond it"
    rates = {name: value for name, value in config.items() if ("drop" in name or name.endswith("pdrop")) and value}
    for name, value in rates.items():
        found[f"{name} {value}"] = "both sides evaluate, and drop nothing"
    return found


def valid_labels(batch: Mapping[str, np.ndarray]) -> int:
    """Number of positions that enter the loss: decoders shift labels by one, encoders (with segments) do not."""
    labels = batch["labels"]
    return int(((labels if "token_type_ids" in batch else labels[:, 1:]) != IGNORED).sum())
