"""What names and attributes mean while the flow of a method is followed."""

from __future__ import annotations

import libcst as cst

from migrate.code.shard import operations as ops
from migrate.code.shard.follower import Follower, constructor_frame
from migrate.code.shard.layers import LINEAR, ClassLayers
from migrate.code.shard.sizes import named
from migrate.code.shard.values import (
    NONE,
    UNKNOWN,
    Callable,
    Constant,
    Instance,
    Items,
    Layer,
    Method,
    Number,
    Opaque,
    Tensor,
    Torch,
    UnprovedError,
    Value,
)

_PLAIN = frozenset({"training", "config", "dtype", "device", "__class__", "__name__"})
"""Attributes that every module has, and that hold no parameters."""


class Attributes(Follower):
    """Names and attributes: of modules, of other objects of the repository, of tensors."""

    def _name(self, node: cst.Name) -> Value:
        if node.value in self.frame.env:
            return self.frame.env[node.value]
        if node.value in ("None", "True", "False"):
            return Constant({"None": None, "True": True, "False": False}[node.value])
        layers = self.frame.fallback
        if layers is not None and node.value in layers.locals:
            return self.value(layers.locals[node.value])
        return self.global_name(node) or Opaque(None if layers is None else node.value)

    def global_name(self, node: cst.Name | cst.Attribute) -> Value | None:
        """What a name of a module means."""
        name = self.frame.resolver.qualified(node)
        if name is None:
            return None
        if name in self.symbols.functions:
            return Callable(self.symbols.functions[name])
        return Torch(name)

    def _attribute(self, node: cst.Attribute) -> Value:
        root: cst.BaseExpression = node
        while isinstance(root, cst.Attribute):
            root = root.value
        if isinstance(root, cst.Name) and root.value not in self.frame.env:
            found = self.global_name(node)
            if found is not None:
                return found
        base = self.value(node.value)
        return self.member(base, node)

    def member(self, base: Value, node: cst.Attribute) -> Value:
        name = node.attr.value
        match base:
            case Instance():
                return self.attribute(base, name, node)
            case Tensor():
                if name in ("shape",):
                    return self.shape(base)
                if name == "ndim" and base.shape is not None and not self.expanded(base.shape)[0].rest:
                    return Number(named(str(len(self.expanded(base.shape)))))
                if name in ("dtype", "device", "ndim", "is_cuda", "requires_grad"):
                    return Opaque()
                if name in ("mT", "T", "H"):
                    return ops.swapped(base, -1, -2)
                if name == "data":
                    return base
                return Method(base, name, node)
            case Opaque():
                return Opaque(None if base.text is None else f"{base.text}.{name}")
        return Opaque()

    def shape(self, tensor: Tensor) -> Value:
        if tensor.shape is None:
            return Opaque()
        return Items(tuple(Number(size) for size in self.expanded(tensor.shape)))

    def attribute(self, owner: Instance, name: str, node: cst.Attribute) -> Value:
        """An attribute of a module or another object of the repository."""
        layer = self.inventory.layer(owner.name, name)
        if layer is not None:
            return Layer(layer.ref) if layer.kind == LINEAR else Torch(layer.kind, module=True)
        method = self.symbols.method(owner.name, name)
        if method is not None:
            bound = Callable(method, owner)
            return self.run(bound, {}) if method.is_property else bound
        kept = self.kept(owner.name, name)
        if kept is not None:
            return kept
        found = next((self.facts.attributes[n, name] for n in self.symbols.lineage(owner.name)
                      if (n, name) in self.facts.attributes), None)  # fmt: skip
        if found is not None and found.kind == "object" and found.name in self.symbols.classes:
            return Instance(found.name)
        for layers in self.inventory.lineage(owner.name):
            if name in layers.buffers:
                return Tensor(kept_as=(layers.info.name, name))
            if name in layers.definitions:
                return self.defined(layers, name, node)
        plain = name in _PLAIN or (found is not None and found.kind in ("number", "value", "none", "shape", "dtype"))
        if self.lenient and not self.symbols.is_module(owner.name):
            return Opaque()
        return Opaque(f"self.{name}") if plain else UNKNOWN

    def kept(self, owner: str, name: str) -> Value | None:
        """Tensors that the code keeps in attributes, once they are known to be cut."""
        return None

    def defined(self, layers: ClassLayers, name: str, node: cst.Attribute) -> Value:
        """What the constructor assigned to an attribute."""
        definition = layers.definitions[name]
        if isinstance(definition, cst.Call):
            called = layers.info.resolver.qualified(definition.func) or ""
            if called.startswith("torch.") and called.endswith(".Parameter"):
                # Read in the followed class itself it can be entered where it stands.
                self._reads[id(node)] = node
                return Tensor(None, frozenset({f"read:{id(node)}"} if self.may_change() else {"?"}))
            if self.symbols.is_module(called):
                return Torch(called, module=True, arguments=tuple(definition.args))
        if isinstance(definition, cst.Subscript):
            called = layers.info.resolver.qualified(definition.value) or ""
            if called.endswith("activations.ACT2FN"):
                return Torch(called, module=True)
        before, self.frame = self.frame, constructor_frame(layers)
        try:
            found = self.value(definition)
            # others may set an attribute that begins as None
            return Opaque() if found == NONE else found
        except UnprovedError:
            return Opaque(f"{layers.info.name}.{name}")
        finally:
            self.frame = before
