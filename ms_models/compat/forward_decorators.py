"""Decorators around the forward methods of transformers' models, with transformers' meaning."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from .amp import autocast

_DEFAULTS = ("use_cache", "vision_feature_layer", "vision_feature_select_strategy", "vision_aspect_ratio")


def auto_docstring(
    obj: Any = None, *, custom_intro: Any = None, custom_args: Any = None, checkpoint: Any = None
) -> Any:
    """Leaves the documentation as it is written; transformers' adds to it."""
    return (lambda decorated: decorated) if obj is None else obj


def _unchanged(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    return lambda decorated: decorated


use_kernel_forward_from_hub = use_kernel_func_from_hub = use_kernelized_func = _unchanged
"""They may replace a layer or function by a CUDA kernel that computes the same; here nothing is replaced."""

add_start_docstrings = add_start_docstrings_to_model_forward = add_end_docstrings = _unchanged
add_code_sample_docstrings = replace_return_docstrings = _unchanged
"""They write documentation, of torch's classes."""


def can_return_tuple(func: Callable[..., Any]) -> Callable[..., Any]:
    """With `return_dict=False`, given or in the configuration, the output is a tuple."""

    @wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        default = self.config.return_dict if hasattr(self, "config") else True
        asked = kwargs.pop("return_dict", default)
        output = func(self, *args, **kwargs)
        as_it_is = (default if asked is None else asked) or isinstance(output, tuple)
        return output if as_it_is else output.to_tuple()

    return wrapper


def past_key_values_as_cache(func: Callable[..., Any]) -> Callable[..., Any]:
    """`past_key_values` is the old name of `cache`."""

    @wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        if "past_key_values" in kwargs:
            kwargs["cache"] = kwargs.pop("past_key_values")
        return func(self, *args, **kwargs)

    return wrapper


def merge_with_config_defaults(func: Callable[..., Any]) -> Callable[..., Any]:
    """Arguments that were not given, or None, come from the configuration; so does `is_causal`, during the call."""
    names = list(inspect.signature(func).parameters)[1:]

    @wraps(func)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        given = list(args)
        for name in _DEFAULTS:
            place = names.index(name) if name in names else len(given)
            value = given[place] if place < len(given) else kwargs.get(name)
            value = getattr(self.config, name, None) if value is None else value
            if name == "use_cache" and value and getattr(self, "gradient_checkpointing", False) and self.training:
                value = False  # layers that compute their activations again must not fill a cache twice
            if value is not None and place < len(given):
                given[place] = value
            elif value is not None:
                kwargs[name] = value
        with _causal(self.config, kwargs):
            return func(self, *given, **kwargs)

    return wrapper


check_model_inputs = merge_with_config_defaults


@contextlib.contextmanager
def _causal(config: Any, kwargs: dict[str, Any]) -> Iterator[None]:
    """The configuration says what the caller said about `is_causal`, as long as the call lasts."""
    causal = kwargs.get("is_causal", getattr(config, "is_causal", None))
    if causal is None:
        yield
        return
    stated = hasattr(config, "is_causal")
    before = getattr(config, "is_causal", None)
    config.is_causal = kwargs["is_causal"] = causal
    try:
        yield
    finally:
        if stated:
            config.is_causal = before
        else:
            del config.is_causal


def maybe_autocast(
    device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
) -> contextlib.AbstractContextManager[Any]:
    """A region of mixed precision; with `enabled=False` one without."""
    if device_type == "meta":
        return contextlib.nullcontext()
    return autocast(enabled=enabled)


def torch_compilable_check(cond: Any, msg: Any = None, error_type: type[Exception] = ValueError) -> None:
    """Raises unless the condition, a bool or a tensor, holds everywhere."""
    holds = bool(cond.asnumpy().all()) if hasattr(cond, "asnumpy") else bool(cond)
    if not holds:
        raise error_type(msg() if callable(msg) else msg)
