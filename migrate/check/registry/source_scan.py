"""Finds model types in Python source, by reading it: nothing is imported or run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from migrate.check.registry.sighting import REPOSITORY, Sighting

SKIPPED = {"__pycache__", "node_modules", "site-packages", "build", "dist"}
HINT = re.compile(rb"model_type|\.register\(|CONFIG_MAPPING|register_for_auto_class")
CONFIG_MAPPINGS = {"CONFIG_MAPPING", "CONFIG_MAPPING_NAMES"}
AUTO = re.compile(r"Auto(Model\w*|Tokenizer|Processor|ImageProcessor|FeatureExtractor)")


class Scan:
    """The sightings of one tree of source files.

    Attributes:
        sightings: in the order of files and lines.
        unreadable: files that are no Python, with the reason.
        files: how many were read.
    """

    def __init__(self, root: Path, origin: str = REPOSITORY) -> None:
        self.root, self.origin = root, origin
        self.sightings: list[Sighting] = []
        self.unreadable: dict[str, str] = {}
        self.files = 0
        trees: dict[str, ast.Module] = {}
        for path in _sources(root):
            raw = path.read_bytes()
            self.files += 1
            if not HINT.search(raw):
                continue
            name = path.relative_to(root).as_posix() if path != root else path.name
            try:
                trees[name] = ast.parse(raw)
            except (SyntaxError, ValueError, RecursionError) as error:
                self.unreadable[name] = " ".join(str(error).split())
        classes: dict[str, str | None] = {}
        for name, tree in trees.items():
            for found in self._classes(name, tree):
                self.sightings.append(found)
                # Two classes of one name in a repository cannot be told apart by reading registrations alone.
                classes[found.class_name] = found.name if found.class_name not in classes else None
        for name, tree in trees.items():
            self.sightings += self._registrations(name, tree, classes)
        self.sightings.sort(key=lambda sighting: (sighting.file, sighting.line))

    def _classes(self, file: str, tree: ast.Module) -> Iterator[Sighting]:
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef):
                continue
            for statement in node.body:
                if isinstance(statement, ast.Assign):
                    targets: list[ast.expr] = statement.targets
                elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
                    targets = [statement.target]
                else:
                    continue
                if any(isinstance(target, ast.Name) and target.id == "model_type" for target in targets):
                    value = _text(statement.value)
                    if value != "":  # of a base class
                        yield Sighting("class", value, file, statement.lineno, self.origin, node.name)

    def _registrations(self, file: str, tree: ast.Module, classes: dict[str, str | None]) -> Iterator[Sighting]:
        aliases = _aliases(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Subscript) and _last(target.value, aliases) in CONFIG_MAPPINGS:
                        name = self._name(target.slice, classes)
                        yield Sighting("config", name, file, node.lineno, self.origin, _last(node.value, aliases), True)
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = _last(node.func.value, aliases)
            if node.func.attr == "register" and owner in {"AutoConfig", *CONFIG_MAPPINGS}:
                arguments = _arguments(node, ("model_type", "config") if owner == "AutoConfig" else ("key", "value"))
                name = self._name(arguments[0], classes)
                class_name = _last(arguments[1], aliases)
                yield Sighting("config", name, file, node.lineno, self.origin, class_name, _exist_ok(node))
            elif node.func.attr == "register" and AUTO.fullmatch(owner):
                class_name = _last(_arguments(node, ("config_class", "model_class"))[0], aliases)
                name = classes.get(class_name)
                yield Sighting("model", name, file, node.lineno, self.origin, class_name, _exist_ok(node))
            elif node.func.attr == "update" and owner in CONFIG_MAPPINGS and node.args:
                for key, value in _items(node.args[0]):
                    name = self._name(key, classes)
                    yield Sighting("config", name, file, key.lineno, self.origin, _text(value) or "", True)

    def _name(self, node: ast.expr | None, classes: dict[str, str | None]) -> str | None:
        if isinstance(node, ast.Attribute) and node.attr == "model_type" and isinstance(node.value, ast.Name):
            return classes.get(node.value.id)
        return _text(node)


def _sources(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts[:-1]
        if path.is_file() and not any(part in SKIPPED or part.startswith(".") for part in parts):
            yield path


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Names of a module that stand for another name: `from transformers import AutoConfig as A`, `A = AutoConfig`."""
    result: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            result |= {item.asname: item.name for item in node.names if item.asname}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name | ast.Attribute):
            last = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            result |= {t.id: last for t in node.targets if isinstance(t, ast.Name) and last.startswith("Auto")}
    return result


def _last(node: ast.expr | None, aliases: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    return ""


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _arguments(call: ast.Call, names: tuple[str, str]) -> list[ast.expr | None]:
    by_name = {keyword.arg: keyword.value for keyword in call.keywords}
    return [call.args[i] if i < len(call.args) else by_name.get(name) for i, name in enumerate(names)]


def _exist_ok(call: ast.Call) -> bool:
    value = {keyword.arg: keyword.value for keyword in call.keywords}.get("exist_ok")
    return isinstance(value, ast.Constant) and value.value is True


def _items(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Dict):
        return []
    return [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
