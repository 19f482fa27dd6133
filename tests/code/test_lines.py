"""Line numbers that are worked out statement by statement are those of libcst."""

from __future__ import annotations

import dataclasses
import inspect
import tarfile
import textwrap
import typing
from types import ModuleType

import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider

from migrate.code.trees.lines import Lines
from migrate.code.trees.walk import walk

TEXT = """
# a comment

@decorate(1,
          key=2)
async def f(a,
            b=3) -> None:
    x = (a +
         b); y = 1
    if x:
        pass
    elif (y or
          x):
        return [
            i
            for i in y]
    else: z = 1; w = 2
    try:
        with open(
            x) as g, h: pass
    except (E,
            F) as e:
        raise
    else:
        del x
    finally:
        match x:
            case [1,
                  _]: pass
            case {"k": v} if (v and
                              x): y = v
    while x: break
    else:
        lambda: (
            0)
class C(A,
        metaclass=M): a: int = (
    1)
"""


def compare(text: str) -> int:
    """Asserts that both agree about every node; returns how many there are."""
    tree = cst.parse_module(text)
    expected = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
    lines = Lines(tree, text)
    nodes = list(walk(tree))
    assert [lines.of(node) for node in nodes] == [expected[node].start.line for node in nodes]
    return len(nodes)


@pytest.mark.parametrize("text", ["", "x = 1", TEXT, TEXT.replace("\n", "\r\n"), "\f\nx = 1\n\n\fy = (\n2)\n"])
def test_of_every_kind_of_statement(text: str) -> None:
    assert compare(text) > 0


@pytest.mark.parametrize("module", [dataclasses, typing, tarfile, textwrap])
def test_of_real_files(module: ModuleType) -> None:
    assert compare(inspect.getsource(module)) > 500


def test_a_text_that_only_libcst_reads_has_lines_too() -> None:
    assert compare("x = 1\ntype A = (\n    int)\n") > 3  # Python 3.12
