"""`weights_table.json`: which tensors the modules of a converted repository hold, and what becomes of each.

The code converter writes it, the weight converter reads it. It speaks of a class in the words of its constructor's
arguments, since sizes and numbers of layers come from a configuration; of modules that were built it gives the numbers.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.safetensors import DTYPE_BITS
from mappings.formats.table_values import every, lacking, value_of

FILE = "weights_table.json"
FORMAT = "msmigrate-weights-table-2"


@dataclass(frozen=True)
class Tensor:
    """A parameter or buffer of a module."""

    name: str
    """In PyTorch's state dict; `{i}` is an index of `Class.repeated`."""
    converted: str
    """In the state dict of the converted module."""
    kind: str
    """`parameter` or `buffer`."""
    persistent: bool
    """Whether it belongs to the state dict; buffers that do not are made by the constructor on both sides."""
    shape: tuple[str, ...] | None
    """In PyTorch, as expressions over the arguments; None: the constructor does not say."""
    dtype: str | None
    """As constructed, in safetensors' words; a checkpoint may hold another floating type. None: not known."""
    layout: str
    """What the axes are, first to last; `as torch` where the code does not say."""
    permutation: tuple[int, ...] | None
    """Axes of the source in the order of the converted tensor; None: the bytes stay as they are."""
    when: tuple[str, ...]
    """Conditions over the arguments, all of which hold where it exists."""
    source: str
    """`file:line`."""


@dataclass(frozen=True)
class Tie:
    """Two names of one tensor; a checkpoint may hold either or both."""

    name: str
    same_as: str
    when: tuple[str, ...]


@dataclass(frozen=True)
class NotKnown:
    """Something that the source does not say."""

    source: str
    """`file:line`."""
    what: str


@dataclass(frozen=True)
class Argument:
    """A parameter of a constructor."""

    name: str
    default: str | None
    """As an expression; None: it has to be given."""


@dataclass(frozen=True)
class Expected:
    """A tensor of the state dict of one module, all in numbers."""

    name: str
    converted: str
    shape: tuple[int, ...] | None
    dtype: str | None
    permutation: tuple[int, ...] | None
    same_as: str | None
    """Name of the tensor that it is tied to."""


