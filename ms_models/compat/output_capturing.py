"""Hidden states and attention weights of all layers, collected while a model runs, as transformers' models do it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from functools import wraps
from typing import Any

from mindspore import nn

_Collected = dict[str, list[Any]]
_collected: ContextVar[_Collected | None] = ContextVar("collected outputs", default=None)


@dataclass
class OutputRecorder:
    """Which modules, and which item of what they give: those of a class, or whose path ends in `class_name`."""

    target_class: type[nn.Cell] | None
    index: int = 0
    layer_name: str | None = None
    """Only modules with this name in their path."""
    class_name: str | None = None
    capture_initial_hidden_state: bool = True
    """Whether what goes into the first module comes first."""
    num_hidden_layers_key: str = "num_hidden_layers"

    def takes(self, path: str, module: nn.Cell) -> bool:
        """Whether a module is one of those that are meant."""
        by_class = self.target_class is not None and isinstance(module, self.target_class)
        if not by_class and not (self.class_name is not None and path.endswith(self.class_name)):
            return False
        return self.layer_name is None or f".{self.layer_name.strip('.')}." in f"{path}."


def _recorders(model: Any) -> dict[str, list[OutputRecorder]]:
    """By the name of what is recorded."""
    found: dict[str, list[OutputRecorder]] = {}
    for key, specs in (getattr(model, "_can_record_outputs", None) or {}).items():
        for spec in specs if isinstance(specs, list) else [specs]:
            if not isinstance(spec, OutputRecorder):
                index = 0 if "hidden_states" in key else 1
                spec = (
                    OutputRecorder(None, index, class_name=spec)
                    if isinstance(spec, str)
                    else OutputRecorder(spec, index)
                )
            found.setdefault(key, []).append(spec)
    return found


def _watched(model: nn.Cell, path: str = "") -> Iterator[tuple[str, nn.Cell, Any]]:
    """Modules with the model that decides what is recorded of them: the nearest above that says something about it."""
    for name, child in model._cells.items():
        if child is None:
            continue
        own = f"{path}.{name}"
        yield own, child, model
        for below, module, owner in _watched(child, own):
            yield below, module, owner if _decides(owner) else model


def _decides(module: nn.Cell) -> bool:
    return hasattr(module, "base_model_prefix") and hasattr(module, "config")


def _install(model: Any) -> None:
    """Hooks that record while somebody collects; once for each model, those below it included."""
    if getattr(model, "_records_outputs", False):
        return
    below = list(_watched(model))
    models: list[Any] = [model, *(module for _, module, _ in below if _decides(module))]
    done = {id(one) for one in models if getattr(one, "_records_outputs", False)}
    for path, module, owner in below:
        if id(owner) in done:
            continue
        for key, specs in _recorders(owner).items():
            for spec in specs:
                if spec.takes(path, module):
                    _record(module, key, spec)
    for one in models:
        one._records_outputs = True


def _record(module: nn.Cell, key: str, spec: OutputRecorder) -> None:
    def hook(cell: nn.Cell, args: tuple[Any, ...], output: Any) -> None:
        found = _collected.get()
        if found is None or key not in found:
            return
        if key == "hidden_states" and spec.capture_initial_hidden_state and not found[key]:
            found[key].append(args[0])
        value = output[spec.index] if isinstance(output, tuple) else output
        if value is not None:
            found[key].append(value)

    module.register_forward_hook(hook)


def capture_outputs(func: Callable[..., Any] | None = None, *, tie_last_hidden_states: bool = True) -> Any:
    """The forward method of a model: collects what `output_hidden_states`, `output_attentions` ... ask for.

    Args:
        func: the method; without it the result is the decorator.
        tie_last_hidden_states: the last hidden state is the output's `last_hidden_state`, behind the last norm.
    """
    if func is None:
        return lambda method: capture_outputs(method, tie_last_hidden_states=tie_last_hidden_states)
    method = func

    @wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        return_dict = kwargs.pop("return_dict", getattr(self.config, "return_dict", True))
        keys = list(_recorders(self))
        asked = {key: _asked(self.config, kwargs, key) for key in keys}
        found: _Collected = {key: [] for key, value in asked.items() if value}
        if found:
            _install(self)
        token = _collected.set(found)
        try:
            outputs = method(self, *args, **kwargs)
        finally:
            _collected.reset(token)
        for key, values in found.items():
            if key == "hidden_states":
                tied = getattr(self.config, "tie_last_hidden_states", None)
                if (
                    (tie_last_hidden_states if tied is None else tied)
                    and values
                    and hasattr(outputs, "last_hidden_state")
                ):
                    values[-1] = outputs.last_hidden_state
                values = _selected(values, asked[key])
            outputs[key] = tuple(values)
        return outputs.to_tuple() if return_dict is False else outputs

    return wrapper


def _asked(config: Any, kwargs: dict[str, Any], key: str) -> Any:
    name = "output_attentions" if key in ("cross_attentions", "mask_decoder_attentions") else f"output_{key}"
    return kwargs.get(name, getattr(config, name, False))


def _selected(values: list[Any], asked: Any) -> list[Any]:
    """All hidden states, or those of the numbers that were asked for and None for the others."""
    if isinstance(asked, bool):
        return values
    numbers = [asked] if isinstance(asked, int) else list(asked)
    wanted = {number % len(values) for number in numbers if -len(values) <= number < len(values)}
    return [value if i in wanted else None for i, value in enumerate(values)]
