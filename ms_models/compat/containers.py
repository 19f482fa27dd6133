"""Containers of modules: ModuleList, ModuleDict, Sequential."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mindspore import nn

from .module import Module


class _Ordered(Module):
    """What ModuleList and Sequential share: children in order, reached by their place."""

    def __len__(self) -> int:
        return len(self._cells)

    def __iter__(self) -> Iterator[nn.Cell]:
        return iter(self._cells.values())

    def _name(self, index: int) -> str:
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range")
        return list(self._cells)[index]

    def __setitem__(self, index: int, module: nn.Cell) -> None:
        setattr(self, self._name(index), module)

    def __delitem__(self, index: int | slice) -> None:
        names = list(self._cells)
        for name in names[index] if isinstance(index, slice) else [self._name(index)]:
            del self._cells[name]
        self._renumber(list(self._cells.values()))

    def _renumber(self, modules: list[nn.Cell]) -> None:
        """Call the children `0`, `1`, ..., as torch does when one is put in or taken out."""
        self._cells.clear()
        for number, module in enumerate(modules):
            setattr(self, str(number), module)

    def append(self, module: nn.Cell) -> Any:
        """Add at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[nn.Cell]) -> Any:
        """Add several at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: nn.Cell) -> Any:
        """Add before a position."""
        modules = list(self._cells.values())
        modules.insert(index, module)
        self._renumber(modules)
        return self

    def pop(self, index: int) -> nn.Cell:
        """Remove and return; the ones after it move up."""
        module = self._cells[self._name(index)]
        del self[index]
        return module

    def __iadd__(self, modules: Iterable[nn.Cell]) -> Any:
        return self.extend(modules)


class ModuleList(_Ordered):
    """A list whose items are registered as children `0`, `1`, ...; unlike CellList it may hold other containers."""

    __cell_as_list__ = True  # lets `ms.jit` iterate over it as over a CellList

    def __init__(self, modules: Iterable[nn.Cell] | None = None) -> None:
        super().__init__()
        if modules is not None:
            self.extend(modules)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self._cells.values())[index])
        return self._cells[self._name(index)]

    def __add__(self, other: Iterable[nn.Cell]) -> ModuleList:
        return ModuleList([*self, *other])


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


class Sequential(_Ordered):
    """Calls its children one after the other."""

    def __init__(self, *args: Any) -> None:
        super().__init__()
        self._layers: tuple[nn.Cell, ...] = ()
        named = args[0].items() if len(args) == 1 and isinstance(args[0], OrderedDict) else enumerate(args)
        for name, module in named:
            self.add_module(str(name), module)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if isinstance(value, nn.Cell):
            self._collect()

    def __delattr__(self, name: str) -> None:
        super().__delattr__(name)
        self._collect()

    def __delitem__(self, index: int | slice) -> None:
        super().__delitem__(index)
        self._collect()

    def _collect(self) -> None:
        # `ms.jit` can iterate over a tuple of cells but not over `_cells`
        self._layers = tuple(self._cells.values())

    def construct(self, input: Any) -> Any:
        for module in self._layers:
            input = module(input)
        return input

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(OrderedDict(list(self._cells.items())[index]))
        return self._cells[self._name(index)]

    def __add__(self, other: Sequential) -> Sequential:
        return Sequential(*self, *other)

    def __mul__(self, times: int) -> Sequential:
        return Sequential(*(list(self) * times))
