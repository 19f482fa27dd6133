"""What the use of an object shows when nobody says what it is: some methods exist on tensors alone."""

from __future__ import annotations

import functools

import numpy as np

from mappings.api import ApiTable, known_names
from migrate.code.names.symbols import FunctionInfo, Symbols

_PLAIN = (str, bytes, int, float, complex, list, tuple, dict, set, np.ndarray, np.generic)
PLAIN_METHODS = frozenset(name for kind in _PLAIN for name in dir(kind))
"""Of texts, numbers, containers and arrays."""
_ELSEWHERE = frozenset(
    {"apply_", "backward", "data", "fill", "grad", "hist", "select", "scatter", "type_as", "where", "index", "values"}
)
"""Tensor methods whose names plots, tables and tapes of other libraries use as well."""
_CONTAINER_METHODS = frozenset({"items", "keys", "append", "get", "update", "extend", "pop"})


@functools.cache
def _tensor_only(table: ApiTable) -> frozenset[str]:
    methods = {name.rpartition(".")[2] for name in table.names() if name.startswith("torch.Tensor.")}
    modules = {name.rpartition(".")[2] for name in table.names() if name.startswith("torch.nn.Module.")}
    in_place = {f"{name}_" for name in methods if not name.endswith("_")}
    return frozenset((methods | in_place) - modules - PLAIN_METHODS - _ELSEWHERE)


def only_tensors_have(method: str, symbols: Symbols) -> bool:
    """Whether of everything a program usually handles, its own classes included, only tensors have the method."""
    return method in _tensor_only(symbols.table) and method not in symbols.method_names


def used_as_tensor(name: str, function: FunctionInfo, symbols: Symbols) -> bool:
    """Whether a function calls on a name a method that only tensors have; the caller asks about its parameters."""
    methods = function.methods_called.get(name, frozenset())
    return not methods & _CONTAINER_METHODS and any(only_tensors_have(method, symbols) for method in methods)


def used_as_other(name: str, function: FunctionInfo) -> bool:
    """Whether a function takes an attribute of a name that no tensor has: `batch.input_ids`, `cache.seen()`."""
    read = function.attributes_read.get(name, frozenset()) | function.methods_called.get(name, frozenset())
    return any(not a.startswith("_") and f"torch.Tensor.{a}" not in known_names() for a in read)


def used_as_container(name: str, function: FunctionInfo) -> bool:
    """Whether a function calls on a name a method of dicts and lists that tensors lack."""
    return bool(function.methods_called.get(name, frozenset()) & _CONTAINER_METHODS)
