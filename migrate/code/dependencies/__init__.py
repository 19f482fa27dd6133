"""Files that say what a repository requires: torch out, MindSpore in, everything else as it was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Set
from pathlib import PurePosixPath

from migrate.code.dependencies.conda import convert_environment, is_environment
from migrate.code.dependencies.requirements_txt import convert_requirements, is_requirements
from migrate.code.dependencies.setup_cfg import convert_setup_cfg
from migrate.code.dependencies.setup_py import convert_setup_py
from migrate.code.dependencies.toml_files import convert_toml
from migrate.report import Finding

Converter = Callable[[str, str, Set[str]], tuple[str, list[Finding]]]
_BY_NAME: dict[str, Converter] = {
    "pyproject.toml": convert_toml,
    "Pipfile": convert_toml,
    "setup.cfg": convert_setup_cfg,
    "setup.py": convert_setup_py,
}
_IMPORT = re.compile(r"^[ \t]*(?:from[ \t]+(\w+)|import[ \t]+([\w., \t]+))", re.MULTILINE)


def may_declare(path: PurePosixPath) -> bool:
    """Whether a file may say what the repository requires, by its name."""
    return path.name in _BY_NAME or is_requirements(path) or path.suffix in (".yml", ".yaml")


def convert_dependencies(path: PurePosixPath, text: str, imported: Set[str]) -> tuple[str, list[Finding]]:
    """The new text of a file, and what is left to do in it.

    Args:
        path: relative to the repository.
        text: its contents.
        imported: top-level names that the repository imports; packages of the torch family stay while it does.
    """
    converter = _BY_NAME.get(path.name)
    if converter is None and is_requirements(path):
        converter = convert_requirements
    if converter is None and "torch" in text and is_environment(text):
        converter = convert_environment
    return (text, []) if converter is None else converter(text, str(path), imported)


def imported_names(texts: Iterable[str]) -> frozenset[str]:
    """Top-level names that source files import."""
    found: set[str] = set()
    for text in texts:
        for origin, names in _IMPORT.findall(text):
            found.update([origin] if origin else [re.split(r"[.\s]", name.strip())[0] for name in names.split(",")])
    return frozenset(found - {""})
