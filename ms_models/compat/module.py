"""`Module`: a Cell with the methods of `torch.nn.Module` that Cell lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mindspore as ms
from mindspore import Parameter, Tensor, nn


def _copied(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """`copy.deepcopy` of a tensor: MindSpore's own shares the memory, so the copy changes with the original."""
    return tensor.copy()


Tensor.__deepcopy__ = _copied
Tensor.grad = None  # torch's tensors have the attribute before a gradient is there; MindSpore's do not


def _train_children(cell: nn.Cell, mode: bool) -> None:
    """Calls the `train` of everything below, as torch does: a class may have made it its own."""
    for child in cell.cells():
        if isinstance(child, Module):
            child.train(mode)
        else:
            _train_children(child, mode)


def Buffer(data: Tensor, persistent: bool = True) -> Tensor:
    """A tensor that becomes a buffer of the module it is assigned to."""
    buffer = data.copy()
    buffer.persistent_buffer = persistent
    return buffer


class Module(nn.Cell):
    """Base class of converted modules.

    Differences from Cell: it starts in training mode, buffers can be reassigned, and parameters, children and modes are
    reached by torch's names. `state_dict`, `load_state_dict`, `register_buffer`, `apply` and the forward hooks are
    Cell's own.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.set_train(True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """`construct` by torch's name, for callers that do not know that the object is a module; hooks do not run."""
        return self.construct(*args, **kwargs)

    def __setattr__(self, name: str, value: Any) -> None:
        buffers = self.__dict__.get("_buffers")
        if buffers is not None and name in buffers and isinstance(value, Tensor) and not isinstance(value, Parameter):
            buffers[name] = value  # Cell refuses to replace a buffer, torch does it
        elif buffers is not None and isinstance(value, Tensor) and hasattr(value, "persistent_buffer"):
            self.__dict__.pop(name, None)
            self.register_buffer(name, value, value.persistent_buffer)
        else:
            super().__setattr__(name, value)

    # -- parameters
    def update_parameters_name(self, prefix: str = "", recurse: bool = True) -> None:
        """Put a prefix before the names of the parameters; a child of torch may be called `2->1`, one of Cell not."""
        for name, parameter in self.parameters_and_names(expand=recurse):
            if prefix:
                parameter.is_init = False
            parameter.name = prefix + name

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Pairs of dotted name and parameter; a shared parameter comes once unless `remove_duplicate` is off."""
        seen: set[int] = set()
        cells = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, cell in cells:
            for name, parameter in cell._params.items():
                if parameter is None or (remove_duplicate and id(parameter) in seen):
                    continue
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters in the order of their registration, shared ones once."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def get_parameter(self, target: str) -> Parameter:
        """Parameter by its dotted name.

        Raises:
            AttributeError: there is none.
        """
        path, _, name = target.rpartition(".")
        parameter = self.get_submodule(path)._params.get(name)
        if parameter is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return parameter

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or reserve its name with None."""
        if param is None:
            self.insert_param_to_cell(name, None)
        else:
            setattr(self, name, param)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Freeze or release every parameter."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that `backward.backward_of` left in `.grad`, or set them to zero."""
        for parameter in self.parameters():
            if getattr(parameter, "grad", None) is not None:
                parameter.grad = None if set_to_none else ms.ops.zeros_like(parameter.grad)

    # -- children
    def named_modules(
        self, memo: set[nn.Cell] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Cell]]:
        """Pairs of dotted name and cell, this one first."""
        yield from _named_cells(self, prefix, set() if memo is None else memo, remove_duplicate)

    def modules(self) -> Iterator[nn.Cell]:
        """This cell and all below it."""
        for _, cell in self.named_modules():
            yield cell

    def named_children(self) -> Iterator[tuple[str, nn.Cell]]:
        """Pairs of name and direct child."""
        seen: set[int] = set()
        for name, cell in self._cells.items():
            if cell is not None and id(cell) not in seen:
                seen.add(id(cell))
                yield name, cell

    def children(self) -> Iterator[nn.Cell]:
        """Direct children."""
        for _, cell in self.named_children():
            yield cell

    def add_module(self, name: str, module: nn.Cell | None) -> None:
        """Add a child under a name."""
        if module is None:
            self._cells[name] = None
        else:
            setattr(self, name, module)

    def register_module(self, name: str, module: nn.Cell | None) -> None:
        """Same as `add_module`."""
        self.add_module(name, module)

    def get_submodule(self, target: str) -> nn.Cell:
        """Cell by its dotted name, this one for an empty name.

        Raises:
            AttributeError: there is none.
        """
        cell: nn.Cell = self
        for name in filter(None, target.split(".")):
            child = cell._cells.get(name)
            if child is None:
                raise AttributeError(f"{type(cell).__name__} has no child {name!r} (of {target!r})")
            cell = child
        return cell

    def set_submodule(self, target: str, module: nn.Cell, strict: bool = False) -> None:
        """Put a cell in the place of the one with a dotted name; its parent must exist.

        Raises:
            AttributeError: a cell on the way is missing or, with `strict`, the one to be replaced.
        """
        if not target:
            raise ValueError("Cannot set the submodule without a target name!")
        path, _, name = target.rpartition(".")
        parent = self.get_submodule(path)
        if strict:
            self.get_submodule(target)
        setattr(parent, name, module)

    # -- buffers
    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Pairs of dotted name and buffer; a shared buffer comes once unless `remove_duplicate` is off."""
        seen: set[int] = set()
        cells = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, cell in cells:
            for name, buffer in cell._buffers.items():
                if buffer is None or (remove_duplicate and id(buffer) in seen):
                    continue
                seen.add(id(buffer))
                yield f"{path}.{name}" if path else name, buffer

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers in the order of their registration, shared ones once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # -- modes and data types
    def train(self, mode: bool = True) -> Module:
        """Training mode (dropout on) or evaluation mode for this cell and all below it."""
        if not isinstance(mode, bool):
            raise ValueError("training mode is expected to be boolean")
        self.set_train(mode)
        _train_children(self, mode)
        return self

    def eval(self) -> Module:
        """Evaluation mode."""
        return self.train(False)

    def float(self) -> Module:
        """Floating point parameters and buffers to float32."""
        return self.to(ms.float32)

    def double(self) -> Module:
        """Floating point parameters and buffers to float64."""
        return self.to(ms.float64)

    def half(self) -> Module:
        """Floating point parameters and buffers to float16."""
        return self.to(ms.float16)

    def bfloat16(self) -> Module:
        """Floating point parameters and buffers to bfloat16."""
        return self.to(ms.bfloat16)

    def apply(self, fn: Callable[[nn.Cell], Any]) -> Module:
        """Call `fn` on every cell, children first."""
        super().apply(fn)
        return self


def _named_cells(cell: nn.Cell, prefix: str, memo: set[nn.Cell], once: bool) -> Iterator[tuple[str, nn.Cell]]:
    if once:
        if cell in memo:
            return
        memo.add(cell)
    yield prefix, cell
    for name, child in cell._cells.items():
        if child is not None:
            yield from _named_cells(child, f"{prefix}.{name}" if prefix else name, memo, once)
