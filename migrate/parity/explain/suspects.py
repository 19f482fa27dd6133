"""What may be the matter with a guilty module: settings that feed it, and calls whose counterpart behaves otherwise.

A static list. It reads the original class, the config and the rows of `mappings/api`; it proves nothing, but the bug is
usually in it: an epsilon, an approximation, a default argument.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mappings.api.row import Row
from mappings.api.table import load_table
from migrate.parity.explain.sources import Built, Source, activation_source

MOST = 8
"""Suspects that are listed."""
WIDTH = 60
"""Characters of a value that are shown."""
DIFFERING = ("default_differs", "behaviour_differs")
# Settings that only say how large something is: a wrong one would have failed by its shape.
SIZES = frozenset(
    {
        *("hidden_size", "intermediate_size", "moe_intermediate_size", "vocab_size", "num_hidden_layers"),
        *("n_embd", "n_layer", "n_inner"),
    }
)
HEADS = frozenset({"num_attention_heads", "num_key_value_heads", "head_dim", "n_head"})
"""Sizes of a projection, but how attention groups heads, too."""
# Notes are on many things; these words stand in those on values (not on gradients, types or empty tensors).
ON_VALUES = ("default", "approximat", "off by", "infinities", "divides", "starts at")
INTERNAL = frozenset({"_attn_implementation", "use_cache", "output_attentions", "output_hidden_states", "return_dict"})


@dataclass(frozen=True)
class Suspect:
    """One thing to look at."""

    text: str
    rank: int
    """0 for what the guilty module itself is made with, growing with the distance."""


def suspects(
    source: Source, root: str, path: str, config: Mapping[str, Any], other: Mapping[str, Any] | None = None
) -> list[Suspect]:
    """The list for a module, at most `MOST`, the nearest first; settings that differ between the sides before all.

    Args:
        source: the modeling file.
        root: class of the whole model in it.
        path: of the guilty module.
        config: the model's `config.json`.
        other: that of the candidate, where it has one of its own.
    """
    found: dict[str, Suspect] = {}
    for built in source.resolve(root, path):
        for suspect in _of(source, built, config):
            key = suspect.text.partition(" = ")[0]  # a setting once, wherever it is read
            if key not in found or suspect.rank < found[key].rank:
                found[key] = suspect
    apart = [] if other is None else [name for name in {**config, **other} if config.get(name) != other.get(name)]
    if other is not None:
        found = {key: one for key, one in found.items() if _field(one) not in apart}
        for name in apart:
            values = f"{_shown(config.get(name))} of the reference, {_shown(other.get(name))} of the candidate"
            found[f"config.{name}"] = Suspect(f"config.{name} = {values}", -1)
    return sorted(found.values(), key=lambda one: one.rank)[:MOST]


def _of(source: Source, built: Built, config: Mapping[str, Any]) -> Iterator[Suspect]:
    is_projection = built.made not in source.classes
    handed = _settings(built.call, config, 0, f"handed to {_short(built.made)}")
    yield from (one for one in handed if not (is_projection and _field(one) in HEADS))
    for key in built.call.keywords:
        if key.arg and isinstance(key.value, ast.Constant):
            yield Suspect(f"{_short(built.made)} is made with {key.arg}={key.value.value!r}", 1)
    yield from _row(built.made, 1)
    if built.made not in source.classes:
        return
    methods = source.methods(built.made)
    for method in methods:
        yield from _defaults(method, built)
        yield from _calls(source, method, config, 2)
    # What the class calls by name: rotary embedding, eager attention, masks of a window.
    for name in _helpers(source, methods):
        yield from _calls(source, source.functions[name], config, 5)
    if any("rotary" in name for name in _helpers(source, methods)):
        for name in (one for one in source.classes if one.endswith("RotaryEmbedding")):
            for method in source.methods(name):
                yield from _settings(method, config, 4, f"read by {name}")
    made = {id(one.call) for group in source.submodules(built.made).values() for one in group}
    for method in methods:
        own = [node for node in ast.walk(method) if id(node) not in made]
        inside = {id(node) for one in ast.walk(method) if id(one) in made for node in ast.walk(one)}
        for node in own:
            if id(node) not in inside:
                yield from _settings(node, config, 3, f"read by {built.made}", shallow=True)


def _settings(
    node: ast.AST, config: Mapping[str, Any], rank: int, use: str, shallow: bool = False
) -> Iterator[Suspect]:
    for one in (node,) if shallow else ast.walk(node):
        name = _setting(one)
        if name is not None and name not in SIZES | INTERNAL:
            value = _shown(config[name]) if name in config else "the default of transformers (not in config.json)"
            yield Suspect(f"config.{name} = {value}, {use}", rank)


def _field(suspect: Suspect) -> str:
    return suspect.text.partition(" = ")[0].removeprefix("config.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= WIDTH else f"{text[:WIDTH]}..."


def _setting(node: ast.AST) -> str | None:
    """The field that `config.x`, `self.config.x` or `getattr(config, "x", ...)` reads."""
    if isinstance(node, ast.Attribute) and _is_config(node.value):
        return node.attr
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
        target, key = [*node.args, None, None][:2]
        if target is not None and _is_config(target) and isinstance(key, ast.Constant):
            return str(key.value)
    return None


def _is_config(node: ast.AST) -> bool:
    name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
    return name == "config"


def _defaults(method: ast.FunctionDef, built: Built) -> Iterator[Suspect]:
    """Default arguments of the constructor that the call leaves as they are."""
    if method.name != "__init__":
        return
    arguments = method.args.args[1:]
    names = [argument.arg for argument in arguments[len(arguments) - len(method.args.defaults) :]]
    values = dict(zip(names, method.args.defaults, strict=True))
    given = {key.arg for key in built.call.keywords} | {a.arg for a in arguments[: len(built.call.args)]}
    for name, value in values.items():
        if name not in given and isinstance(value, ast.Constant) and value.value is not None:
            yield Suspect(f"{built.made}({name}={value.value!r}) is its default", 1)


def _calls(source: Source, function: ast.FunctionDef, config: Mapping[str, Any], rank: int) -> Iterator[Suspect]:
    for node in ast.walk(function):
        if isinstance(node, ast.Subscript) and source.dotted(node.value).endswith("ACT2FN"):
            yield from _activation(node.slice, config, rank)
        if not isinstance(node, ast.Call):
            continue
        name = source.dotted(node.func)
        if not name.startswith("torch.") and isinstance(node.func, ast.Attribute):
            name = f"torch.Tensor.{node.func.attr}"
        yield from _row(name, rank)


def _activation(key: ast.expr, config: Mapping[str, Any], rank: int) -> Iterator[Suspect]:
    """What an activation named by the config calls, from transformers' own table."""
    field = _setting(key)
    name, table = config.get(field or ""), activation_source()
    if not isinstance(name, str):
        return
    yield Suspect(f"config.{field} = {name!r} chooses the activation", rank)
    if table is None:
        return
    entries = (node for node in table.tree.body if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict))
    for entry in entries:
        assert isinstance(entry.value, ast.Dict)
        for item, value in zip(entry.value.keys, entry.value.values, strict=True):
            if not isinstance(item, ast.Constant) or item.value != name:
                continue
            made = table.dotted(value.elts[0] if isinstance(value, ast.Tuple) else value)
            yield from _row(made, rank)
            for method in table.methods(made):
                yield from (one for one in _calls(table, method, {}, rank) if "config" not in one.text)


def _row(name: str, rank: int) -> Iterator[Suspect]:
    for row in load_table().rows(name):
        on_values = any(word in row.note for word in ON_VALUES) if row.note else row.status in DIFFERING
        if on_values:
            yield Suspect(f"{row.name}: {_why(row)}", rank if row.status in DIFFERING else rank + 1)


def _why(row: Row) -> str:
    return row.note or f"MindSpore's counterpart has other defaults; as it should be: {row.portable}"


def _helpers(source: Source, methods: Iterable[ast.FunctionDef]) -> list[str]:
    """Functions of the file that methods name, and those that these name."""
    found: dict[str, None] = {}
    todo: list[ast.FunctionDef] = list(methods)
    while todo:
        for node in ast.walk(todo.pop()):
            if isinstance(node, ast.Name) and node.id in source.functions and node.id not in found:
                found[node.id] = None
                todo.append(source.functions[node.id])
    return list(found)


def _short(name: str) -> str:
    return name.removeprefix("torch.")
