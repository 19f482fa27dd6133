"""`parallelize_module`: torch's tensor parallelism as a plan over an ordinary model."""

from __future__ import annotations

import warnings
from fnmatch import fnmatch

from mindspore import nn

from .device_mesh import DeviceMesh
from .tensor_parallel import ParallelStyle


def parallelize_module(
    module: nn.Cell,
    device_mesh: DeviceMesh | None = None,
    parallelize_plan: ParallelStyle | dict[str, ParallelStyle] | None = None,
    *,
    src_data_rank: int | None = 0,
) -> nn.Cell:
    """Apply a style to a module, or styles to its parts by dotted name or pattern such as `layers.*.norm`.

    Args:
        module: changed in place and returned.
        device_mesh: a mesh of one axis.
        parallelize_plan: None changes nothing.
        src_data_rank: place in the group whose values everyone takes a slice of; None: each rank slices its own.

    Raises:
        ValueError: no mesh, a mesh of several axes, or an axis of a parameter that cannot be divided evenly.
        NotImplementedError: a style that the kind of module does not allow.
    """
    if device_mesh is None or device_mesh.ndim != 1:
        raise ValueError("parallelize_module needs a mesh of one axis: init_device_mesh(...) or mesh['tp']")
    if parallelize_plan is None:
        warnings.warn("No parallelize_plan is provided, so this parallelize_module call will do nothing.", stacklevel=2)
        return module
    if isinstance(parallelize_plan, ParallelStyle):
        parallelize_plan.src_data_rank = src_data_rank
        return parallelize_plan._apply(module, device_mesh)
    if not isinstance(parallelize_plan, dict):
        raise TypeError(f"a plan is a style or a dict of styles, not a {type(parallelize_plan).__name__}")
    for path, style in parallelize_plan.items():
        if path == "":
            parallelize_module(module, device_mesh, style)
            continue
        first, _, rest = path.partition(".")
        matched = [cell for name, cell in module._cells.items() if cell is not None and fnmatch(name, first)]
        if not matched:
            warnings.warn(f"plan key {path!r}: no part of {type(module).__name__} is called {first!r}", stacklevel=2)
        for cell in matched:
            part = {rest: style} if rest else style
            parallelize_module(cell, device_mesh, part, src_data_rank=src_data_rank)
    return module
