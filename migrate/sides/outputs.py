"""The tensors of an output, of whatever containers, and the loss that is made of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np

from migrate.sides.framework import Framework
from migrate.sides.recipes import Recipe, generator


def leaves(value: Any, tensor: type, path: str = "") -> Iterator[tuple[str, Any]]:
    """Tensors inside an output, with dotted paths: through mappings, sequences, named tuples and dataclasses."""
    if isinstance(value, tensor):
        yield path or "output", value
        return
    if isinstance(value, Mapping):
        items = [(str(key), item) for key, item in value.items()]
    elif hasattr(value, "_fields"):
        items = [(name, getattr(value, name)) for name in value._fields]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(item.name, getattr(value, item.name)) for item in dataclasses.fields(value)]
    elif isinstance(value, list | tuple):
        items = [(str(i), item) for i, item in enumerate(value)]
    else:
        return
    for name, item in items:
        yield from leaves(item, tensor, f"{path}.{name}" if path else name)


def with_leaves(value: Any, tensor: type, new: Callable[[str, Any], Any], path: str = "") -> Any:
    """The same output with other tensors: `new` gets the path and the tensor of each leaf."""
    if isinstance(value, tensor):
        return new(path or "output", value)

    def below(name: object, item: Any) -> Any:
        return with_leaves(item, tensor, new, f"{path}.{name}" if path else str(name))

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.replace(value, **{f.name: below(f.name, getattr(value, f.name)) for f in _set_fields(value)})
    if isinstance(value, Mapping):
        return type(value)(**{str(key): below(key, item) for key, item in value.items()})
    if hasattr(value, "_fields"):
        return type(value)(*(below(name, getattr(value, name)) for name in value._fields))
    if isinstance(value, list | tuple):
        return type(value)(below(i, item) for i, item in enumerate(value))
    return value


def _set_fields(value: Any) -> list[dataclasses.Field[Any]]:
    return [item for item in dataclasses.fields(value) if item.init and getattr(value, item.name, None) is not None]


def tensors_of(framework: Framework, value: Any) -> Any:
    """The same value with tensors for arrays, containers included."""
    if isinstance(value, np.ndarray):
        return framework.from_numpy(value)
    if isinstance(value, dict):
        return {key: tensors_of(framework, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(tensors_of(framework, item) for item in value)
    return value


def loss_weight(path: str, shape: tuple[int, ...]) -> np.ndarray:
    """What an output is weighted with in a loss that is made of it."""
    return generator(f"loss {path}").standard_normal(shape).astype(np.float32)


def loss_of(
    framework: Framework,
    recipe: Recipe,
    output: Any,
    weights: dict[str, Any] | None = None,
    leave_out: Collection[str] = (),
) -> Any:
    """The loss that a recipe names, or a weighted mean of the whole output.

    Args:
        framework: of the output.
        recipe: which path of the output is the loss.
        output: of the module.
        weights: what was drawn before, by path.
        leave_out: paths that are not part of a made loss.
    """
    found = dict(leaves(output, framework.tensor))
    if recipe.loss is not None:
        return found[recipe.loss]
    total: Any = None
    for path, leaf in found.items():
        if "float" not in str(leaf.dtype).lower() or path in leave_out:
            continue
        if weights is None or path not in weights:
            weight = framework.from_numpy(loss_weight(path, tuple(leaf.shape))).to(leaf.dtype)
            if weights is not None:
                weights[path] = weight
        else:
            weight = weights[path]
        part = (leaf * weight).mean()
        total = part if total is None else total + part
    if total is None:
        raise ValueError("the output holds no floating point tensor to differentiate")
    return total
