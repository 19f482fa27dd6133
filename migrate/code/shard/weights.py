"""Uses of layers beside calling them: their weights elsewhere, the same weight in two layers, other methods."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import libcst as cst

from migrate.code.analysis import FileAnalysis
from migrate.code.context import code_of
from migrate.code.shard.layers import Inventory
from migrate.code.shard.values import LayerRef
from migrate.code.trees.walk import children

_HARMLESS = frozenset({"in_features", "out_features", "num_embeddings", "embedding_dim", "reset_parameters"})
_EMBEDDING_METHODS = frozenset(
    {"get_input_embeddings", "set_input_embeddings", "get_output_embeddings", "set_output_embeddings"}
)
"""transformers' methods, by which it ties weights; `VocabParallel...` refuse what is cut otherwise."""
_READ = frozenset({"dtype", "device", "requires_grad"})


@dataclass(frozen=True)
class Use:
    """A place where an attribute of a layer's name is read."""

    file: FileAnalysis
    function: str
    """Qualified name of the function around it."""
    parents: tuple[cst.CSTNode, ...]
    """From the nearest outwards."""
    node: cst.Attribute

    @property
    def place(self) -> str:
        return f"{self.file.source.path}:{self.file.line(self.node)}"


def _is_called(use: Use) -> bool:
    return isinstance(use.parents[0], cst.Call) and use.parents[0].func is use.node


