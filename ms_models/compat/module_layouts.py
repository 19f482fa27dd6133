"""The styles of torch's tensor parallelism that only move the inputs and outputs of a module between layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import nn

from .device_mesh import DeviceMesh
from .dtensor import DTensor, Placement
from .tensor_parallel import ParallelStyle, is_distributed

Layouts = Placement | tuple[Placement | None, ...] | None


class PrepareModuleInput(ParallelStyle):
    """Takes the inputs of a module to lie in `input_layouts` and brings them into `desired_input_layouts`."""

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_output: bool = False,
    ) -> None:
        self.input_layouts, self.desired_input_layouts = _several(input_layouts), _several(desired_input_layouts)
        self.input_kwarg_layouts = input_kwarg_layouts or {}
        self.desired_input_kwarg_layouts = desired_input_kwarg_layouts or {}
        self.use_local_output = use_local_output
        if self.input_layouts is not None:
            _check_lengths("input", self.input_layouts, self.desired_input_layouts)
        if len(self.input_kwarg_layouts) != len(self.desired_input_kwarg_layouts):
            raise AssertionError("input_kwarg_layouts and desired_input_kwarg_layouts should have same length!")

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self.input_layouts is not None:
            args = _prepared(
                "inputs", args, self.input_layouts, self.desired_input_layouts, mesh, self.use_local_output
            )
        for name, layout in self.input_kwarg_layouts.items():
            if name in kwargs:
                wanted = self.desired_input_kwarg_layouts.get(name)
                kwargs[name] = _moved(kwargs[name], mesh, layout, wanted, self.use_local_output)
        return call(*args, **kwargs)


class PrepareModuleOutput(ParallelStyle):
    """Takes the outputs of a module to lie in `output_layouts` and brings them into `desired_output_layouts`."""

    def __init__(
        self, *, output_layouts: Layouts, desired_output_layouts: Layouts, use_local_output: bool = True
    ) -> None:
        self.output_layouts, self.desired_output_layouts = _several(output_layouts), _several(desired_output_layouts)
        self.use_local_output = use_local_output
        _check_lengths("output", self.output_layouts, self.desired_output_layouts)

    def _run(self, module: nn.Cell, mesh: DeviceMesh, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        given = call(*args, **kwargs)
        outputs = given if isinstance(given, tuple) else (given,)
        layouts, wanted = self.output_layouts, self.desired_output_layouts
        made = _prepared("outputs", outputs, layouts, wanted, mesh, self.use_local_output)
        return made[0] if len(made) == 1 else made


class PrepareModuleInputOutput(ParallelStyle):
    """`PrepareModuleInput` and `PrepareModuleOutput` in one."""

    def __init__(
        self,
        *,
        input_layouts: Layouts = None,
        desired_input_layouts: Layouts = None,
        input_kwarg_layouts: dict[str, Placement] | None = None,
        desired_input_kwarg_layouts: dict[str, Placement] | None = None,
        use_local_input: bool = False,
        output_layouts: Layouts,
        desired_output_layouts: Layouts,
        use_local_output: bool = True,
    ) -> None:
        self.prepare_module_input = PrepareModuleInput(
            input_layouts=input_layouts,
            desired_input_layouts=desired_input_layouts,
            input_kwarg_layouts=input_kwarg_layouts,
            desired_input_kwarg_layouts=desired_input_kwarg_layouts,
            use_local_output=use_local_input,
        )
        self.prepare_module_output = PrepareModuleOutput(
            output_layouts=output_layouts,
            desired_output_layouts=desired_output_layouts,
            use_local_output=use_local_output,
        )

    def _apply(self, module: nn.Cell, device_mesh: DeviceMesh) -> nn.Cell:
        self.prepare_module_input._apply(module, device_mesh)
        return self.prepare_module_output._apply(module, device_mesh)


def _several(layouts: Layouts) -> tuple[Placement | None, ...] | None:
    return (layouts,) if isinstance(layouts, Placement) else layouts


def _check_lengths(kind: str, layouts: Any, wanted: Any) -> None:
    if layouts is None or wanted is None:
        raise AssertionError(f"desired module {kind}s should not be None!")
    if len(layouts) != len(wanted):
        raise AssertionError(f"{kind}_layouts and desired_{kind}_layouts should have same length!")


def _prepared(kind: str, values: tuple[Any, ...], layouts: Any, wanted: Any, mesh: DeviceMesh, local: bool) -> Any:
    if len(values) != len(layouts):
        raise ValueError(f"module {kind} and {kind[:-1]}_layouts should have same length!")
    return tuple(_moved(v, mesh, a, b, local) for v, a, b in zip(values, layouts, wanted, strict=True))


def _moved(value: Any, mesh: DeviceMesh, layout: Placement | None, wanted: Placement | None, local: bool) -> Any:
    if layout is None:
        return value
    given = value if is_distributed(value) else DTensor.from_local(value, mesh, [layout])
    made = given if wanted is None or wanted == layout else given.redistribute(placements=[wanted])
    return made.to_local() if local else made
