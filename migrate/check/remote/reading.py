"""C52x: code that comes with a checkpoint (`auto_map`). It is read, not run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

REFERENCE = re.compile(r"(?:(?P<repository>.+)--)?(?P<module>[\w.]+)\.(?P<name>\w+)")
# What a model has no need of: other processes, the network, text that becomes code.
CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "pickle.loads",
    "pickle.load",
    "importlib.import_module",
}
MODULES = {"subprocess", "socket", "requests", "urllib", "http", "ftplib", "ctypes", "multiprocessing"}


def remote_code_is_whole(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every class that `auto_map` names is in a file of the directory, whose own files are there, too."""
    pending: list[str] = []
    for auto, file, value in entries(subject):
        for reference in value if isinstance(value, list) else [value]:
            if reference is None:
                continue
            tally.add()
            match = REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
            field = f"auto_map.{auto}"
            if match is None:
                yield finding("C521", f"{field} is {reference!r}, not module.Class", file=file, field=field)
            elif match["repository"]:
                message = f"{field} names code of another repository, {match['repository']}"
                yield finding("C525", message, file=file, field=field)
            else:
                name = f"{match['module'].replace('.', '/')}.py"
                path = subject.directory / name
                if not path.is_file():
                    yield finding("C521", f"{field}: {name} is not in the directory", file=file, field=field)
                    continue
                pending.append(name)
                if match["name"] not in _classes(path.read_bytes()):
                    yield finding("C522", f"{field}: {name} has no class {match['name']}", file=file, field=field)
    yield from _files(subject, tally, pending)


def entries(subject: Subject) -> Iterator[tuple[str, str, object]]:
    """Name of the auto class, file and value of every entry of `auto_map`."""
    for file, body in (("config.json", subject.config), *subject.files.items()):
        table = body.get("auto_map")
        if isinstance(table, dict):
            yield from ((name, file, value) for name, value in table.items())


def _files(subject: Subject, tally: Tally, pending: list[str]) -> Iterator[Finding]:
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        tally.add()
        try:
            tree = ast.parse((subject.directory / name).read_bytes())
        except (SyntaxError, ValueError) as error:
            yield finding("C522", f"{name}: {' '.join(str(error).split())}", file=name)
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level:
                wanted = f"{(node.module or '').replace('.', '/')}.py"
                if node.module and not (subject.directory / wanted).is_file():
                    yield finding("C521", f"{name}:{node.lineno} imports {wanted}, which is not there", file=name)
                elif node.module:
                    pending.append(wanted)
            for package in _packages(node):
                place = f"{name}:{getattr(node, 'lineno', 0)}"
                if package in MODULES:
                    yield finding("C524", f"{place} imports {package}", file=name)
                elif package not in sys.stdlib_module_names and find_spec(package) is None:
                    yield finding("C523", f"{place} imports {package}, which is not installed", file=name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) in CALLS:
                yield finding("C524", f"{name}:{node.lineno} calls {ast.unparse(node.func)}", file=name)


def _packages(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and not node.level and node.module:
        return [node.module.partition(".")[0]]
    return []


def _classes(raw: bytes) -> set[str]:
    try:
        return {node.name for node in ast.walk(ast.parse(raw)) if isinstance(node, ast.ClassDef)}
    except (SyntaxError, ValueError):
        return set()


ASSERTIONS = (remote_code_is_whole,)
