"""`weights_table.json` of the output: what a weight converter has to know about the modules of the repository.

Names are equal on both sides and layouts are kept by design, so a state dict goes over name by name. The table says
which names there are, in the words of the constructors, and with `--modules` those of the modules that were built.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.code.analysis import Analysis
from migrate.code.verify.modules import Outcome
from migrate.code.weights_table.constructor import Constructor
from migrate.code.weights_table.contents import Contents
from migrate.code.weights_table.evaluation import value_of

FILE = "weights_table.json"
FORMAT = "msmigrate-weights-table-1"


def weights_table(analysis: Analysis, modules: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The table as JSON values.

    Args:
        analysis: the repository; it is read, never run.
        modules: `built_module` of every module that was built.
    """
    constructor = Constructor(analysis)
    classes = []
    for name, info in analysis.symbols.classes.items():
        if "<locals>" in name or not analysis.symbols.is_module(name):
            continue
        init = analysis.symbols.method(name, "__init__")
        file = analysis.files[info.resolver.source.module]
        classes.append(
            {
                "class": name,
                "file": str(file.source.path),
                "line": file.line(info.node),
                "arguments": [parameter.name.value for parameter in init.parameters] if init else [],
                **_contents(_read(constructor, name, f"{file.source.path}:{file.line(info.node)}")),
            }
        )
    return {"format": FORMAT, "classes": classes, "modules": modules or []}


def _read(constructor: Constructor, name: str, source: str) -> Contents:
    """A class that cannot be read leaves the others as they are."""
    try:
        return constructor.contents(name)
    except (Exception, RecursionError) as error:  # noqa: BLE001  (said in the table, the other classes go on)
        return Contents(unknown=[(source, f"{name} cannot be read: {type(error).__name__}: {error}")])


def _contents(found: Contents) -> dict[str, Any]:
    tensors = [
        {
            "name": tensor.name,
            "converted": tensor.name,
            "kind": tensor.kind,
            "persistent": tensor.persistent,
            "shape": None if tensor.shape is None else list(tensor.shape),
            "layout": tensor.layout,
            "when": list(tensor.when),
            "source": tensor.source,
        }
        for tensor in found.tensors
    ]
    return {
        "tensors": tensors,
        "repeated": found.repeated,
        "tied": [{"name": a, "same_as": b, "when": list(when)} for a, b, when in found.tied],
        "not_known": [{"source": source, "what": what} for source, what in found.unknown],
    }


def built_module(outcome: Outcome) -> dict[str, Any]:
    """The state of a module that was built in PyTorch, as an entry of the table."""
    tensors = [
        {"name": t.name, "converted": t.name, "shape": list(t.shape), "dtype": t.dtype, "same_as": t.same_as}
        for t in outcome.state
    ]
    recipe = outcome.recipe
    return {"name": recipe.name, "module": recipe.module, "build": recipe.build, "tensors": tensors}


def read_table(path: Path) -> dict[str, Any]:
    """Reads a table.

    Raises:
        UserError: no such file, or no table of this version.
    """
    try:
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no table of weights ({error})") from error
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise UserError(f"{path}: format is not {FORMAT!r}")
    return body


def names_and_shapes(
    table: Mapping[str, Any], class_name: str, arguments: Mapping[str, Any]
) -> dict[str, tuple[int, ...] | None]:
    """Converted names of the state dict of a class with given arguments, with shapes where they are known.

    Args:
        table: of `read_table`.
        class_name: as the table spells it.
        arguments: of the constructor, by name.

    Raises:
        UserError: the class is not in the table, or not known to the end, or an expression needs more than arithmetic.
    """
    entry = next((entry for entry in table["classes"] if entry["class"] == class_name), None)
    if entry is None:
        raise UserError(
            f"{class_name}: no class of the table; it has {', '.join(e['class'] for e in table['classes'])}"
        )
    if entry["not_known"]:
        first = entry["not_known"][0]
        raise UserError(f"{class_name}: {first['what']} ({first['source']}); use the names of a module that was built")
    result: dict[str, tuple[int, ...] | None] = {}
    for tensor in entry["tensors"]:
        if not tensor["persistent"] or not all(value_of(condition, arguments) for condition in tensor["when"]):
            continue
        for name, indices in _every(tensor["converted"], entry["repeated"], arguments):
            values = {**arguments, **indices}
            shape = tensor["shape"]
            result[name] = None if shape is None else tuple(int(value_of(size, values)) for size in shape)
    return result


def _every(name: str, repeated: Mapping[str, str], arguments: Mapping[str, Any]) -> list[tuple[str, dict[str, int]]]:
    """A name with every value of its indices."""
    found: list[tuple[str, dict[str, int]]] = [(name, {})]
    for index, count in repeated.items():
        if f"{{{index}}}" in name:
            found = [
                (text.replace(f"{{{index}}}", str(number)), {**indices, index: number})
                for text, indices in found
                for number in range(int(value_of(count, {**arguments, **indices})))
            ]
    return found
