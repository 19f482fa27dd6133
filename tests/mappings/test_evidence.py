"""The shipped evidence is of the rows as they stand, passes, and a sample of it is made again here."""

from __future__ import annotations

import zlib
from importlib.metadata import version
from typing import Any

import factory
import mindspore as ms
import opdb
import opdb_entries
import pytest
import row_cases
from opdb_pool import Pool

from mappings.api import load_table
from mappings.api.evidence import passing, read_evidence, row_key

TABLE = load_table()
ROWS, DATABASE = read_evidence()
ENTRIES = opdb_entries.entries()


def sampled(key: str, one_of: int) -> bool:
    """The same choice at every run, spread over the names."""
    return zlib.crc32(key.encode()) % one_of == 0


def test_every_row_has_passing_evidence() -> None:
    missing = [f"{row.source}: {ROWS.get(row_key(row), 'no evidence')}" for row in TABLE]
    missing = [text for text, row in zip(missing, TABLE, strict=True) if not passing(ROWS.get(row_key(row)))]
    assert not missing, f"run `make test-mappings`; {len(missing)} rows:\n" + "\n".join(missing)


def test_no_evidence_of_rows_that_are_gone() -> None:
    assert set(ROWS) == {row_key(row) for row in TABLE}
    assert set(DATABASE) == set(ENTRIES)


def test_evidence_is_of_these_versions() -> None:
    installed = {name: version(name).partition("+")[0] for name in ("torch", "mindspore")}
    assert {tuple(sorted(found["versions"].items())) for found in ROWS.values()} == {tuple(sorted(installed.items()))}


def test_counts_agree() -> None:
    """An entry that is called right has no other outcome; one that is not says why."""
    for key, found in DATABASE.items():
        others = [found[outcome] for outcome in opdb.OUTCOMES[1:] if outcome in found]
        assert found["right_through_row"] == (not others and found.get("right", 0) > 0), key
        assert found["right_through_row"] or found.get("reason"), f"{key} is not right and gives no reason"


def test_sampled_entries_of_the_database_again() -> None:
    """The first three samples of every tenth entry that the evidence calls right, each spelling by its row."""
    keys = [key for key, found in DATABASE.items() if found["right_through_row"] and sampled(key, 10)]
    assert len(keys) > 10
    wrong: list[str] = []

    def finished(key: str, outcomes: dict[str, list[dict[str, Any]]]) -> None:
        own = outcomes[ENTRIES[key].forms()[0]]
        wrong.extend(f"{key}: {o['source']}: {o['reason']}" for o in own if o["outcome"] not in ("right", "torch"))

    Pool(2).run(keys, finished, limit=3, primary_only=True)
    assert not wrong, "\n".join(wrong)


CASES = [entry for entry in row_cases.entries() if sampled(entry.label, 12)]


@pytest.mark.parametrize("entry", CASES, ids=lambda entry: entry.label)
def test_sampled_call_styles(entry: row_cases.Entry) -> None:
    ms.runtime.launch_blocking()
    assert row_cases.judge_styles(entry, TABLE).problems == []


def test_a_death_is_charged_to_its_row_and_fails_it() -> None:
    case = row_cases.entries()[0]
    died = {"source": case.code, "outcome": "raised", "reason": "the process died: SIGFPE", "rows": []}
    key = f"case {case.label}"
    found = factory.row_evidence(TABLE, {key: {"case": [died]}}, {key: case.name}, {case.name})
    assert found and all(f["failed"] == "the process died: SIGFPE" and not passing(f) for f in found.values())
