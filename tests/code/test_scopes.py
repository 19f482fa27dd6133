"""What a name is bound to, against libcst's scope analysis."""

from __future__ import annotations

import argparse
import ast
import inspect
import logging
import tarfile
import typing
from types import ModuleType

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, QualifiedName, QualifiedNameSource, ScopeProvider

from migrate.code.names.scopes import Scopes, is_builtin
from migrate.code.trees.walk import walk

TEXT = """
import torch, torch.nn as nn, torch.nn.functional
from .a import b as c, d
from ..e import *
try:
    from f import g
except ImportError:
    g = None
x, (y, *z), w[0], v.u = 1, 2, 3, 4

@c(x)
def outer(p, q: d = x, *r, s=nn, **t) -> g:
    global made, x
    made = p
    x += 1
    late = 1
    def inner():
        nonlocal late, q
        late = q = len
        import torch.optim as q2
        return late, made, x, q2.Adam, inner
    later = [i for i in p for j in i]
    return lambda k=later, *n: (k, n, torch, {i: nn for i in s})

class C(d.Base, metaclass=nn.Meta):
    x = print
    y = [x for x in x]
    z = x
    from h import C2
    def method(self, x=x):
        return x, y, C, z, C2
    class D:
        u = x
        def f(self): return u

def local():
    class E:
        t = 1
        s = t
    with open(E) as fh, fh: pass
    for a, b[fh] in E: del a
    try: pass
    except (C, E) as error: raise error
    annotated: int
    annotated2: "str" = annotated
    return f"{fh!r:{a}} {unknown}"
"""


def of_libcst(found: set[QualifiedName]) -> tuple[str, list[str]]:
    imported = sorted(q.name for q in found if q.source is QualifiedNameSource.IMPORT)
    if imported:
        return "imported", imported
    if not found:
        return "unknown", []
    if any(q.source is QualifiedNameSource.BUILTIN for q in found):
        return "builtin", []
    names = sorted({q.name for q in found})
    return ("inside", []) if any(mark in name for name in names for mark in "<") else ("named", names)


def of_ours(scopes: Scopes, node: cst.Name) -> tuple[str, list[str]]:
    scope = scopes.of(node)
    assert scope is not None
    owner = scope.owner(node.value)
    if owner is None:
        return ("builtin", []) if is_builtin(node.value) else ("unknown", [])
    if node.value in owner.imports and not scopes.is_target(node):
        return "imported", sorted(owner.imports[node.value])
    if owner.path is None:
        return "inside", []
    return "named", [f"{owner.path}.{node.value}".lstrip(".")]


def compare(text: str) -> int:
    """Asserts that both agree about every name; returns how many there are."""
    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    theirs = wrapper.resolve(ScopeProvider)
    ours = Scopes(wrapper.module)
    nodes = list(walk(wrapper.module))
    # libcst takes the name in `def f` for a use of everything called f.
    definitions = {node.name for node in nodes if isinstance(node, cst.FunctionDef | cst.ClassDef)}
    names = [node for node in nodes if isinstance(node, cst.Name) and ours.of(node) is not None]
    for node in names:
        if node in definitions:
            assert ours.is_target(node)
            continue
        scope = theirs[node]
        assert scope is not None
        assert (node.value, of_ours(ours, node)) == (node.value, of_libcst(scope.get_qualified_names_for(node)))
    return len(names)


def test_of_every_kind_of_binding() -> None:
    assert compare(TEXT) > 90


@pytest.mark.parametrize("module", [argparse, ast, logging, tarfile, typing])
def test_of_real_files(module: ModuleType) -> None:
    assert compare(inspect.getsource(module)) > 500


def test_names_that_are_no_variables_have_no_scope() -> None:
    tree = cst.parse_module("import a\na.b(c=1)")
    scopes = Scopes(tree)
    found = {node.value for node in walk(tree) if isinstance(node, cst.Name) and scopes.of(node) is not None}
    assert found == {"a"}


def test_patterns_bind() -> None:
    text = """
def f(e):
    match e:
        case C(x=a) as b: a, b
        case {"k": c, **d}: c, d
        case [e, *g] | (e, g): e, g
    [j for i in e for j in i if j and (last := j)], last
"""
    tree = cst.parse_module(text)
    scopes = Scopes(tree)
    found = [(node.value, scopes.of(node)) for node in walk(tree) if isinstance(node, cst.Name)]
    unknown = {name for name, scope in found if scope is not None and scope.owner(name) is None}
    assert unknown == {"C"}  # libcst does not know the others either
    assert {"a", "b", "c", "d", "e", "g"} <= {name for name, scope in found if scope is not None}


def test_type_parameters_belong_to_their_function() -> None:
    tree = cst.parse_module("def f[T: int](x: T) -> T: return T\ntype A[S] = list[S]\nT, S")
    scopes = Scopes(tree)
    owners = {}
    for node in walk(tree):
        if isinstance(node, cst.Name) and node.value in "TS" and (scope := scopes.of(node)) is not None:
            owner = scope.owner(node.value)
            owners.setdefault(node.value, []).append(owner.kind if owner else None)
    assert owners == {"T": ["function"] * 4 + [None], "S": ["function"] * 2 + [None]}