@dataclass(frozen=True)
class Class:
    """What objects of a module class hold."""

    name: str
    """`module.Class`."""
    file: str
    line: int
    arguments: tuple[Argument, ...]
    tensors: tuple[Tensor, ...]
    repeated: Mapping[str, str]
    """Index in names -> how many values it has, from 0; an expression over the arguments and earlier indices."""
    tied: tuple[Tie, ...]
    not_known: tuple[NotKnown, ...]
    """Empty: `tensors` is complete."""

    def state(self, arguments: Mapping[str, Any]) -> dict[str, Expected]:
        """The state dict of an object, by PyTorch's names.

        Args:
            arguments: of the constructor, by name; a configuration may be a mapping.

        Raises:
            UserError: the class is not known to the end, an argument is missing or unknown, or an expression needs
                more than arithmetic.
        """
        if self.not_known:
            first = self.not_known[0]
            raise UserError(f"{self.name}: {first.what} ({first.source}); use the names of a module that was built")
        values = self._values(arguments)
        try:
            return self._state(values)
        except UserError as error:
            # Of several that are not given, the first alone would be told.
            if more := lacking(self._expressions(), {**values, **self.repeated}):
                raise UserError(f"{error}; --arguments give no {', '.join(more)}") from error
            raise

    def _expressions(self) -> list[str]:
        found = [*self.repeated.values(), *(text for tie in self.tied for text in tie.when)]
        return found + [text for tensor in self.tensors for text in (*tensor.when, *(tensor.shape or ()))]

    def _state(self, values: Mapping[str, Any]) -> dict[str, Expected]:
        ties = {
            name: same
            for tie in self.tied
            for (name, same), _ in every((tie.name, tie.same_as), tie.when, self.repeated, values)
        }
        found: dict[str, Expected] = {}
        for tensor in self.tensors:
            names = (tensor.name, tensor.converted)
            for (name, converted), here in every(names, tensor.when, self.repeated, values):
                if tensor.persistent:
                    sizes = tensor.shape
                    shape = None if sizes is None else tuple(int(value_of(size, here)) for size in sizes)
                    found[name] = Expected(name, converted, shape, tensor.dtype, tensor.permutation, ties.get(name))
        return found

    def _values(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        known = {argument.name for argument in self.arguments}
        if unknown := sorted(set(arguments) - known):
            raise UserError(f"{self.name}: no argument {unknown[0]!r}; it has {', '.join(sorted(known)) or 'none'}")
        values = dict(arguments)
        for argument in self.arguments:
            if argument.name not in values and argument.default is not None:
                try:
                    values[argument.name] = value_of(argument.default, {})
                except UserError:
                    continue  # no literal: whatever needs it says so
        return values


@dataclass(frozen=True)
class Module:
    """A module that was built in PyTorch."""

    name: str
    module: str
    """What was imported."""
    build: str
    """The expression that built it."""
    tensors: tuple[Expected, ...]

    def state(self) -> dict[str, Expected]:
        """Its state dict, by PyTorch's names."""
        return {tensor.name: tensor for tensor in self.tensors}


@dataclass(frozen=True)
class Wrapper:
    """A wrapper of modules that the repository uses; names in a checkpoint of a wrapped module carry its component."""

    name: str
    """Qualified name in torch."""
    component: str
    """What it puts before the names of the wrapped module, without the dot."""
    kept: bool
    """Whether the converted wrapper puts it there too."""
    sources: tuple[str, ...]
    """`file:line`."""


@dataclass(frozen=True)
class WeightsTable:
    """The whole table."""

    classes: tuple[Class, ...]
    modules: tuple[Module, ...]
    wrappers: tuple[Wrapper, ...]

    def of_class(self, name: str) -> Class:
        """A class by its name.

        Raises:
            UserError: it is not in the table.
        """
        return _named(name, self.classes, "class")

    def of_module(self, name: str) -> Module:
        """A module that was built, by the name of its recipe.

        Raises:
            UserError: it is not in the table.
        """
        return _named(name, self.modules, "built module")

    def unwrapped(self, names: Collection[str]) -> dict[str, str]:
        """Names of a checkpoint -> names without the components of the wrappers that the repository uses.

        A component is taken off the front when every name begins with it, so that a module's own attribute of that
        name stays; one that is not kept in the converted code is taken out at any place.

        Raises:
            UserError: two names become one.
        """
        result = {name: name for name in names}
        removed = {wrapper.component for wrapper in self.wrappers if not wrapper.kept}
        for name in result:
            result[name] = ".".join(part for part in name.split(".") if part not in removed)
        for component in {wrapper.component for wrapper in self.wrappers if wrapper.kept}:
            if result and all(name.startswith(f"{component}.") for name in result.values()):
                result = {name: short.removeprefix(f"{component}.") for name, short in result.items()}
        back: dict[str, str] = {}
        for name, short in result.items():
            if back.setdefault(short, name) != name:
                raise UserError(f"{name} and {back[short]}: both are {short} without their wrappers")
        return result

    def write(self) -> str:
        """Text of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def read(cls, path: Path) -> WeightsTable:
        """Reads a file.

        Raises:
            UserError: no such file, or no table of this version, or a malformed one.
        """
        body = read_json(path)
        if body.get("format") != FORMAT:
            raise UserError(f"{path}: format is not {FORMAT!r}; convert the repository again")
        try:
            table = cls(
                tuple(_class(entry) for entry in body["classes"]),
                tuple(
                    Module(**{**entry, "tensors": tuple(_expected(t) for t in entry["tensors"])})
                    for entry in body["modules"]
                ),
                tuple(Wrapper(**{**entry, "sources": tuple(entry["sources"])}) for entry in body["wrappers"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{path}: malformed ({error!r})") from error
        return table


def _class(entry: Mapping[str, Any]) -> Class:
    return Class(
        name=entry["name"],
        file=entry["file"],
        line=entry["line"],
        arguments=tuple(Argument(**argument) for argument in entry["arguments"]),
        tensors=tuple(_tensor(tensor) for tensor in entry["tensors"]),
        repeated={index: str(count) for index, count in entry["repeated"].items()},
        tied=tuple(Tie(tie["name"], tie["same_as"], tuple(tie["when"])) for tie in entry["tied"]),
        not_known=tuple(NotKnown(**item) for item in entry["not_known"]),
    )


def _tensor(entry: Mapping[str, Any]) -> Tensor:
    lists = {key: None if entry[key] is None else tuple(entry[key]) for key in ("shape", "permutation", "when")}
    tensor = Tensor(**{**entry, **lists})
    if tensor.kind not in ("parameter", "buffer") or not isinstance(tensor.persistent, bool):
        raise ValueError(f"{tensor.name}: kind {tensor.kind!r}, persistent {tensor.persistent!r}")
    if tensor.shape is not None and not all(isinstance(size, str) for size in tensor.shape):
        raise ValueError(f"{tensor.name}: shape {tensor.shape!r}")
    _check(tensor.name, tensor.dtype, tensor.permutation, tensor.shape)
    return tensor


def _expected(entry: Mapping[str, Any]) -> Expected:
    lists = {key: None if entry[key] is None else tuple(entry[key]) for key in ("shape", "permutation")}
    tensor = Expected(**{**entry, **lists})
    if tensor.shape is not None and not all(type(size) is int and size >= 0 for size in tensor.shape):
        raise ValueError(f"{tensor.name}: shape {tensor.shape!r}")
    _check(tensor.name, tensor.dtype, tensor.permutation, tensor.shape)
    return tensor


def _check(
    name: str, dtype: str | None, permutation: tuple[int, ...] | None, shape: Sequence[str] | Sequence[int] | None
) -> None:
    if dtype is not None and dtype not in DTYPE_BITS:
        raise ValueError(f"{name}: dtype {dtype!r}")
    if permutation is not None:
        axes = len(permutation) if shape is None else len(shape)
        if sorted(permutation) != list(range(axes)):
            raise ValueError(f"{name}: permutation {list(permutation)} of {axes} axes")


Entry = TypeVar("Entry", Class, Module)


def _named(name: str, entries: Sequence[Entry], kind: str) -> Entry:
    found = next((entry for entry in entries if entry.name == name), None)
    if found is None:
        raise UserError(f"{name}: no {kind} of the table; it has {', '.join(e.name for e in entries) or 'none'}")
    return found
