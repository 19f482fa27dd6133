"""The styles of torch's tensor parallelism: column-wise, row-wise, along the sequence.

`parallelize.parallelize_module` applies them. Each rank keeps its slice of the parameters under their own names. What
travels between modules is a local tensor, or a `DTensor` where torch's defaults say so. Not inside ms.jit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from mindspore import Tensor, nn, ops

from .device_mesh import DeviceMesh
from .dtensor import DTensor, Partial, Placement, Replicate, Shard, distribute_parameter
from .group_functions import copy_to_ranks
from .layers import Embedding, Linear


class ParallelStyle:
    """How one module is parallelised: `_apply` changes it, `_run` stands around its calls."""

    src_data_rank: int | None = 0

    def _apply(self, module: nn.Cell, device_mesh: DeviceMesh) -> nn.Cell:
        _surround(module, self, device_mesh)
        return module

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


class _Surrounded:
    """Added to the class of a module that has styles."""

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        call: Callable[..., Any] = super().construct  # type: ignore[misc]
        for style, mesh in reversed(self.__dict__["_styles"]):
            call = partial(style._run, self, mesh, call)
        return call(*args, **kwargs)


def _surround(module: nn.Cell, style: ParallelStyle, mesh: DeviceMesh) -> None:
    if not isinstance(module, _Surrounded):
        kind = type(module)
        module.__class__ = type(kind.__name__, (_Surrounded, kind), {})
        module.__dict__["_styles"] = []
    module.__dict__["_styles"].append((style, mesh))


def _local(value: Any, mesh: DeviceMesh, layout: Placement, wanted: Placement) -> Tensor:
    """This rank's part of `value` in the wanted layout; a plain tensor is taken to lie in `layout`."""
    given = value if is_distributed(value) else DTensor.from_local(value, mesh, [layout])
    return given.redistribute(placements=[wanted]).to_local()


def is_distributed(value: Any) -> bool:
    """Whether a value travels as a `DTensor`; a distributed parameter is a tensor of its own."""
    return isinstance(value, DTensor) and not isinstance(value, Tensor)


class _Sharded(ParallelStyle):
    """What the column-wise and the row-wise style have in common."""

    _cut: Placement
    _given: Placement

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        self.input_layouts = (input_layouts or self._given,)
        self.output_layouts = (output_layouts or self._cut,)
        self.use_local_output = use_local_output

    def _distribute(self, module: nn.Cell, name: str, mesh: DeviceMesh, placement: Placement) -> None:
        parameter = module._params.get(name)
        if parameter is not None:
            module._params[name] = distribute_parameter(parameter, mesh, placement, self.src_data_rank)

    def _leave(self, output: Tensor, mesh: DeviceMesh, layout: Placement) -> Any:
        made = DTensor(output, mesh, [layout]).redistribute(placements=self.output_layouts)
        return made.to_local() if self.use_local_output else made

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, output_layouts={self.output_layouts}, "
            f"use_local_output={self.use_local_output})"
        )


class ColwiseParallel(_Sharded):
    """Each rank computes some output features of a Linear or an Embedding; the output is cut along its last axis."""

    _cut, _given = Shard(-1), Replicate()

    def _apply(self, module: nn.Cell, device_mesh: DeviceMesh) -> nn.Cell:
        if isinstance(module, Linear):
            self._distribute(module, "weight", device_mesh, Shard(0))
            self._distribute(module, "bias", device_mesh, Shard(0))
        elif isinstance(module, Embedding):
            self._distribute(module, "weight", device_mesh, Shard(1))
        else:
            raise NotImplementedError("ColwiseParallel currently only support nn.Linear and nn.Embedding!")
        return super()._apply(module, device_mesh)

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        value = _local(_only(module, args, kwargs), mesh, self.input_layouts[0], Replicate())
        if isinstance(module, Linear):
            value = copy_to_ranks(value, mesh.get_group())
        return self._leave(call(value), mesh, Shard(-1))


