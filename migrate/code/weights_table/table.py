"""The table of weights of a repository (`mappings.formats.weights_table`), written by the code converter.

Names are equal on both sides and layouts are kept by design, so a state dict goes over name by name. The table says
which names there are, in the words of the constructors, and with `--modules` those of the modules that were built.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from mappings.formats.weights_table import Argument, Class, Expected, Module, WeightsTable, Wrapper
from migrate.code.analysis import Analysis
from migrate.code.context import code_of
from migrate.code.trees.walk import walk
from migrate.code.verify.modules import Outcome
from migrate.code.weights_table.constructor import Constructor
from migrate.code.weights_table.contents import Contents
from migrate.code.weights_table.dtypes import STORED

_WRAPPERS = {
    "torch.nn.parallel.DistributedDataParallel": ("module", True),
    "torch.nn.DataParallel": ("module", True),
    "torch.nn.parallel.DataParallel": ("module", True),
    "torch.optim.swa_utils.AveragedModel": ("module", True),
    "torch.compile": ("_orig_mod", False),
}
"""Wrapper -> what it puts before names in PyTorch, and whether the converted one does too."""


def weights_table(analysis: Analysis, modules: Sequence[Module] = ()) -> WeightsTable:
    """The table of a repository, which is read, never run; `modules` are those that were built."""
    constructor = Constructor(analysis)
    classes = []
    for name, info in analysis.symbols.classes.items():
        if "<locals>" in name or not analysis.symbols.is_module(name):
            continue
        file = analysis.files[info.resolver.source.module]
        path, line = str(file.source.path), file.line(info.node)
        found = _read(constructor, name, f"{path}:{line}")
        arguments = tuple(_arguments(analysis, name))
        parts = (tuple(found.tensors), found.repeated, tuple(found.tied), tuple(found.unknown))
        classes.append(Class(name, path, line, arguments, *parts))
    return WeightsTable(tuple(classes), tuple(modules), tuple(_wrappers(analysis)))


def _read(constructor: Constructor, name: str, source: str) -> Contents:
    """A class that cannot be read leaves the others as they are."""
    try:
        return constructor.contents(name)
    except (Exception, RecursionError) as error:  # noqa: BLE001  (said in the table, the other classes go on)
        found = Contents()
        found.not_known(source, f"{name} cannot be read: {type(error).__name__}: {error}")
        return found


def _arguments(analysis: Analysis, name: str) -> Iterator[Argument]:
    init = analysis.symbols.method(name, "__init__")
    for parameter in init.parameters if init else ():
        yield Argument(parameter.name.value, None if parameter.default is None else code_of(parameter.default))


def _wrappers(analysis: Analysis) -> Iterator[Wrapper]:
    """The wrappers of modules that are called anywhere."""
    places: dict[str, list[str]] = {}
    for file in analysis.files.values():
        for node in walk(file.tree):
            if isinstance(node, cst.Call):
                name = file.resolver.torch_name(node.func)
                if name in _WRAPPERS:
                    places.setdefault(name, []).append(f"{file.source.path}:{file.line(node)}")
    for name, sources in sorted(places.items()):
        yield Wrapper(name, *_WRAPPERS[name], tuple(sources))


def built_module(outcome: Outcome) -> Module:
    """The state of a module that was built in PyTorch, as an entry of the table."""
    tensors = tuple(Expected(t.name, t.name, t.shape, STORED.get(t.dtype), None, t.same_as) for t in outcome.state)
    recipe = outcome.recipe
    return Module(recipe.name, recipe.module, recipe.build, tensors)
