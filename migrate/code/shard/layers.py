"""The layers of a repository's modules: which attribute of which class holds a Linear or an Embedding, and its call."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import libcst as cst

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.names.symbols import ClassInfo, FunctionInfo
from migrate.code.shard.values import LayerRef
from migrate.code.trees.walk import walk

LINEAR, EMBEDDING = "torch.nn.Linear", "torch.nn.Embedding"
EMBEDDING_SETTERS = ("set_input_embeddings", "set_output_embeddings")
"""transformers' methods that every model has; a program that calls them brings layers of its own."""
SIGNATURES = {
    LINEAR: ("in_features", "out_features", "bias", "device", "dtype"),
    EMBEDDING: ("num_embeddings", "embedding_dim", "padding_idx"),
}


@dataclass(frozen=True)
class LayerInfo:
    """One layer."""

    ref: LayerRef
    kind: str
    """`LINEAR` or `EMBEDDING`."""
    call: cst.Call
    file: FileAnalysis
    arguments: Mapping[str, cst.Arg] | None
    """By torch's parameter; None if there is one that the cut layer does not have."""

    @property
    def line(self) -> int:
        return self.file.line(self.call)


@dataclass
class ClassLayers:
    """What the constructor of a module class says about its attributes."""

    info: ClassInfo
    file: FileAnalysis
    init: FunctionInfo | None
    layers: dict[str, LayerInfo] = field(default_factory=dict)
    definitions: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """Attributes that are assigned once in the whole class, in the constructor."""
    initial: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """What the constructor assigns first, whatever other methods do."""
    definition_lines: dict[str, int] = field(default_factory=dict)
    locals: dict[str, cst.BaseExpression] = field(default_factory=dict)
    """Local variables of the constructor that are assigned once."""
    buffers: set[str] = field(default_factory=set)


class Inventory:
    """The module classes of a repository."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.classes: dict[str, ClassLayers] = {}
        self.trees: dict[str, dict[str, LayerInfo | None]] = {}
        """What `paths.module_paths` has found."""
        files = {id(file.resolver): file for file in analysis.files.values()}
        for name, info in analysis.symbols.classes.items():
            file = files.get(id(info.resolver))
            if file is not None and analysis.symbols.is_module(name):
                self.classes[name] = _class_layers(info, file)

    def lineage(self, name: str) -> Iterator[ClassLayers]:
        """A class and its ancestors in the repository."""
        for ancestor in self.analysis.symbols.lineage(name):
            if ancestor in self.classes:
                yield self.classes[ancestor]

    def layer(self, name: str, attribute: str) -> LayerInfo | None:
        """The layer that an object of a class holds."""
        for layers in self.lineage(name):
            if attribute in layers.layers:
                return layers.layers[attribute]
            if attribute in layers.definitions:
                return None
        return None

    def heirs(self, name: str) -> list[str]:
        """Classes that inherit from a class and have layers' flows of their own, or its own."""
        symbols = self.analysis.symbols
        return [other for other in self.classes if other != name and name in symbols.lineage(other)]

    def of(self, ref: LayerRef) -> LayerInfo:
        return self.classes[ref.owner].layers[ref.attribute]

    @functools.cached_property
    def all(self) -> list[LayerInfo]:
        """Every layer in the order of the text."""
        return [layer for found in self.classes.values() for layer in found.layers.values()]


def _class_layers(info: ClassInfo, file: FileAnalysis) -> ClassLayers:
    found = ClassLayers(info, file, info.methods.get("__init__"))
    counts: dict[str, int] = {}
    for method in info.methods.values():
        for target, value in assignments(method.node):
            if not isinstance(target, cst.Attribute) or not _is_self(target.value):
                continue
            name = target.attr.value
            if method.node.name.value in EMBEDDING_SETTERS:
                continue
            counts[name] = counts.get(name, 0) + 1
            if method is found.init and value is not None:
                found.definitions[name] = value
                found.initial.setdefault(name, value)
                found.definition_lines[name] = file.line(target)
    found.definitions = {n: v for n, v in found.definitions.items() if counts[n] == 1}
    if found.init is None:
        return found
    local: dict[str, int] = {}
    for target, value in assignments(found.init.node):
        if isinstance(target, cst.Name):
            local[target.value] = local.get(target.value, 0) + 1
            if value is not None:
                found.locals[target.value] = value
    parameters = {p.name.value for p in found.init.parameters}
    found.locals = {n: v for n, v in found.locals.items() if local[n] == 1 and n not in parameters}
    for node in walk(found.init.node.body):
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and _is_self(node.func.value):
            first = node.args[0].value if node.args else None
            if node.func.attr.value == "register_buffer" and isinstance(first, cst.SimpleString):
                found.buffers.add(str(first.evaluated_value))
                if len(node.args) > 1:
                    found.initial.setdefault(str(first.evaluated_value), node.args[1].value)
    for name, value in found.definitions.items():
        kind = info.resolver.torch_name(value.func) if isinstance(value, cst.Call) else None
        if kind in SIGNATURES and isinstance(value, cst.Call):
            found.layers[name] = LayerInfo(LayerRef(info.name, name), kind, value, file, _bound(kind, value))
    return found


def assignments(function: cst.FunctionDef) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression | None]]:
    """Every target in a function with its value; None where the value is only a part of what is assigned."""
    for node in walk(function.body):
        if isinstance(node, cst.Assign):
            for target in node.targets:
                if isinstance(target.target, cst.Tuple | cst.List):
                    yield from ((element.value, None) for element in target.target.elements)
                else:
                    yield target.target, node.value if len(node.targets) == 1 else None
        elif isinstance(node, cst.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, cst.AugAssign | cst.For | cst.NamedExpr):
            yield node.target, None


def _is_self(node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Name) and node.value == "self"


def _bound(kind: str, call: cst.Call) -> dict[str, cst.Arg] | None:
    names = SIGNATURES[kind]
    found: dict[str, cst.Arg] = {}
    for position, arg in enumerate(call.args):
        name = arg.keyword.value if arg.keyword is not None else names[position] if position < len(names) else ""
        if arg.star or (name not in names and name != "dtype"):
            return None
        found[name] = arg
    return {name: arg for name, arg in found.items() if name != "device"}
