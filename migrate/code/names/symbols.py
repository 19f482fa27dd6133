"""Classes and functions of the repository, and the facts that type inference collects about them."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Set
from dataclasses import dataclass, field

import libcst as cst

from mappings.api import ApiTable
from mappings.transformers import load_transformers
from migrate.code.inference.types import Type, join
from migrate.code.names.resolve import Resolver
from migrate.code.trees.walk import children, walk

MODULE = "torch.nn.Module"
_CATEGORY_BASES = {
    "module": MODULE,
    "optimizer": "torch.optim.Optimizer",
    "scheduler": "torch.optim.lr_scheduler.LRScheduler",
    "dataset": "torch.utils.data.Dataset",
    "loader": "torch.utils.data.DataLoader",
    "sampler": "torch.utils.data.Sampler",
    "generator": "torch.Generator",
}
_NAMESPACE_BASES = {
    "torch.nn": MODULE,
    "torch.optim": "torch.optim.Optimizer",
    "torch.optim.lr_scheduler": "torch.optim.lr_scheduler.LRScheduler",
}


@dataclass
class FunctionInfo:
    """A function, method or lambda-free nested function."""

    name: str
    """Qualified: `module.f`, `module.Class.f`, `module.f.<locals>.g`."""
    node: cst.FunctionDef
    resolver: Resolver
    owner: ClassInfo | None
    parameters: list[cst.Param]
    """Positional and keyword parameters, without `self` / `cls` for methods."""
    decorators: frozenset[str]

    @functools.cached_property
    def methods_called(self) -> Mapping[str, Set[str]]:
        """Method names that the body calls directly on plain names, functions inside left out."""
        called: dict[str, set[str]] = {}
        for node in walk(self.node.body, skip=(cst.FunctionDef,)):
            function = node.func if isinstance(node, cst.Call) else None
            if isinstance(function, cst.Attribute) and isinstance(function.value, cst.Name):
                called.setdefault(function.value.value, set()).add(function.attr.value)
        return called

    @functools.cached_property
    def attributes_read(self) -> Mapping[str, Set[str]]:
        """Attributes, methods included, that the body takes of plain names."""
        read: dict[str, set[str]] = {}
        for node in walk(self.node.body, skip=(cst.FunctionDef,)):
            if isinstance(node, cst.Attribute) and isinstance(node.value, cst.Name):
                read.setdefault(node.value.value, set()).add(node.attr.value)
        return read

    @functools.cached_property
    def rebound(self) -> Set[str]:
        """Names that the body assigns."""
        found: set[str] = set()
        for node in walk(self.node.body):
            if isinstance(node, cst.AssignTarget | cst.AugAssign | cst.AnnAssign | cst.For | cst.NamedExpr):
                found.update(name.value for name in walk(node.target) if isinstance(name, cst.Name))
            elif isinstance(node, cst.AsName):
                found.update(name.value for name in walk(node.name) if isinstance(name, cst.Name))
        return found

    @property
    def is_property(self) -> bool:
        return bool({"builtins.property", "functools.cached_property"} & self.decorators)


@dataclass
class ClassInfo:
    """A class of the repository."""

    name: str
    node: cst.ClassDef
    resolver: Resolver
    bases: list[str]
    """Qualified names; an unresolvable base is the empty string."""
    methods: dict[str, FunctionInfo] = field(default_factory=dict)
    fields: dict[str, cst.Annotation] = field(default_factory=dict)
    """Annotated class-level names: dataclass fields."""


class Symbols:
    """Every class and function of the repository by qualified name."""

    def __init__(self, table: ApiTable) -> None:
        self.table = table
        self.classes: dict[str, ClassInfo] = {}
        self.functions: dict[str, FunctionInfo] = {}
        self.method_names: set[str] = set()
        """Of all classes of the repository."""

    def lineage(self, name: str) -> list[str]:
        """A class and its ancestors, nearest first, ending in names outside the repository.

        Of an object that may be of several classes (`a|b`): the ancestors that they share.
        """
        if "|" in name:
            first, *rest = (self.lineage(part) for part in name.split("|"))
            return [ancestor for ancestor in first if all(ancestor in other for other in rest)]
        found: list[str] = []
        pending = [name]
        while pending:
            current = pending.pop(0)
            if current in found or not current:
                continue
            found.append(current)
            if info := self.classes.get(current):
                pending.extend(info.bases)
            elif base := self._torch_base(current):
                pending.append(base)
        return found

    def _torch_base(self, name: str) -> str | None:
        if name.startswith("einops.layers.torch."):
            return MODULE
        if (entry := load_transformers().entry(name)) is not None:
            return _CATEGORY_BASES.get(entry.returns or "")
        if not name.startswith("torch."):
            return None
        for row in self.table.rows(name):
            if row.returns in _CATEGORY_BASES:
                base = _CATEGORY_BASES[row.returns]
                return None if base == name else base
        parent, _, last = name.rpartition(".")
        if not last[:1].isupper() or last in ("Parameter", "Buffer"):
            return None
        # A class that the table does not know yet still has the methods of its kind.
        kind = _NAMESPACE_BASES.get(parent)
        return None if kind == name else kind

    def is_module(self, name: str) -> bool:
        """Whether a class is a `torch.nn.Module`, as far as the repository shows."""
        return MODULE in self.lineage(name)

    def method(self, class_name: str, method: str) -> FunctionInfo | None:
        """The method an object of the class has, inherited ones included."""
        for name in self.lineage(class_name):
            info = self.classes.get(name)
            if info and method in info.methods:
                return info.methods[method]
        return None

    def torch_member(self, class_name: str, member: str) -> str | None:
        """The table's name of a member that comes from a torch ancestor, e.g. `torch.nn.Module.parameters`."""
        for name in self.lineage(class_name):
            if info := self.classes.get(name):
                if member in info.methods:
                    return None
            elif f"{name}.{member}" in self.table:
                return f"{name}.{member}"
        return None


