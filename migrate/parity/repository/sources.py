"""A converted repository, what its report says of it, and the original that it came from."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.weights_table import FILE as TABLE
from mappings.formats.weights_table import Class, WeightsTable
from migrate.report import FileLines, Report

REPORT = "report.json"
"""Which `msmigrate code` leaves in its output."""


@dataclass(frozen=True)
class Sources:
    """Both repositories, and the table of classes that the converter made of the original."""

    original: Path
    converted: Path
    table: WeightsTable
    files: list[FileLines]
    """What became of the lines of the original, by the report."""

    def class_of(self, name: str) -> Class | None:
        """What the report says of a class, by `module.Class`; None for one that is not the repository's."""
        return next((entry for entry in self.table.classes if entry.name == name), None)

    def lines_of(self, entry: Class) -> range:
        """Lines of a class in the original."""
        for node in ast.walk(_parsed(self.original / entry.file)):
            if isinstance(node, ast.ClassDef) and node.lineno == entry.line:
                return range(node.lineno, (node.end_lineno or node.lineno) + 1)
        return range(0)


def read_sources(converted: Path, original: Path | None = None) -> Sources:
    """Reads the report of a converted repository, and finds its original.

    Args:
        converted: what `msmigrate code` wrote.
        original: the repository that was converted; by default a directory of the name that the report gives, beside
            the converted one or in the working directory.

    Raises:
        UserError: no output of `msmigrate code`, the original is gone or another one, or the report does not fit them.
    """
    report = Report.from_json(converted / REPORT)
    if report.command != "code":
        raise UserError(f"{converted / REPORT}: reports `{report.command}`, not a conversion; give an output of `code`")
    table = WeightsTable.read(converted / TABLE)
    found = _found(converted, original, report.subject)
    if found.resolve() == converted.resolve():
        raise UserError(f"{found}: is the converted repository itself; give what it was converted from")
    for file in report.files:
        if not (found / file.path).is_file():
            raise UserError(
                f"{found}: has no {file.path}, which the report says was converted; give the original with --original"
            )
    for entry in table.classes:
        _check_class(entry, found, "the original changed since, or the report was edited")
        _check_class(entry, converted, "the converted code or the report was edited", is_placed=False)
    return Sources(found, converted, table, report.files)


def _found(converted: Path, original: Path | None, subject: str) -> Path:
    if original is not None:
        if not original.is_dir():
            raise UserError(f"--original {original}: no such directory")
        return original
    places = [converted.absolute().parent / subject, Path.cwd() / subject]
    for place in places:
        if place.is_dir():
            return place
    tried = " nor ".join(str(place) for place in dict.fromkeys(places))
    raise UserError(f"{converted}: the original {subject!r} is neither {tried}; give it with --original")


def _check_class(entry: Class, root: Path, cause: str, *, is_placed: bool = True) -> None:
    """Whether a class is where the table has it; in converted code the line may be another."""
    name = entry.name.rpartition(".")[2]
    lines = _class_lines(root / entry.file).get(name, [])
    if not lines or (is_placed and not any(entry.line in span for span in lines)):
        place = f"{entry.file}:{entry.line}" if is_placed else entry.file
        raise UserError(f"{root}: {place} has no class {name}, which {TABLE} names; {cause}: convert again")


def _class_lines(path: Path) -> dict[str, list[range]]:
    """Where classes of a file begin, by name: decorators and the line of the word `class`."""
    found: dict[str, list[range]] = {}
    for node in ast.walk(_parsed(path)):
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault(node.name, []).append(range(first, node.lineno + 1))
    return found


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({' '.join(str(error).split())})") from error
