"""The test factory: executes every row and writes the evidence that the table ships with.

    python tests/mappings/factory.py            # written cases, their call styles, torch's operator database
    python tests/mappings/factory.py --stale    # only what has no passing evidence yet

Writes `mappings/api/evidence.json` (one line per row) and `mappings/api/evidence_opdb.json` (one line per entry of the
database). Exit code 1 when a row lacks passing evidence. Everything runs in processes that may die (`opdb_pool`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import opdb
import opdb_entries
import row_cases
from opdb_pool import Pool

from mappings.api import ApiTable, Row, Standing, load_table
from mappings.api.evidence import EVIDENCE, OPDB_EVIDENCE, passing, read_evidence, row_key
from migrate.code.rows.template import Refusal, expand, expand_symbol

Outcomes = dict[str, list[dict[str, Any]]]


def versions() -> dict[str, str]:
    """What the evidence was made with."""
    return {name: version(name).partition("+")[0] for name in ("torch", "mindspore")}


def main() -> int:
    """Command line; exit code 1 when a row lacks passing evidence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stale", action="store_true")
    parser.add_argument("--retry", action="store_true", help="with --stale: also entries with a row that are not right")
    parser.add_argument("-n", type=int, default=2, help="workers")
    options = parser.parse_args()
    table = load_table()
    rows, database = read_evidence() if options.stale else ({}, {})
    names = stale_names(table, rows) if options.stale else set(table.names())
    entries = opdb_entries.entries()
    again = {k for k in entries if k not in database or (options.retry and improvable(database[k], table))}
    keys = [k for k, e in entries.items() if not options.stale or k in again or touches(e, names)]
    cases = {f"case {e.label}": e.name for e in row_cases.entries() if e.name in names}
    start, results = time.monotonic(), dict[str, Outcomes]()

    def finished(key: str, outcomes: Outcomes) -> None:
        results[key] = outcomes
        if len(results) % 100 == 0:
            print(f"{len(results)} of {len(cases) + len(keys)}: {time.monotonic() - start:.0f} s", flush=True)

    Pool(options.n).run([*cases, *keys], finished, errors=True)
    for key in keys:
        database[key] = entry_evidence(results[key], entries[key].forms(table)[0])
    fresh = row_evidence(table, results, cases, names)
    rows = {key: rows[key] for key in map(row_key, table) if key in rows} | fresh
    write(EVIDENCE, {row_key(row): rows[row_key(row)] for row in table if row_key(row) in rows})
    write(OPDB_EVIDENCE, {key: database[key] for key in entries})
    missing = [row for row in table if not passing(rows.get(row_key(row)))]
    for row in missing:
        print(f"{row.source}: {rows.get(row_key(row), {}).get('failed', 'not executed')}")
    right = sum(found["right_through_row"] for found in database.values())
    print(f"{len(rows)} rows with evidence, {len(missing)} without passing evidence; {right} of {len(database)} op_db")
    print(f"{len(cases)} cases and {len(keys)} entries in {time.monotonic() - start:.0f} s")
    return 1 if missing else 0


def stale_names(table: ApiTable, rows: dict[str, Any]) -> set[str]:
    """Names with a row whose evidence is missing or says that it failed."""
    return {row.name for row in table if not passing(rows.get(row_key(row)))}


def improvable(found: dict[str, Any], table: ApiTable) -> bool:
    """Whether an entry was not right although a row exists: its helper may be another one now."""
    return not found["right_through_row"] and table.standing(found["row"]) is Standing.MAPPED


def touches(entry: opdb_entries.Entry, names: set[str]) -> bool:
    """Whether one of the entry's spellings is among the names."""
    name = entry.op.name
    spellings = {f"torch.{name}", f"torch.Tensor.{name}", f"torch.Tensor.{name}_"}
    for alias in entry.op.aliases:
        spellings |= {f"torch.{alias.name}", f"torch.Tensor.{alias.name}", f"torch.Tensor.{alias.name}_"}
    return bool(spellings & names)


def entry_evidence(outcomes: Outcomes, form: str) -> dict[str, Any]:
    """Summary of an entry: its own name first, counts of the other spellings after it."""
    own = outcomes.get(form, [])
    others = {name: opdb.summary(found) for name, found in outcomes.items() if name not in (form, "errors")}
    found = {"row": form, "right_through_row": opdb.fully_right(own), **opdb.summary(own)}
    if refused := opdb.counts(outcomes.get("errors", [])):
        found["errors"] = f"{refused['right']}/{sum(refused.values())}"
    if others:
        found["others"] = {
            name: f"{summary.get('right', 0)}/{sum(opdb.counts(outcomes[name]).values())}"
            for name, summary in others.items()
        }
    return found


def row_evidence(
    table: ApiTable, results: dict[str, Outcomes], cases: dict[str, str], names: set[str]
) -> dict[str, dict[str, Any]]:
    """Evidence of every row of `names`, by row key."""
    found: dict[str, dict[str, Any]] = {}
    by_row: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for key, outcomes in results.items():
        for form, items in outcomes.items():
            for item in items if form != "errors" else ():
                keys = set(item.get("rows", ()))
                if not keys and key in cases:  # died, or refused: charged to every row of the name
                    keys = {row_key(row) for row in table.rows(cases[key])}
                for row in keys:
                    by_row.setdefault(row, []).append((form if key in cases else "sample", item))
    for row in table:
        if row.name in names:
            found[row_key(row)] = refusal(row) if row.status == "unsupported" else summary(by_row.get(row_key(row), []))
    return found


def refusal(row: Row) -> dict[str, Any]:
    """Evidence of an unsupported row: the converter refuses it with the row's own words."""
    for result in (expand(row, ()), expand_symbol(row)):
        if not isinstance(result, Refusal) or str(row.reason) not in result.reason:
            return {"failed": "the converter does not refuse it", "versions": versions()}
    return {"refuses": True, "versions": versions()}


def summary(items: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Evidence of one row from the outcomes of its cases and samples."""
    written = [item for kind, item in items if kind in ("case", "styles")]
    samples = [item for kind, item in items if kind == "sample"]
    found: dict[str, Any] = {"cases": sum(kind == "case" and i["outcome"] == "right" for kind, i in items)}
    checks = {check for item in written for check in item.get("checks", ())}
    found["checks"] = sorted(checks)
    found["modes"] = ["pynative", "jit"] if "jit" in checks else ["pynative"]
    found["styles"] = sorted({style for item in written for style in item.get("styles", ())})
    if samples:
        tally = Counter(item["outcome"] for item in samples if item["outcome"] != "torch")
        found["samples"] = {key: tally[key] for key in opdb.OUTCOMES if tally[key]}
        found["error"] = float(f"{max((i['error'] for i in samples if i['outcome'] == 'right'), default=0.0):.1e}")
    failed = [item["reason"] for item in written if item["outcome"] != "right"]
    if failed:
        found["failed"] = failed[0][:300]
    found["versions"] = versions()
    return found


def write(path: Path, content: dict[str, Any]) -> None:
    """One line per entry, so that a difference reads well."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
