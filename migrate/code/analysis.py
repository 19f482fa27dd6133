"""Everything known about a repository before anything is changed: trees, names, types."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import libcst as cst

from mappings.api import ApiTable, load_table
from migrate.code.inference.flow import FileTypes, infer
from migrate.code.names.resolve import ModuleSymbols, Resolver, module_symbols
from migrate.code.names.scopes import Scopes
from migrate.code.names.symbols import Facts, Symbols, collect
from migrate.code.project import Project, SourceFile
from migrate.code.trees.lines import Lines
from migrate.code.trees.nesting import DEEPEST, depth
from migrate.progress import Tracker, quiet

if TYPE_CHECKING:
    from migrate.code.shard.changes import Changes


@dataclass(frozen=True)
class FileAnalysis:
    """One parsed file."""

    source: SourceFile
    tree: cst.Module
    resolver: Resolver
    types: FileTypes

    @functools.cached_property
    def _lines(self) -> Lines:
        return Lines(self.tree, self.source.text or "")

    def line(self, node: cst.CSTNode) -> int:
        """Line of a node of the original tree, from 1."""
        return self._lines.of(node)


@dataclass(frozen=True)
class Analysis:
    """The parsed repository."""

    project: Project
    table: ApiTable
    symbols: Symbols
    facts: Facts
    files: Mapping[str, FileAnalysis]
    """By module name."""
    unparsed: Mapping[str, str]
    """Path -> why the file could not be read."""
    sharding: Changes | None = None
    """What `--shard` changes."""
    unsafe: bool = False
    """Whether unsafe rules are applied."""


def analyse(project: Project, *, table: ApiTable | None = None, track: Tracker = quiet) -> Analysis:
    """Parse every file, resolve names, infer types. A file that cannot be parsed is listed, the rest goes on."""
    table = load_table() if table is None else table
    trees: dict[str, cst.Module] = {}
    unparsed: dict[str, str] = {}
    with track("parsing", len(project.sources)) as advance:
        for source in project.sources:
            try:
                if source.text is None:
                    raise ValueError(source.fault)
                trees[source.module] = cst.parse_module(source.text)
            except cst.ParserSyntaxError as error:
                unparsed[str(source.path)] = f"line {error.raw_line}: {error.message}"
            except (ValueError, RecursionError) as error:
                unparsed[str(source.path)] = str(error)
            advance(1)
    try:
        return _understood(project, table, trees, unparsed, track)
    except RecursionError:
        paths = {source.module: str(source.path) for source in project.sources}
        deep = {module: levels for module, tree in trees.items() if (levels := depth(tree)) > DEEPEST}
        if not deep:
            raise
        for module, levels in deep.items():
            del trees[module]
            unparsed[paths[module]] = f"an expression is nested {levels} levels deep"
        return _understood(project, table, trees, unparsed, track)


def _understood(
    project: Project, table: ApiTable, trees: Mapping[str, cst.Module], unparsed: Mapping[str, str], track: Tracker
) -> Analysis:
    """Names and types of the files that could be parsed."""
    symbols = Symbols(table)
    tops: dict[str, ModuleSymbols] = {}
    resolvers: dict[str, Resolver] = {}
    with track("resolving names", len(trees)) as advance:
        for source in project.sources:
            if source.module in trees:
                tree = trees[source.module]
                tops[source.module] = module_symbols(project, source, tree)
                resolvers[source.module] = Resolver(project, source, Scopes(tree), tops)
                advance(1)
    for module, tree in trees.items():
        collect(symbols, resolvers[module], tree)
    types, facts = infer(symbols, {module: (resolvers[module], tree) for module, tree in trees.items()})
    files = {m: FileAnalysis(resolvers[m].source, tree, resolvers[m], types[m]) for m, tree in trees.items()}
    return Analysis(project, table, symbols, facts, files, unparsed)
