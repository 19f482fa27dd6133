"""Qualified names: what `nn.Linear`, `F.relu` or `GPT` means in a file, followed through the whole repository.

Names are those of the scope analysis, never matched by spelling. A name of the repository is `module.symbol`; imports
that another module re-exports and module-level aliases (`Tensor = torch.Tensor`) are followed to where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import libcst as cst

from migrate.code.names.scopes import Scopes, is_builtin
from migrate.code.project import Project, SourceFile
from migrate.code.trees.dotted import dotted


@dataclass
class ModuleSymbols:
    """What the top level of a module binds."""

    imports: dict[str, str] = field(default_factory=dict)
    """Local name -> absolute dotted name."""
    aliases: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """Names assigned once, from a plain dotted name."""
    definitions: dict[str, cst.ClassDef | cst.FunctionDef] = field(default_factory=dict)
    stars: list[str] = field(default_factory=list)
    """Modules imported with a star."""


class Resolver:
    """Qualified names of one file."""

    def __init__(
        self,
        project: Project,
        source: SourceFile,
        scopes: Scopes,
        symbols: Mapping[str, ModuleSymbols],
    ) -> None:
        self.project, self.source = project, source
        self._scopes = scopes
        self._symbols = symbols
        self._cache: dict[cst.CSTNode, str | None] = {}

    def qualified(self, node: cst.CSTNode) -> str | None:
        """Absolute dotted name of a Name or Attribute; None for local variables and computed expressions.

        `torch.nn.Linear` for a torch name, `model.GPT` for a class of module `model`, `builtins.len` for a builtin.
        """
        if not isinstance(node, cst.Name | cst.Attribute):
            return None
        if node not in self._cache:
            self._cache[node] = self._resolve(node)
        return self._cache[node]

    def torch_name(self, node: cst.CSTNode) -> str | None:
        """The qualified name if it belongs to torch."""
        name = self.qualified(node)
        return name if name is not None and (name == "torch" or name.startswith("torch.")) else None

    @property
    def imports(self) -> Mapping[str, str]:
        """What the import statements of the file bind: local name -> absolute dotted name."""
        return self._symbols[self.source.module].imports

    def has_scope(self, node: cst.CSTNode) -> bool:
        """Whether a chain of names stands in the file itself, not in a text."""
        while isinstance(node, cst.Attribute):
            node = node.value
        return isinstance(node, cst.Name) and self._scopes.of(node) is not None

    def top_level(self, name: str) -> str | None:
        """What a dotted name in a quoted annotation means: imports and definitions of the file, and builtins."""
        symbols = self._symbols[self.source.module]
        first, dot, rest = name.partition(".")
        if first in symbols.imports:
            return self.canonical(f"{symbols.imports[first]}{dot}{rest}")
        if first in symbols.definitions or first in symbols.aliases:
            return self.canonical(f"{self.source.module}.{name}")
        return f"builtins.{name}" if is_builtin(first) else self._from_star(name)

    def is_alias(self, node: cst.CSTNode) -> bool:
        """Whether a name stands for what another name means in this file: `Tensor` after `Tensor = torch.Tensor`."""
        return (
            isinstance(node, cst.Name)
            and node.value in self._symbols[self.source.module].aliases
            and self.qualified(node) is not None
        )

    def _resolve(self, node: cst.Name | cst.Attribute) -> str | None:
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        name = dotted(node)
        scope = self._scopes.of(root) if isinstance(root, cst.Name) else None
        if scope is None or name is None:
            return None
        first, dot, rest = name.partition(".")
        owner = scope.owner(first)
        if owner is None:
            return f"builtins.{name}" if is_builtin(first) else self._from_star(name)
        sources = () if self._scopes.is_target(node) else owner.imports.get(first, ())
        imported = sorted(f"{target}{dot}{rest}" for target in sources)
        # `try: import x / except ImportError: x = None` has two sources; the import is the one that matters.
        if meant := [target for target in imported if not _stands_in(target)]:
            return self.canonical(self.absolute(meant[0])) if len(meant) == 1 else None
        if imported or owner.path is None:
            return None
        return self.canonical(".".join(filter(None, (self.source.module, owner.path, name))))

    def _from_star(self, name: str | None) -> str | None:
        if name is None:
            return None
        for module in self._symbols[self.source.module].stars:
            symbols = self._symbols.get(module)
            first = name.split(".")[0]
            if symbols and first in {*symbols.imports, *symbols.aliases, *symbols.definitions}:
                return self.canonical(f"{module}.{name}")
        return None

    def is_imported_torch(self, name: str, depth: int = 0) -> bool:
        """Whether an absolute name is torch's by imports alone; an alias `act = F.relu` is the module's own."""
        if name == "torch" or name.startswith("torch."):
            return True
        module, _, last = name.rpartition(".")
        symbols = self._symbols.get(module)
        if symbols is None or last not in symbols.imports or depth > 20:
            return False
        return self.is_imported_torch(symbols.imports[last], depth + 1)

    def absolute(self, name: str) -> str:
        """An imported dotted name without leading dots and with the module name that the project uses."""
        return absolute(self.project, self.source, name)

    def canonical(self, name: str, depth: int = 0) -> str:
        """Follow re-exports and module-level aliases of the repository."""
        if depth > 20 or name.startswith("torch."):
            return name
        parts = name.split(".")
        for length in range(len(parts) - 1, 0, -1):
            module = ".".join(parts[:length])
            symbols = self._symbols.get(module)
            if symbols is None:
                continue
            first, rest = parts[length], parts[length + 1 :]
            if first in symbols.definitions or self.project.module(f"{module}.{first}"):
                return name
            if first in symbols.imports:
                return self.canonical(".".join([symbols.imports[first], *rest]), depth + 1)
            if first in symbols.aliases:
                target = dotted(symbols.aliases[first])
                if target is not None:
                    head, *tail = target.split(".")
                    if head in {*symbols.imports, *symbols.definitions, *symbols.aliases} and head != first:
                        return self.canonical(".".join([module, head, *tail, *rest]), depth + 1)
            return name
        return name


def absolute(project: Project, source: SourceFile, name: str) -> str:
    """Absolute form of a name that an import statement of `source` gave, e.g. `..layers.norm.RMSNorm`."""
    dots = len(name) - len(name.lstrip("."))
    if dots:
        package = source.module.split(".") if source.is_package else source.module.split(".")[:-1]
        package = package[: len(package) - (dots - 1)] if dots > 1 else package
        if not package and project.module(name.lstrip(".").split(".")[0]) is None:
            return name  # a neighbour that is not there: never a library of the same name
        return ".".join([*package, *filter(None, name.lstrip(".").split("."))])
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        if module := project.find(".".join(parts[:length]), source):
            return ".".join([module, *parts[length:]])
    return name


def module_symbols(project: Project, source: SourceFile, tree: cst.Module) -> ModuleSymbols:
    """What the top level of a file binds; conditional blocks (`if`, `try`) count as top level."""
    collector = _TopLevel(project, source)
    tree.visit(collector)
    return collector.symbols


def _stands_in(name: str) -> bool:
    """`except ImportError: from ms_compat.unconverted import torch`, see `guarded_imports`: means what it replaces."""
    return name.startswith("ms_compat.unconverted.")


class _TopLevel(cst.CSTVisitor):
    def __init__(self, project: Project, source: SourceFile) -> None:
        super().__init__()
        self.project, self.source = project, source
        self.symbols = ModuleSymbols()
        self._assigned: set[str] = set()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> bool:
        self.symbols.definitions[node.name.value] = node
        return False

    def visit_ClassDef(self, node: cst.ClassDef) -> bool:
        self.symbols.definitions[node.name.value] = node
        return False

    def visit_Lambda(self, node: cst.Lambda) -> bool:
        return False

    def visit_Import(self, node: cst.Import) -> None:
        for alias in node.names:
            name = alias.evaluated_name
            if alias.asname:
                self._bind(alias.evaluated_alias or name, name)
            else:
                self._bind(name.split(".")[0], name.split(".")[0])

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        base = "." * len(node.relative) + (dotted(node.module) or "")
        if isinstance(node.names, cst.ImportStar):
            self.symbols.stars.append(absolute(self.project, self.source, base))
            return
        for alias in node.names:
            separator = "" if base.endswith(".") else "."
            self._bind(alias.evaluated_alias or alias.evaluated_name, f"{base}{separator}{alias.evaluated_name}")

    def _bind(self, local: str, name: str) -> None:
        if _stands_in(name):
            return
        self.symbols.imports[local] = absolute(self.project, self.source, name)

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            if isinstance(target.target, cst.Name):
                name = target.target.value
                if name in self._assigned:
                    self.symbols.aliases.pop(name, None)  # two values: no alias
                elif dotted(node.value):
                    self.symbols.aliases[name] = node.value
                self._assigned.add(name)


__all__ = ["ModuleSymbols", "Resolver", "absolute", "module_symbols"]
