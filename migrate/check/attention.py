"""C432 and C433: which kind of attention each layer has, and the implementation that a file asks for."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.check import cells
from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "config.json"
LAYER_TYPES = ("full_attention", "sliding_attention", "chunked_attention", "linear_attention", "attention", "conv")
IMPLEMENTATIONS = ("eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")


def layer_types_fit(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`layer_types` has one known name for each layer, and windows have a size."""
    config = subject.config
    types, layers, window = config.get("layer_types"), config.get("num_hidden_layers"), config.get("sliding_window")
    if types is not None:
        tally.add()
        if not isinstance(types, list):
            yield finding("C433", f"layer_types is {types!r}, no list", file=FILE, field="layer_types")
            return
        if type(layers) is int and len(types) != layers:
            message = f"layer_types has {len(types)} entries, num_hidden_layers is {layers}"
            yield finding("C433", message, file=FILE, field="layer_types")
        if unknown := [name for name in types if name not in LAYER_TYPES]:
            message = f"layer_types holds {unknown[0]!r}; known are {', '.join(LAYER_TYPES)}"
            yield finding("C433", message, file=FILE, field="layer_types")
    if window is not None:
        tally.add()
        # Qwen2's files without windows say 0.
        least = 0 if config.get("use_sliding_window") is False else 1
        if type(window) is not int or window < least:
            yield finding("C433", f"sliding_window is {window!r}", file=FILE, field="sliding_window")
    elif isinstance(types, list) and "sliding_attention" in types:
        message = "layer_types has sliding_attention, sliding_window is not set"
        yield finding("C433", message, file=FILE, field="sliding_window")
    last = config.get("max_window_layers")
    if last is not None and config.get("use_sliding_window"):
        tally.add()
        if type(last) is not int or last < 0:
            yield finding("C433", f"max_window_layers is {last!r}", file=FILE, field="max_window_layers")


def windows_are_computed(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """No sliding window is switched on, except where ms_models computes it."""
    config = subject.config
    if not cells.is_built(config) or config.get("model_type") in cells.WINDOWED:
        return
    tally.add()
    # Qwen2 keeps a window size even where use_sliding_window is false; Mistral-style files have the size alone.
    window, layers = config.get("sliding_window"), config.get("layer_types")
    sliding = isinstance(layers, list) and "sliding_attention" in layers
    if sliding or config.get("use_sliding_window", window is not None):
        message = f"sliding_window is {window}, and switched on"
        yield finding("C408", message, file=FILE, field="layer_types" if sliding else "sliding_window")


def implementation_is_known(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """A file that asks for an implementation of attention names one that transformers has."""
    for field in ("attn_implementation", "_attn_implementation"):
        value = subject.config.get(field)
        if value is None:
            continue
        tally.add()
        # A kernel of the hub (org/name), or one of these over pages of a cache.
        is_kernel = isinstance(value, str) and "/" in value
        if not is_kernel and str(value).removeprefix("paged|") not in IMPLEMENTATIONS:
            message = f"{field} is {value!r}; transformers has {', '.join(IMPLEMENTATIONS)}"
            yield finding("C432", message, file=FILE, field=field)


ASSERTIONS = (layer_types_fit, windows_are_computed, implementation_is_known)
