"""Every row of the table is executed: its cases are converted, run in both frameworks and compared.

`cases/*.yaml` maps a torch name to sources: text, or a mapping with `code` and
  random: true      shape, type, moments, seeds instead of values
  grad: false       no gradient to compare
  jit: false/true   whether `ms.jit` is tried; the default is: for rows that use a helper and give tensors
  call: x           inputs of a layer
  training: true    a layer is compared in training mode
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
import row_modules
import yaml
from row_conversion import convert
from row_running import Case, check_gradient, check_jit, check_random, check_value

from mappings.api import Row, load_table
from migrate.code.template import Refusal, expand, expand_symbol

TABLE = load_table()
CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True)
class Entry:
    name: str
    number: int
    code: str
    options: tuple[tuple[str, Any], ...]

    def option(self, key: str, default: Any = None) -> Any:
        return dict(self.options).get(key, default)

    @property
    def label(self) -> str:
        return f"{self.name}-{self.number}"


def entries() -> list[Entry]:
    found = []
    for path in sorted(CASES.glob("*.yaml")):
        for name, sources in yaml.safe_load(path.read_text()).items():
            for number, source in enumerate(sources):
                options = {"code": source} if isinstance(source, str) else dict(source)
                found.append(Entry(name, number, options.pop("code"), tuple(options.items())))
    return found


ENTRIES = entries()


@pytest.fixture(scope="module", autouse=True)
def _blocking() -> None:
    ms.runtime.launch_blocking()


def case_of(entry: Entry) -> Case:
    return Case(entry.code, convert(entry.code, entry.name, TABLE), entry.label)


def row_of(case: Case, entry: Entry) -> Row:
    return next(row for row in case.converted.rows if row.name == entry.name)


def problems(entry: Entry) -> list[str]:
    """What is wrong with a case's rows: an empty list when they are right."""
    case = case_of(entry)
    row = row_of(case, entry)
    returns = row.returns or ""
    if entry.option("random"):
        return check_random(case)
    if entry.option("call"):
        return row_modules.check_layer(case, entry.option("call"), entry.option("training", False))
    if re.search(r"\bparams\b", entry.code) and returns == "optimizer":
        return row_modules.check_optimizer(case)
    if case.is_expression and returns == "scheduler" and "(optimizer" in entry.code:
        return row_modules.check_schedule(case)
    if row.name.startswith("torch.nn.init.") and returns == "tensor":
        return row_modules.check_initial_values(case)
    found = check_value(case, {}, {})
    if not found and case.is_expression and returns.startswith("tensor"):
        if entry.option("grad", True):
            found = check_gradient(case)
        uses_helper = any(i.startswith("ms_compat") for i in case.converted.imports)
        if not found and entry.option("jit", uses_helper and "not inside ms.jit" not in (row.note or "")):
            found = check_jit(case)
    return found


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.label)
def test_case(entry: Entry) -> None:
    found = problems(entry)
    assert not found, f"{entry.code}  ->  {case_of(entry).converted.source}\n" + "\n".join(found)


def test_every_row_has_a_case() -> None:
    tested = {row.source for entry in ENTRIES for row in case_of(entry).converted.rows if row.name == entry.name}
    missing = [row.source for row in TABLE if row.status != "unsupported" and row.source not in tested]
    assert not missing, f"{len(missing)} rows without a case:\n" + "\n".join(missing)


@pytest.mark.parametrize("name", sorted({row.name for row in TABLE if row.status == "unsupported"}))
def test_unsupported_rows_refuse(name: str) -> None:
    for row in TABLE.rows(name):
        for result in (expand(row, ()), expand_symbol(row)):
            assert isinstance(result, Refusal)
            assert row.reason is not None and row.advice is not None
            assert row.reason in result.reason and row.advice in result.reason
            assert row.reason.endswith(".") and row.advice.endswith(".")
