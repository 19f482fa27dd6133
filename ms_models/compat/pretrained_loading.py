"""Weights by name into a model: names of older files and of models with or without a head, and a report of the rest."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor

from .tied_weights import untie
from .whole import own_values, whole_shape

logger = logging.getLogger(__name__)
_OLD_NAMES = (
    (re.compile(r"LayerNorm\.gamma$"), "LayerNorm.weight"),
    (re.compile(r"LayerNorm\.beta$"), "LayerNorm.bias"),
)


def cast(model: Any, dtype: Any) -> None:
    """What a file holds of the model to a floating point type, but for what the model wants to keep in float32."""
    kept = set(model._keep_in_fp32_modules_strict or ())
    if dtype == ms.float16:
        kept |= set(model._keep_in_fp32_modules or ())
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            wanted = ms.float32 if any(part in kept for part in name.split(".")) else dtype
            if value.dtype != wanted:
                value.assign_value(value.astype(wanted))


def load_state(model: Any, state: dict[str, Tensor], ignore_mismatched_sizes: bool, source: str) -> dict[str, Any]:
    """Assign tensors to the parameters and buffers of their names.

    Args:
        model: keeps its initial values where the state has none.
        state: tensors by name.
        ignore_mismatched_sizes: whether a tensor of another shape is left out instead of being an error.
        source: where the state comes from, for the report.

    Returns:
        `missing_keys`, `unexpected_keys`, `mismatched_keys` and `error_msgs`; what is in them is also logged.

    Raises:
        RuntimeError: shapes differ.
    """
    expected = dict(model.state_dict(keep_vars=True))
    renamed = {_renamed(name, model.base_model_prefix, expected): value for name, value in state.items()}
    _untie_different(model, renamed)
    expected = dict(model.state_dict(keep_vars=True))
    mismatched = []
    for name, value in renamed.items():
        target = expected.get(name)
        if target is None:
            continue
        if tuple(value.shape) != whole_shape(target):
            mismatched.append((name, tuple(value.shape), whole_shape(target)))
        else:
            target.assign_value(own_values(target, value))
    # Names of one parameter are all there when one of them is.
    loaded = {id(expected[name]) for name in renamed if name in expected}
    missing = {name for name, value in expected.items() if id(value) not in loaded}
    unexpected = set(renamed) - set(expected)
    missing = names_without_patterns(missing, model._keys_to_ignore_on_load_missing)
    unexpected = names_without_patterns(unexpected, [*(model._keys_to_ignore_on_load_unexpected or ()), *_moved(model)])
    _report(type(model).__name__, source, missing, unexpected, mismatched)
    if mismatched and not ignore_mismatched_sizes:
        name, found, wanted = mismatched[0]
        raise RuntimeError(
            f"{source}: {len(mismatched)} weights have another shape than in {type(model).__name__}, e.g. {name} "
            f"{found} instead of {wanted}; pass ignore_mismatched_sizes=True to keep their initial values"
        )
    return {
        "missing_keys": missing,
        "unexpected_keys": unexpected,
        "mismatched_keys": set(mismatched),
        "error_msgs": [],
    }


def names_without_patterns(names: Iterable[str], patterns: Iterable[str] | None) -> set[str]:
    """Names in which none of the patterns is found."""
    compiled = [re.compile(pattern) for pattern in patterns or ()]
    return {name for name in names if not any(pattern.search(name) for pattern in compiled)}


def _renamed(name: str, prefix: str, expected: dict[str, Any]) -> str:
    """The model's name for a name of a file, which may be of a model with a head, or without one."""
    for pattern, new in _OLD_NAMES:
        name = pattern.sub(new, name)
    if prefix and name not in expected:
        if (inner := name.removeprefix(f"{prefix}.")) in expected:
            return inner
        if f"{prefix}.{name}" in expected:
            return f"{prefix}.{name}"
    return name


def _untie_different(model: Any, state: dict[str, Tensor]) -> None:
    """Two tied names that a file has different values for are not tied."""
    for target, source in list(model.all_tied_weights_keys.items()):
        if target in state and source in state and not np.array_equal(_values(state[target]), _values(state[source])):
            logger.warning("%s and %s have different values, so they are not tied", target, source)
            untie(model, target)
            del model.all_tied_weights_keys[target]


def _values(tensor: Tensor) -> Any:
    return (tensor.astype(ms.float32) if tensor.dtype == ms.bfloat16 else tensor).asnumpy()


def _moved(model: Any) -> list[str]:
    """Buffers that old files have for every layer."""
    names = [name for name, _ in model.named_buffers()]
    moved = {r"rotary_emb\.inv_freq": "rotary_emb.inv_freq", r"(^|\.)position_ids$": "position_ids"}
    return [pattern for pattern, end in moved.items() if any(name.endswith(end) for name in names)]


def _report(model: str, source: str, missing: set[str], unexpected: set[str], mismatched: list[Any]) -> None:
    for what, names in (
        ("are not in the model and were left out", sorted(unexpected)),
        ("are not in the checkpoint and have initial values; train the model before you use it", sorted(missing)),
        ("have another shape", [name for name, _, _ in mismatched]),
    ):
        if names:
            shown = ", ".join(names[:10]) + (f", and {len(names) - 10} more" if len(names) > 10 else "")
            logger.warning("%s from %s: %d weights %s: %s", model, source, len(names), what, shown)
