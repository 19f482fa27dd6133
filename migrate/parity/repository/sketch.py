"""A skeleton of recipes for a converted repository: every module class, what its constructor and its call take."""

from __future__ import annotations

import ast
from pathlib import Path

from mappings.formats.weights_table import Class
from migrate.parity.repository.sources import Sources, read_sources

FILL_IN = "FILL_IN"
"""What a person has to replace; a recipe that still says it is refused."""
_HEAD = """# Modules to build in PyTorch and in MindSpore; see docs/code.md. Keep what matters, replace every FILL_IN.
# Sizes are best odd and unlike each other, so that a transposed axis cannot hide. An input is, say,
#   {floats: [2, 7, 48]}   {ids: [2, 7], below: 61}   {ones: [2, 7], dtype: bool}   or a plain value
modules:
"""


def sketch_of(converted: Path, original: Path | None = None) -> str:
    """The skeleton as YAML.

    Args:
        converted: what `msmigrate code` wrote.
        original: see `read_sources`.

    Raises:
        UserError: what `read_sources` raises.
    """
    sources = read_sources(converted, original)
    entries = (_entry(sources, entry) for entry in sources.table.classes)
    return _HEAD + "".join(entries)


def _entry(sources: Sources, entry: Class) -> str:
    module, _, name = entry.name.rpartition(".")
    given = ", ".join(f"{argument.name}={FILL_IN}" for argument in entry.arguments if argument.default is None)
    left = ", ".join(f"{a.name}={a.default}" for a in entry.arguments if a.default is not None)
    taken = _forward(sources.original / entry.file, name)
    build = f"{name}({given})".replace('"', '\\"')
    lines = [f"  # {entry.file}:{entry.line}{f'; defaults: {left}' if left else ''}"]
    lines += [f"  - name: {entry.name}", f"    module: {module}", f'    build: "{build}"']
    if taken is None:
        lines += ["    # it has no forward of its own: name a `method`, or leave it out"]
    else:
        needed, optional = taken
        lines += [f"    inputs: [{', '.join(f'{FILL_IN}_{name}' for name in needed)}]"]
        lines += [f"    # keywords: {{{', '.join(f'{name}: ...' for name in optional)}}}"] if optional else []
    return "\n".join(lines) + "\n"


def _forward(path: Path, name: str) -> tuple[list[str], list[str]] | None:
    """Parameters of `forward` without and with a default; None where the class defines none."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "forward":
                    arguments = inner.args
                    names = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]][1:]
                    needed = names[: len(names) - len(arguments.defaults)]
                    return needed, [*names[len(needed) :], *(argument.arg for argument in arguments.kwonlyargs)]
    return None