class WeightUses:
    """All uses of the names of layers in a repository."""

    def __init__(self, inventory: Inventory) -> None:
        self.inventory = inventory
        names = {layer.ref.attribute for layer in inventory.all}
        self._uses: dict[str, list[Use]] = {name: [] for name in names}
        self._made_in: dict[str, set[str]] = {}
        """Functions that make or name an object of a class, beside its definition."""
        for file in inventory.analysis.files.values():
            self._collect(file, file.tree, (), file.source.module)
        self._indexed: list[tuple[str, frozenset[str]]] = []
        """Rows of weights of modules that nobody names: the place, and the kinds of the modules if they are known."""
        for file in inventory.analysis.files.values():
            self._collect_rows(file, file.tree)
        self.ties = self._ties()

    def _collect(self, file: FileAnalysis, node: cst.CSTNode, parents: tuple[cst.CSTNode, ...], path: str) -> None:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            path = f"{path}.{node.name.value}"
        if isinstance(node, cst.Attribute) and node.attr.value in self._uses:
            self._uses[node.attr.value].append(Use(file, path, parents, node))
        if (
            isinstance(node, cst.Name | cst.Attribute)
            and (name := file.resolver.qualified(node)) in self.inventory.classes
        ):
            self._made_in.setdefault(str(name), set()).add(path)
        for child in children(node):
            if not isinstance(child, cst.Annotation | cst.Import | cst.ImportFrom):
                self._collect(file, child, (node, *parents[:4]), path)

    def only_inside(self, name: str, parent: str) -> bool:
        """Whether objects of a class are made by methods of one other class alone, and no class inherits from it."""
        places = self._made_in.get(name, set()) - {name}
        inside = all(place.rpartition(".")[0] == parent for place in places)
        return bool(places) and inside and not self.inventory.heirs(name)

    def _collect_rows(self, file: FileAnalysis, node: cst.CSTNode, guards: tuple[str, ...] = ()) -> None:
        if isinstance(node, cst.If):
            guards = (*guards, code_of(node.test))
        if isinstance(node, cst.Subscript):
            self._collect_row(file, node, guards)
        for child in children(node):
            self._collect_rows(file, child, guards)

    def _collect_row(self, file: FileAnalysis, node: cst.Subscript, guards: tuple[str, ...]) -> None:
        weight = node.value
        if isinstance(weight, cst.Attribute) and weight.attr.value == "data":
            weight = weight.value
        if not isinstance(weight, cst.Attribute) or weight.attr.value != "weight":
            return
        holder = weight.value
        if isinstance(holder, cst.Attribute) and holder.attr.value in self._uses:
            return  # a layer by its name, see `reason`
        padding = f"{code_of(holder)}.padding_idx"
        index = node.slice[0].slice
        if isinstance(index, cst.Index) and code_of(index.value) == padding and f"{padding} is not None" in guards:
            return  # of a cut table `padding_idx` is a row that the rank holds, or None
        kind = file.types.of(holder)
        known = kind.kind == "object" and bool(kind.name)
        kinds = frozenset(kind.name.split("|")) if known else frozenset[str]()
        self._indexed.append((f"{file.source.path}:{file.line(node)}", kinds))

    def of(self, ref: LayerRef) -> list[Use]:
        """Uses that may be those of a layer: the object is of its class, or nobody knows of which."""
        symbols = self.inventory.analysis.symbols
        found = []
        for use in self._uses[ref.attribute]:
            base = use.file.types.of(use.node.value)
            if base.kind not in ("object", "super") or not base.name:
                if base.is_known:
                    continue
            elif all(ref.owner not in symbols.lineage(name) for name in base.name.split("|")):
                continue
            found.append(use)
        return found

    def reason(self, ref: LayerRef) -> str | None:
        """Why a layer must stay whole although its calls may be cut; None if there is no reason."""
        for use in self.of(ref):
            parent = use.parents[0]
            if isinstance(parent, cst.Attribute):
                name = parent.attr.value
                if name in ("weight", "bias"):
                    if not self._weight_is_left_alone(use):
                        return f"{use.place} uses the {name} of {ref.attribute} itself"
                elif name not in _HARMLESS:
                    return f"{use.place} uses {ref.attribute}.{name}"
        return self._rows_changed(ref)

    def _rows_changed(self, ref: LayerRef) -> str | None:
        """`module.weight.data[0] = 0` on any modules, as a reason: rows have other numbers when cut."""
        layer = self.inventory.of(ref)
        for place, kinds in self._indexed:
            if not kinds or layer.kind in kinds:
                return f"{place} uses single rows of the weights of modules"
        return None

    def _weight_is_left_alone(self, use: Use) -> bool:
        weight, outer = use.parents[0], use.parents[1] if len(use.parents) > 1 else None
        if isinstance(outer, cst.AssignTarget) or (isinstance(outer, cst.Assign) and outer.value is weight):
            return True  # a tie, judged by `ties`
        if isinstance(outer, cst.Attribute):
            return outer.attr.value in _READ or (outer.attr.value == "data" and self._is_initialised(use, 2))
        return isinstance(outer, cst.Arg) and self._is_initialised(use, 1)

    def _is_initialised(self, use: Use, depth: int) -> bool:
        """`nn.init.normal_(self.q.weight)`: initial values are drawn for the whole weight and cut."""
        for parent in use.parents[depth:]:
            if isinstance(parent, cst.Call):
                return (use.file.resolver.torch_name(parent.func) or "").startswith("torch.nn.init.")
        return False

    def called_elsewhere(self, ref: LayerRef, followed: Collection[str]) -> str | None:
        """A call of the layer in a function that was not followed, as a reason; None if there is none."""
        for use in self.of(ref):
            if _is_called(use) and use.function not in followed:
                return f"{use.place} calls {ref.attribute} in a method that was not followed"
        return self.handed_on(ref)

    def handed_on(self, ref: LayerRef) -> str | None:
        """A place where the layer itself is passed on or replaced, as a reason; None if there is none."""
        for use in self.of(ref):
            if use.function.rpartition(".")[2] in _EMBEDDING_METHODS:
                continue
            parent = use.parents[0]
            is_call, is_member = _is_called(use), isinstance(parent, cst.Attribute)
            is_target = isinstance(parent, cst.AssignTarget | cst.AnnAssign)
            if not is_call and not is_target and not is_member:
                return f"{use.place} hands {ref.attribute} on: {code_of(parent)}"
            if is_target and not use.function.endswith(".__init__"):
                return f"{use.place} replaces {ref.attribute}"
        return None

    def _ties(self) -> list[tuple[LayerRef, LayerRef, str]]:
        """Pairs of layers that share a weight, with the place."""
        found = []
        for layer in self.inventory.all:
            for use in self.of(layer.ref):
                weight = use.parents[0]
                outer = use.parents[1] if len(use.parents) > 1 else None
                is_weight = isinstance(weight, cst.Attribute) and weight.attr.value == "weight"
                if is_weight and isinstance(outer, cst.Assign) and outer.value is weight:
                    for target in outer.targets:
                        other = self._layer_of(use, target.target)
                        if other is not None:
                            found.append((other, layer.ref, use.place))
        return found

    def _layer_of(self, use: Use, target: cst.BaseExpression) -> LayerRef | None:
        """The layer whose weight an assignment sets."""
        if not isinstance(target, cst.Attribute) or target.attr.value != "weight":
            return None
        holder = target.value
        if not isinstance(holder, cst.Attribute):
            return None
        base = use.file.types.of(holder.value)
        layer = self.inventory.layer(base.name, holder.attr.value) if base.kind == "object" and base.name else None
        return None if layer is None else layer.ref
