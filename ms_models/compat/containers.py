"""Containers of modules: ModuleList, ModuleDict, Sequential."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindspore import nn

from .module import Module


class ModuleList(Module):
    """A list whose items are registered as children `0`, `1`, ...; unlike CellList it may hold other containers."""

    __cell_as_list__ = True  # lets `ms.jit` iterate over it as over a CellList

    def __init__(self, modules: Iterable[nn.Cell] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[nn.Cell]:
        return iter(self._cells.values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._cells.values())[index])
        return self._cells[self._key(index)]

    def __setitem__(self, index: int, module: nn.Cell) -> None:
        key = self._key(index)
        self._cells[key] = module
        module.update_parameters_name(f"{key}.")

    def _key(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return str(index % len(self))

    def append(self, module: nn.Cell) -> ModuleList:
        """Add at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[nn.Cell]) -> ModuleList:
        """Add several at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: nn.Cell) -> None:
        """Add before a position."""
        modules = list(self._cells.values())
        modules.insert(index, module)
        self._cells.clear()
        self._cells.update((str(i), m) for i, m in enumerate(modules))
        module.update_parameters_name(f"{modules.index(module)}.")


class ModuleDict(Module):
    """A dictionary whose values are registered as children and are also attributes."""

    def __init__(self, modules: Mapping[str, nn.Cell] | Iterable[tuple[str, nn.Cell]] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.update(modules)

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __contains__(self, key: object) -> bool:
        return key in self._cells

    def __getitem__(self, key: str) -> nn.Cell:
        return self._cells[key]

    def __setitem__(self, key: str, module: nn.Cell) -> None:
        self.add_module(key, module)

    def __delitem__(self, key: str) -> None:
        del self._cells[key]

    def update(self, modules: Mapping[str, nn.Cell] | Iterable[tuple[str, nn.Cell]]) -> None:
        """Add or replace several."""
        for key, module in dict(modules).items():
            self[key] = module

    def pop(self, key: str) -> nn.Cell:
        """Remove and return."""
        return self._cells.pop(key)

    def clear(self) -> None:
        """Remove all."""
        self._cells.clear()

    def keys(self) -> Iterable[str]:
        """Names of the modules."""
        return self._cells.keys()

    def values(self) -> Iterable[nn.Cell]:
        """The modules."""
        return self._cells.values()

    def items(self) -> Iterable[tuple[str, nn.Cell]]:
        """Pairs of name and module."""
        return self._cells.items()


class Sequential(Module):
    """Calls its children one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), module)
        self._layers = tuple(self._cells.values())

    def construct(self, input: Any) -> Any:
        for module in self._layers:  # `ms.jit` can iterate over a tuple of cells but not over `_cells`
            input = module(input)
        return input

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[nn.Cell]:
        return iter(self._layers)

    def __getitem__(self, index: int | slice) -> Any:
        pairs = list(self._cells.items())[index]
        return Sequential(OrderedDict(pairs)) if isinstance(index, slice) else pairs[1]

    def __setitem__(self, index: int, module: nn.Cell) -> None:
        name = list(self._cells)[index]
        self._cells[name] = module
        module.update_parameters_name(f"{name}.")
        self._layers = tuple(self._cells.values())

    def append(self, module: nn.Cell) -> Sequential:
        """Add at the end."""
        self.add_module(str(len(self)), module)
        self._layers = tuple(self._cells.values())
        return self
