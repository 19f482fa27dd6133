"""What the use of an object shows when nobody says what it is: some methods exist on tensors alone."""

from __future__ import annotations

import functools

import libcst as cst
import numpy as np

from mappings.api import ApiTable
from migrate.code.symbols import Symbols
from migrate.code.walk import walk

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


def used_as_tensors(function: cst.FunctionDef, symbols: Symbols) -> frozenset[str]:
    """Names on which a function calls a method that only tensors have; the caller asks about its parameters."""
    return frozenset(
        name
        for name, methods in _methods_called(function).items()
        if not methods & _CONTAINER_METHODS and any(only_tensors_have(method, symbols) for method in methods)
    )


def used_as_container(function: cst.FunctionDef) -> frozenset[str]:
    """Names on which a function calls a method of dicts and lists that tensors lack."""
    return frozenset(name for name, methods in _methods_called(function).items() if methods & _CONTAINER_METHODS)


def _methods_called(function: cst.FunctionDef) -> dict[str, set[str]]:
    """Method names called directly on plain names, functions inside left out."""
    called: dict[str, set[str]] = {}
    for node in walk(function.body, skip=(cst.FunctionDef,)):
        function_name = node.func if isinstance(node, cst.Call) else None
        if isinstance(function_name, cst.Attribute) and isinstance(function_name.value, cst.Name):
            called.setdefault(function_name.value.value, set()).add(function_name.attr.value)
    return called