class RowwiseParallel(_Sharded):
    """Each rank computes with some input features of a Linear, or some rows of an Embedding; results are added."""

    _cut, _given = Replicate(), Shard(-1)

    def _apply(self, module: nn.Cell, device_mesh: DeviceMesh) -> nn.Cell:
        if isinstance(module, Linear):
            self._distribute(module, "weight", device_mesh, Shard(1))
            self._distribute(module, "bias", device_mesh, Replicate())
        elif isinstance(module, Embedding):
            self._distribute(module, "weight", device_mesh, Shard(0))
            if module.padding_idx is not None:
                rows = module.weight.shape[0]
                place = module.padding_idx - device_mesh.get_local_rank() * rows
                module.padding_idx = place if 0 <= place < rows else None
        else:
            raise NotImplementedError("RowwiseParallel currently only support nn.Linear and nn.Embedding!")
        return super()._apply(module, device_mesh)

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given, group = _only(module, args, kwargs), mesh.get_group()
        if isinstance(module, Embedding):
            rows = module.weight.shape[0]
            places = _local(given, mesh, self.input_layouts[0], Replicate()) - group.rank() * rows
            inside = ops.logical_and(places >= 0, places < rows)
            found = call(ops.where(inside, places, ops.zeros_like(places)))
            found = found * inside.expand_dims(-1).astype(found.dtype)
            return self._leave(found, mesh, Partial())
        value = _local(given, mesh, self.input_layouts[0], Shard(-1))
        bias = module._params.get("bias")
        if bias is None:
            return self._leave(call(value), mesh, Partial())
        # the first rank adds the bias, so that it enters the sum once, and every rank gets its whole gradient
        share = copy_to_ranks(bias, group) * (1.0 if group.rank() == 0 else 0.0)
        with _Substituted(module, {"bias": share}):
            return self._leave(call(value), mesh, Partial())


class SequenceParallel(ParallelStyle):
    """A norm or dropout whose input is cut along the sequence; its parameters stay whole, their gradients are added."""

    def __init__(self, *, sequence_dim: int = 1, use_local_output: bool = False) -> None:
        self.sequence_sharding = (Shard(sequence_dim),)
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Cell, device_mesh: DeviceMesh) -> nn.Cell:
        for _, cell in module.cells_and_names():
            for name, parameter in cell._params.items():
                if parameter is not None:
                    cell._params[name] = distribute_parameter(parameter, device_mesh, Replicate(), None)
        return super()._apply(module, device_mesh)

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        layout = self.sequence_sharding[0]
        value = _local(args[0], mesh, layout, layout)
        with _Copied(module, mesh):
            output = call(value, *args[1:], **kwargs)
        return output if self.use_local_output else DTensor(output, mesh, [layout])

    def __repr__(self) -> str:
        dim = self.sequence_sharding[0].dim
        return f"SequenceParallel(sequence_dim={dim}, use_local_output={self.use_local_output})"


class _Substituted:
    """Other tensors stand in for some parameters of a module during a call."""

    def __init__(self, module: nn.Cell, values: Mapping[str, Tensor]) -> None:
        self.module, self.values = module, values

    def __enter__(self) -> None:
        self.before = {name: self.module._params[name] for name in self.values}
        self.module._params.update(self.values)

    def __exit__(self, *exception: object) -> None:
        self.module._params.update(self.before)


class _Copied:
    """During a call every parameter below a module is one whose gradient is added over the ranks."""

    def __init__(self, module: nn.Cell, mesh: DeviceMesh) -> None:
        group = mesh.get_group()
        self.parts = [
            _Substituted(cell, {n: copy_to_ranks(p, group) for n, p in cell._params.items() if p is not None})
            for _, cell in module.cells_and_names()
        ]

    def __enter__(self) -> None:
        for part in self.parts:
            part.__enter__()

    def __exit__(self, *exception: object) -> None:
        for part in self.parts:
            part.__exit__()


def _only(module: nn.Cell, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    if len(args) != 1 or kwargs:
        raise TypeError(f"{type(module).__name__} is parallel: call it with one positional argument")
    return args[0]
