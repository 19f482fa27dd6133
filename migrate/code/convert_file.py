"""Conversion of one file: the passes in their order, then the imports."""

from __future__ import annotations

from dataclasses import dataclass, field

from migrate.code.analysis import Analysis, FileAnalysis
from migrate.code.context import Counts, FileContext
from migrate.code.findings import finding
from migrate.code.line_records import unread_lines
from migrate.code.names.imports import finish_imports
from migrate.code.passes.base import Pass
from migrate.code.passes.cells import Cells
from migrate.code.passes.complex_products import ComplexProducts
from migrate.code.passes.decoding import Decoding
from migrate.code.passes.decorators import Decorators
from migrate.code.passes.devices import Devices
from migrate.code.passes.dynamic import Dynamic
from migrate.code.passes.einops_imports import EinopsImports
from migrate.code.passes.executed_texts import ExecutedTexts
from migrate.code.passes.formats import Formats
from migrate.code.passes.full_slices import FullSlices
from migrate.code.passes.inplace import InPlace
from migrate.code.passes.inplace_modules import InplaceModules
from migrate.code.passes.leftovers import Leftovers
from migrate.code.passes.members import Members
from migrate.code.passes.names import Names
from migrate.code.passes.quoted_annotations import QuotedAnnotations
from migrate.code.passes.runtime_checks import RuntimeChecks
from migrate.code.passes.shared_writes import SharedWrites
from migrate.code.passes.third_party import ThirdParty
from migrate.code.passes.training import Training
from migrate.code.passes.transformers_imports import TransformersImports
from migrate.code.rewrite import rewrite
from migrate.code.shard.apply import Shard
from migrate.report import Finding, Line

# The first pass that answers for a call or a name wins, so `Names`, which knows least about meaning, comes late.
PASSES: tuple[type[Pass], ...] = (
    Shard,
    ThirdParty,
    EinopsImports,
    Training,
    Decoding,
    Cells,
    Decorators,
    Dynamic,
    Devices,
    InPlace,
    InplaceModules,
    SharedWrites,
    Formats,
    ComplexProducts,
    FullSlices,
    RuntimeChecks,
    ExecutedTexts,
    Members,
    QuotedAnnotations,
    Names,
    TransformersImports,
    Leftovers,
)


@dataclass(frozen=True)
class Converted:
    """Outcome for one file."""

    text: str
    findings: list[Finding]
    counts: Counts
    helpers: frozenset[str]
    """Modules of `ms_compat` that the file imports."""
    needs: frozenset[str] = frozenset()
    """torch names that the file still takes from other files of the repository."""
    compiles: bool = True
    lines: list[Line] = field(default_factory=list)
    """The lines that touch torch, and what became of them."""


def convert_file(
    analysis: Analysis, file: FileAnalysis, target: str = "portable", keep: frozenset[str] = frozenset()
) -> Converted:
    """Convert one file; a pass that crashes leaves the file as it was, with a finding.

    Names in `keep` (`common.F`) stay imported because other files still take them from this one.
    """
    context = FileContext(analysis, file, target)
    path = str(file.source.path)
    try:
        passes = [make for make in PASSES if make is not Shard or analysis.sharding is not None]
        tree = rewrite(context, [make(context) for make in passes])
        finished = finish_imports(context, tree, keep)
        text = finished.tree.code
        compile(text, path, "exec", dont_inherit=True)
    except (Exception, RecursionError) as error:  # noqa: BLE001  (reported as a finding, the other files go on)
        message = f"{type(error).__name__}: {error}"
        return Converted(
            file.tree.code,
            [finding("M102", message, file=path)],
            Counts(),
            frozenset(),
            compiles=_is_valid(file.tree.code, path),
            lines=unread_lines(file.source.text, "M102"),
        )
    lines = context.lines.lines(file.line)
    return Converted(text, context.findings, context.counts, finished.helpers, finished.needs, lines=lines)


def _is_valid(text: str, path: str) -> bool:
    try:
        compile(text, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):  # the latter for zero bytes, before Python 3.11.4
        return False
    return True


__all__ = ["PASSES", "Converted", "convert_file"]
