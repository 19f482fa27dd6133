"""Parameters of a model that are one: `_tied_weights_keys` of transformers, as a dict (5) or as a list (4)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import cycle
from typing import Any

from mindspore import Parameter

from .whole import whole_shape


def tied_names(model: Any) -> dict[str, str]:
    """Target by source name, both in full, for this model without those inside it; empty if the config ties nothing.

    Raises:
        ValueError: a pattern finds nothing, or the targets are no multiple of the sources.
    """
    keys = model._tied_weights_keys
    if not keys or not getattr(model.config, "tie_word_embeddings", False):
        return {}
    if not isinstance(keys, Mapping):
        return _tied_head(model)
    if all(re.fullmatch(r"[A-Za-z0-9_.]+(weight|bias)", name) for pair in keys.items() for name in pair):
        return dict(keys)
    names = sorted(
        {name for name, _ in model.named_parameters(remove_duplicate=False)}
        | {name for name, _ in model.named_buffers(remove_duplicate=False)}
    )
    found: dict[str, str] = {}
    for target, source in keys.items():
        sources = [name for name in names if re.match(source, name)]
        targets = [name for name in names if re.match(target, name)]
        if not sources or not targets or len(targets) % len(sources):
            raise ValueError(f"_tied_weights_keys: {targets} ({target}) cannot be tied to {sources} ({source})")
        for one, other in zip(targets, cycle(sources), strict=False):
            found[one] = found.get(other, other)
    return found


def _tied_head(model: Any) -> dict[str, str]:
    """The list says which names may be missing in a file; what is tied is the head to the input embeddings."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    paths = {id(cell): path for path, cell in model.named_modules()}
    if head is None or id(head) not in paths or id(embedding) not in paths:
        return {}
    return {f"{paths[id(head)]}.weight": f"{paths[id(embedding)]}.weight"}


def tie(model: Any, target: str, source: str) -> None:
    """Make the parameter of a name the one of another name."""
    path, _, name = target.rpartition(".")
    parent = model.get_submodule(path)
    parameter = model.get_parameter(source)
    setattr(parent, name, parameter)
    if getattr(parent, "out_features", None) is not None and name == "weight":
        parent.out_features = whole_shape(parameter)[0]


def untie(model: Any, target: str) -> None:
    """Give a name a parameter of its own, with the same values."""
    path, _, name = target.rpartition(".")
    old = model.get_parameter(target)
    setattr(model.get_submodule(path), name, Parameter(old.copy(), requires_grad=old.requires_grad))


def without_aliases(model: Any, state: dict[str, Any]) -> dict[str, Any]:
    """A state with one name for each parameter, the one that loading expects.

    Raises:
        RuntimeError: parameters are shared that `_tied_weights_keys` does not name.
    """
    patterns = {pattern for cell in model.modules() for pattern in getattr(cell, "_tied_weights_keys", None) or ()}
    # A nested model names its parameters from its own root.
    matches = [re.compile(pattern) for pattern in patterns]
    names: dict[int, list[str]] = {}
    for name, value in state.items():
        names.setdefault(id(value), []).append(name)
    dropped: set[str] = set()
    for shared in names.values():
        tied = [name for name in sorted(shared) if any(match.search(name) for match in matches)]
        dropped.update(tied if len(tied) < len(shared) else tied[:-1])
        if len(rest := [name for name in shared if name not in dropped]) > 1:
            raise RuntimeError(f"{rest} are one parameter; name them in _tied_weights_keys to save the model")
    return {name: value for name, value in state.items() if name not in dropped}
