"""Model types of the installed transformers, read from its source: importing it takes seconds and may need torch."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

TABLES = ("auto_mappings.py", "configuration_auto.py")
NAMES = "CONFIG_MAPPING_NAMES"
# Names that are packages of transformers and torch themselves; what they register is theirs.
FRAMEWORKS = {"transformers", "torch", "mindspore", "numpy"}


@dataclass(frozen=True)
class Library:
    """The names that an installed transformers gives."""

    version: str
    names: dict[str, tuple[str, str]]
    """Configuration class and `file:line` of the table, by model type."""


def library() -> Library | None:
    """The installed transformers; None where there is none."""
    spec = find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    names: dict[str, tuple[str, str]] = {}
    for table in TABLES:
        path = folder / "models/auto" / table
        if path.is_file():
            names |= read_names(path.read_text(encoding="utf-8"), f"transformers/models/auto/{table}")
    return Library(metadata.version("transformers"), names)


def read_names(source: str, file: str) -> dict[str, tuple[str, str]]:
    """Model types in the tables of a source file of transformers.

    A table is a dictionary, or pairs, of texts that stand in an assignment to, or a call on, `CONFIG_MAPPING_NAMES`.
    """
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Assign) and any(ast.unparse(target) == NAMES for target in node.targets):
            values: list[ast.expr] = [node.value]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{NAMES}.update":
            values = list(node.args)
        else:
            continue
        for value in values:
            for part in ast.walk(value):
                if isinstance(part, ast.Dict):
                    pairs = list(zip(part.keys, part.values, strict=True))
                elif isinstance(part, ast.Tuple) and len(part.elts) == 2:
                    pairs = [(part.elts[0], part.elts[1])]
                else:
                    continue
                for key, config in pairs:
                    if isinstance(key, ast.Constant) and isinstance(config, ast.Constant):
                        found[str(key.value)] = (str(config.value), f"{file}:{key.lineno}")
    return found


def imported_packages(root: Path) -> dict[str, Path]:
    """Folders of the installed packages that the source files of a repository import, without the frameworks.

    Packages that the repository brings itself, and those that are not installed, are not among them.
    """
    own = {path.stem if path.suffix == ".py" else path.name for path in root.iterdir()} if root.is_dir() else set()
    wanted: set[str] = set()
    for path in sorted(root.rglob("*.py")) if root.is_dir() else [root]:
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError):
            continue  # the scan of the repository lists it as unreadable
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                wanted |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                wanted.add(node.module.partition(".")[0])
    result = {}
    for name in sorted(wanted - own - FRAMEWORKS - set(sys.stdlib_module_names)):
        try:
            spec = find_spec(name)
        except (ImportError, ValueError):
            continue
        if spec is not None and spec.submodule_search_locations:
            result[name] = Path(next(iter(spec.submodule_search_locations)))
    return result


def cached_remote_code(name: str, cache: Path) -> list[Path]:
    """Folders of cached remote code that bear a model type.

    Args:
        name: the model type.
        cache: transformers' folder of modules (`HF_MODULES_CACHE`, `$HF_HOME/modules`).
    """
    root = cache / "transformers_modules"
    if not root.is_dir():
        return []
    quoted = (f'"{name}"', f"'{name}'")
    return sorted(
        {
            path.parent
            for path in root.rglob("configuration*.py")
            if any(text in path.read_text(encoding="utf-8", errors="replace") for text in quoted)
        }
    )
