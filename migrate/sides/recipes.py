"""Recipes: how a module is built and called, in the same words for PyTorch and for MindSpore.

A YAML file with a list under `modules`:

    - name: gpt                                   # label of the report; by default the module and the expression
      module: model                               # what is imported, in the repository and in the output
      build: GPT(GPTConfig(vocab_size=30))        # evaluated in that module
      inputs: [{ids: [2, 12], below: 30}]         # positional arguments
      keywords: {mask: {ones: [2, 12], dtype: bool}, past: {list: [{floats: [2, 12, 4]}]}}
      method: null                                # called instead of the module itself
      loss: null                                  # path of the output that is the loss; by default one is made
      training: false                             # mode during the comparison
      compiled: true                              # whether it is compared as a graph, too
      optimizer: {module: train, build: "make_optimizer(model)", clip: "clip(model)"}  # of `msmigrate parity code`

`compiled: false` beside `modules` leaves that out for all of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mappings.errors import UserError

KINDS = ("floats", "ids", "ones", "zeros", "range", "value", "list", "tuple", "dict")
DTYPES = ("float32", "float64", "int32", "int64", "bool")
_INPUT_FIELDS = {*KINDS, "below", "dtype", "gradient"}


@dataclass(frozen=True)
class Recipe:
    """A module to build and to call."""

    module: str
    build: str
    inputs: Sequence[Mapping[str, Any]] = ()
    keywords: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    name: str = ""
    method: str | None = None
    loss: str | None = None
    training: bool = False
    compiled: bool = True
    optimizer: Mapping[str, str] | None = None
    """How the repository makes its optimizer: `module` that is imported, `build`, an expression over `model` in it, and
    `clip`, one that is evaluated before each step."""

    def arguments(self, draw: int = 0) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments: numpy arrays, or plain values; the same at every call.

        Args:
            draw: another number gives other floats and ids.
        """
        name = f"{self.name}.{draw}" if draw else self.name
        positional = [make_input(entry, f"{name}.{i}") for i, entry in enumerate(self.inputs)]
        return positional, {key: make_input(entry, f"{name}.{key}") for key, entry in self.keywords.items()}


def generator(label: str) -> np.random.Generator:
    """Random numbers that depend on nothing but a label."""
    return np.random.default_rng(zlib.crc32(label.encode()))


def make_input(entry: Any, label: str) -> Any:
    """The value that an input entry describes; an entry that is no mapping stands for itself."""
    if not isinstance(entry, Mapping):
        return entry
    kind = next(kind for kind in KINDS if kind in entry)
    shape = entry[kind]
    if kind == "value":
        return shape
    if kind == "dict":
        return {key: make_input(item, f"{label}.{key}") for key, item in shape.items()}
    if kind in ("list", "tuple"):
        items = [make_input(item, f"{label}.{i}") for i, item in enumerate(shape)]
        return items if kind == "list" else tuple(items)
    if kind == "ids":
        return np.asarray(generator(label).integers(0, entry["below"], shape), entry.get("dtype", "int64"))
    if kind == "range":
        return np.broadcast_to(np.arange(shape[-1]), shape).astype(entry.get("dtype", "int64"))
    dtype = entry.get("dtype", "float32")
    if kind == "floats":
        return np.asarray(generator(label).standard_normal(shape), dtype)
    return (np.ones if kind == "ones" else np.zeros)(shape, dtype)


def read_recipes(path: Path) -> list[Recipe]:
    """Reads a file of recipes.

    Raises:
        UserError: no such file, no YAML, or a recipe that says something unknown or too little.
    """
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"{path}: cannot be read ({str(error).splitlines()[0]})") from error
    entries = body.get("modules") if isinstance(body, Mapping) else None
    if entries is None and isinstance(body, Mapping) and body.get("programs"):
        return []
    if not isinstance(entries, list) or not entries:
        raise UserError(f"{path}: expected a list under `modules`; see docs/code.md")
    compiled = body.get("compiled", True)
    if not isinstance(compiled, bool):
        raise UserError(f"{path}: `compiled` must be true or false")
    recipes = [_recipe(entry, f"{path}: modules[{i}]", compiled) for i, entry in enumerate(entries)]
    names = [recipe.name for recipe in recipes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UserError(f"{path}: two modules are named {twice[0]!r}; give one of them another name")
    return recipes


def _recipe(entry: Any, where: str, compiled: bool) -> Recipe:
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: expected a mapping")
    known = {item.name for item in fields(Recipe)}
    if unknown := sorted(set(map(str, entry)) - known):
        raise UserError(f"{where}: unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    for needed in ("module", "build"):
        if not isinstance(entry.get(needed), str) or not entry[needed]:
            raise UserError(f"{where}: `{needed}` is missing")
    inputs, keywords = entry.get("inputs") or [], entry.get("keywords") or {}
    if not isinstance(inputs, list) or not isinstance(keywords, Mapping):
        raise UserError(f"{where}: `inputs` must be a list and `keywords` a mapping")
    for label, item in [*enumerate(inputs), *keywords.items()]:
        _check_input(item, f"{where}: input {label}")
    _check_optimizer(entry.get("optimizer"), where)
    name = entry.get("name") or f"{entry['module']}: {entry['build']}"
    return Recipe(**{"compiled": compiled, **entry, "inputs": inputs, "keywords": keywords, "name": str(name)})


def _check_optimizer(optimizer: Any, where: str) -> None:
    if optimizer is None:
        return
    fields_are_known = isinstance(optimizer, Mapping) and set(optimizer) <= {"module", "build", "clip"}
    if not fields_are_known or not all(isinstance(optimizer.get(key), str) for key in {"module", "build", *optimizer}):
        raise UserError(f"{where}: `optimizer` takes texts under `module`, `build` and, if it clips, `clip`")


def _check_input(item: Any, where: str) -> None:
    if not isinstance(item, Mapping):
        return
    kinds = [kind for kind in KINDS if kind in item]
    if len(kinds) != 1 or set(item) - _INPUT_FIELDS:
        raise UserError(f"{where}: expected one of {', '.join(KINDS)}, with `dtype`, and `below` for ids")
    if kinds[0] == "value":
        return
    if kinds[0] in ("list", "tuple", "dict"):
        wanted = dict if kinds[0] == "dict" else list
        if not isinstance(item[kinds[0]], wanted):
            raise UserError(f"{where}: {kinds[0]} takes a {'mapping' if wanted is dict else 'list'} of inputs")
        for inner in item[kinds[0]].values() if wanted is dict else item[kinds[0]]:
            _check_input(inner, where)
        return
    shape = item[kinds[0]]
    if not isinstance(shape, list) or any(not isinstance(size, int) or size < 0 for size in shape):
        raise UserError(f"{where}: {kinds[0]} takes a shape, e.g. [2, 12]")
    if kinds[0] == "ids" and not (isinstance(item.get("below"), int) and item["below"] > 0):
        raise UserError(f"{where}: ids need `below`, the number of different ids")
    if item.get("dtype", "int64") not in DTYPES:
        raise UserError(f"{where}: dtype must be one of {', '.join(DTYPES)}")