@dataclass
class Facts:
    """Types of what outlives a statement; grows until nothing changes."""

    parameters: dict[tuple[str, str], Type] = field(default_factory=dict)
    """(function, parameter) -> join over all call sites."""
    returns: dict[str, Type] = field(default_factory=dict)
    passed_through: dict[str, str | None] = field(default_factory=dict)
    """Function -> the parameter that it returns untouched, None if it returns something else as well."""
    attributes: dict[tuple[str, str], Type] = field(default_factory=dict)
    """(class, attribute) -> join over all assignments."""
    variables: dict[str, Type] = field(default_factory=dict)
    """Module-level `module.name`."""
    changed: bool = False
    settled: bool = False
    """Whether what the repository states has been followed to the end; only then are defaults assumed."""

    def note_parameter(self, function: str, parameter: str, found: Type) -> None:
        self._note(self.parameters, (function, parameter), found)

    def note_return(self, function: str, found: Type) -> None:
        self._note(self.returns, function, found)

    def note_attribute(self, owner: str, attribute: str, found: Type) -> None:
        self._note(self.attributes, (owner, attribute), found)

    def note_variable(self, name: str, found: Type) -> None:
        self._note(self.variables, name, found)

    def _note(self, table: dict, key: object, found: Type) -> None:
        old = table.get(key)
        new = join(old, found) if found.kind != "pending" else old
        if new is not None and new != old:
            table[key] = new
            self.changed = True


def collect(symbols: Symbols, resolver: Resolver, tree: cst.Module) -> None:
    """Add the classes and functions of one file."""
    _collect(symbols, resolver, tree, resolver.source.module, None)


def _collect(symbols: Symbols, resolver: Resolver, node: cst.CSTNode, path: str, owner: ClassInfo | None) -> None:
    """The definitions below a node, which `path` names; `owner` is the class when the node is one."""
    for child in children(node):
        if isinstance(child, cst.ClassDef):
            info = _class(symbols, resolver, child, f"{path}.{child.name.value}")
            _collect(symbols, resolver, child, info.name, info)
        elif isinstance(child, cst.FunctionDef):
            name = f"{path}.{child.name.value}"
            _function(symbols, resolver, child, name, owner)
            _collect(symbols, resolver, child, f"{name}.<locals>", None)
        elif not isinstance(child, cst.BaseExpression | cst.BaseSmallStatement):
            _collect(symbols, resolver, child, path, owner)


def _class(symbols: Symbols, resolver: Resolver, node: cst.ClassDef, name: str) -> ClassInfo:
    bases = [resolver.qualified(_unsubscripted(base.value)) or "" for base in node.bases if base.keyword is None]
    info = ClassInfo(name, node, resolver, bases)
    if isinstance(node.body, cst.IndentedBlock):
        for statement in node.body.body:
            if isinstance(statement, cst.SimpleStatementLine):
                for small in statement.body:
                    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
                        info.fields[small.target.value] = small.annotation
    symbols.classes[name] = info
    return info


def _function(symbols: Symbols, resolver: Resolver, node: cst.FunctionDef, name: str, owner: ClassInfo | None) -> None:
    decorators = frozenset(filter(None, (resolver.qualified(_called(d.decorator)) for d in node.decorators)))
    positional = [*node.params.posonly_params, *node.params.params]
    if owner is not None and "builtins.staticmethod" not in decorators:
        positional = positional[1:]
    info = FunctionInfo(name, node, resolver, owner, [*positional, *node.params.kwonly_params], decorators)
    symbols.functions[name] = info
    if owner is not None:
        owner.methods[node.name.value] = info
        symbols.method_names.add(node.name.value)


def _unsubscripted(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.value if isinstance(node, cst.Subscript) else node


def _called(node: cst.BaseExpression) -> cst.BaseExpression:
    return node.func if isinstance(node, cst.Call) else node
