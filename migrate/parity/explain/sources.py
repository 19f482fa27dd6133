"""Which class of a modeling file a module path belongs to, read from its syntax tree; nothing is imported or run."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Built:
    """A submodule as a constructor makes it."""

    made: str
    """Its class: of the same file, or dotted as imported (`torch.nn.Linear`)."""
    call: ast.Call
    """The call that makes it."""


@dataclass(frozen=True)
class Source:
    """A modeling file."""

    path: Path
    tree: ast.Module

    @classmethod
    def read(cls, path: Path) -> Source:
        """Parses a file."""
        return cls(path, ast.parse(path.read_text(encoding="utf-8")))

    @cached_property
    def classes(self) -> Mapping[str, ast.ClassDef]:
        """Classes of the file by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.ClassDef)}

    @cached_property
    def functions(self) -> Mapping[str, ast.FunctionDef]:
        """Functions of the file by name."""
        return {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    @cached_property
    def imported(self) -> Mapping[str, str]:
        """What a name of the file stands for: `nn` for `torch.nn`, `F` for `torch.nn.functional`."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    names[alias.asname or alias.name.partition(".")[0]] = (
                        alias.name if alias.asname else alias.name.partition(".")[0]
                    )
            elif isinstance(node, ast.ImportFrom) and node.module:
                before = "" if node.level else f"{node.module}."
                names |= {alias.asname or alias.name: f"{before}{alias.name}" for alias in node.names}
        return names

    def dotted(self, node: ast.expr) -> str:
        """The full name of `nn.functional.gelu` and the like; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.imported.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (base := self.dotted(node.value)):
            return f"{base}.{node.attr}"
        return ""

    def methods(self, name: str) -> list[ast.FunctionDef]:
        """Methods of a class and of the classes of this file it inherits from; a method of a subclass hides theirs."""
        found: dict[str, ast.FunctionDef] = {}
        while name in self.classes:
            node = self.classes[name]
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    found.setdefault(method.name, method)
            name = next((base.id for base in node.bases if isinstance(base, ast.Name)), "")
        return list(found.values())

    def submodules(self, name: str) -> dict[str, list[Built]]:
        """What a class assigns to its attributes: by attribute, every call that may make it."""
        found: dict[str, list[Built]] = {}
        for method in self.methods(name):
            for node in ast.walk(method):
                if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Attribute):
                    continue
                target = node.targets[0]
                if not isinstance(target.value, ast.Name) or target.value.id != "self":
                    continue
                for call in (one for one in ast.walk(node.value) if isinstance(one, ast.Call)):
                    for made in self._made(call.func, method):
                        found.setdefault(target.attr, []).append(Built(made, call))
        return found

    def _made(self, function: ast.expr, method: ast.FunctionDef) -> list[str]:
        """Classes that a call may make; a local variable may stand for one of several."""
        local = function.id if isinstance(function, ast.Name) else ""
        values = [
            node.value
            for node in ast.walk(method)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == local
        ]
        names = [self.dotted(function)]
        if values:
            names = [one.id for value in values for one in ast.walk(value) if isinstance(one, ast.Name)]
        return [name for name in names if name.rpartition(".")[2][:1].isupper() and not name.endswith("ModuleList")]

    def resolve(self, root: str, path: str) -> list[Built]:
        """What may stand at a module path below a class; empty if the syntax does not tell.

        Args:
            root: class of the whole model.
            path: `model.layers.0.self_attn`; numbers are places in lists.
        """
        found = [Built(root, ast.Call(ast.Name(root), [], []))]
        for part in path.split(".") if path else ():
            if not part.isdigit():
                found = [built for one in found for built in self.submodules(one.made).get(part, [])]
        return found


def find_source(architectures: Sequence[str], model_type: str) -> tuple[Source, str] | None:
    """The modeling file of transformers that defines one of the classes, and the name of that class.

    The package is located, not imported.

    Args:
        architectures: names of classes, the first that is found counts.
        model_type: of the config; its folder is looked into first.
    """
    spec: Any = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return None
    models = Path(spec.origin).parent / "models"
    for architecture in architectures:
        first = models / model_type / f"modeling_{model_type}.py"
        for path in (first, *sorted(models.glob(f"{model_type.partition('_')[0]}*/modeling_*.py"))):
            if path.is_file() and f"class {architecture}(" in path.read_text(encoding="utf-8"):
                return Source.read(path), architecture
    return None


def activation_source() -> Source | None:
    """transformers' table of activations, which configs name."""
    spec: Any = importlib.util.find_spec("transformers")
    path = None if spec is None or spec.origin is None else Path(spec.origin).parent / "activations.py"
    return Source.read(path) if path is not None and path.is_file() else None
