"""The written cases: what each file of `cases` says, how a case is judged, what was looked at.

`cases/*.yaml` maps a torch name to sources: text, or a mapping with `code` and
  random: true      shape, type, moments, seeds instead of values
  grad: false       no gradient to compare
  jit: false/true   whether `ms.jit` is tried; the default is: for rows that use a helper and give tensors
  call: x           inputs of a layer
  training: true    a layer is compared in training mode
  styles: false     other call styles are not comparable (a default draws random numbers, a switch is set once)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import row_modules
import row_styles
import torch
import yaml
from row_conversion import NotConverted, convert
from row_running import Case, check_gradient, check_jit, check_random, check_value

from mappings.api import ApiTable, Row

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Entry:
    """One written case."""

    name: str
    number: int
    code: str
    options: tuple[tuple[str, Any], ...] = ()

    def option(self, key: str, default: Any = None) -> Any:
        """The value of an option of the case."""
        return dict(self.options).get(key, default)

    @property
    def label(self) -> str:
        """Name of the test."""
        return f"{self.name}-{self.number}"


@dataclass
class Judgement:
    """What is wrong with a case (nothing, when its rows are right) and what was looked at."""

    problems: list[str] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)
    """Call styles that gave the right result."""
    refused_styles: list[str] = field(default_factory=list)


def entries() -> list[Entry]:
    """Every case of every file, in order."""
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for name, sources in yaml.safe_load(path.read_text()).items():
            for number, source in enumerate(sources):
                options = {"code": source} if isinstance(source, str) else dict(source)
                found.append(Entry(name, number, options.pop("code"), tuple(options.items())))
    return found


def case_of(entry: Entry, table: ApiTable) -> Case:
    """The converted case.

    Raises:
        NotConverted: the table refuses it.
    """
    return Case(entry.code, convert(entry.code, entry.name, table), entry.label)


def row_of(case: Case, entry: Entry) -> Row:
    """The row that the case is about."""
    found = next((row for row in case.converted.rows if row.name == entry.name), None)
    assert found is not None, f"{entry.label} does not use a row of {entry.name}"
    return found


def reset_process_groups() -> None:
    """Undo what a case about torch.distributed leaves behind, so that the next one can start."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def judge(entry: Entry, table: ApiTable) -> Judgement:
    """Run a case in both frameworks: values, then gradients and `ms.jit` where they apply."""
    reset_process_groups()
    case = case_of(entry, table)
    row = row_of(case, entry)
    returns = row.returns or ""
    if entry.option("random"):
        return Judgement(check_random(case), ["random"])
    if entry.option("call"):
        training = entry.option("training", False)
        return Judgement(row_modules.check_layer(case, entry.option("call"), training), ["layer", "gradient"])
    # The fixture as a value, not a keyword or a key of that name.
    if returns == "optimizer" and re.search(r"(?<![\w\"'])params\b(?![\"']|\s*=)", entry.code):
        return Judgement(row_modules.check_optimizer(case), ["optimizer"])
    if case.is_expression and returns == "scheduler" and re.search(r"\boptimizer\b", entry.code):
        return Judgement(row_modules.check_schedule(case), ["schedule"])
    if row.name.startswith("torch.nn.init.") and returns == "tensor":
        return Judgement(row_modules.check_initial_values(case), ["initial values"])
    found = Judgement(check_value(case, {}, {}), ["value"])
    if not found.problems and case.is_expression and returns.startswith("tensor"):
        if entry.option("grad", True):
            found.problems = check_gradient(case)
            found.checks.append("gradient")
        uses_helper = any(i.startswith("ms_compat") for i in case.converted.imports)
        if not found.problems and entry.option("jit", uses_helper and "not inside ms.jit" not in (row.note or "")):
            found.problems = check_jit(case)
            found.checks.append("jit")
    return found


def judge_styles(entry: Entry, table: ApiTable) -> Judgement:
    """The same call in the other styles that its signature allows, each compared with torch in value.

    A style that torch itself does not take, or that the table refuses in words, is no fault.
    """
    found = Judgement()
    if not entry.option("styles", True):
        return found
    options = tuple((key, value) for key, value in entry.options if key not in ("grad", "jit"))
    for style, source in row_styles.styles(entry.code, row_of(case_of(entry, table), entry)).items():
        variant = Entry(entry.name, entry.number, source, (*options, ("grad", False), ("jit", False)))
        try:
            case = case_of(variant, table)
        except NotConverted:
            found.refused_styles.append(style)
            continue
        if entry.option("training") and style == "defaults omitted":
            continue  # a layer whose default may be to draw random numbers
        if not row_styles.torch_takes(case, random=bool(entry.option("random"))):
            continue
        reset_process_groups()
        problems = judge(variant, table).problems
        found.styles.append(style)
        found.problems += [f"{style}: {source}: {problem}" for problem in problems]
    return found
