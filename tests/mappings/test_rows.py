"""Every row of the table is executed: its cases are converted, run in both frameworks and compared (`row_cases`)."""

from __future__ import annotations

import re

import mindspore as ms
import pytest
from row_cases import CASES, Entry, case_of, entries, judge

from mappings.api import load_table
from migrate.code.rows.template import Refusal, expand, expand_symbol

TABLE = load_table()
ENTRIES = entries()


@pytest.fixture(scope="module", autouse=True)
def _blocking() -> None:
    ms.runtime.launch_blocking()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.label)
def test_case(entry: Entry) -> None:
    found = judge(entry, TABLE).problems
    assert not found, f"{entry.code}  ->  {case_of(entry, TABLE).converted.source}\n" + "\n".join(found)


def test_no_name_stands_twice_in_a_file_of_cases() -> None:
    """The second would silently replace the first."""
    for path in sorted(CASES.glob("*.yaml")):
        names = re.findall(r"^([\w.]+):", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert sorted(names) == sorted(set(names)), path.name


def test_every_row_has_a_case() -> None:
    tested = {row.source for entry in ENTRIES for row in case_of(entry, TABLE).converted.rows if row.name == entry.name}
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
