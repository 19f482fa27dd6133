"""A process that runs samples and cases for `opdb_pool` and may die doing so. Speaks JSON lines on its own stdout.

Job (stdin): {"entry": key, "skip": n, "limit": n or null, "primary_only": bool, "errors": bool}; `skip` samples were
begun before. The entry `case LABEL` is a written case: the case itself, then its other call styles.
Events: {"begin": [form, source]} before each sample, {"end": {...}} after it, {"done": key} at the end of an entry.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from typing import Any, TextIO


def main() -> None:
    """Serve jobs until stdin closes."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # kernels print on stdout
    warnings.simplefilter("ignore")
    import mindspore as ms
    import row_cases
    from opdb_entries import entries

    from mappings.api import load_table

    ms.runtime.launch_blocking()
    found, table = entries(), load_table()
    cases = {entry.label: entry for entry in row_cases.entries()}
    _say(out, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        if job["entry"].startswith("case "):
            _serve_case(cases[job["entry"].removeprefix("case ")], job, table, out)
        else:
            _serve(found[job["entry"]], job, table, out)
        _say(out, {"done": job["entry"]})


def _say(out: TextIO, event: dict[str, Any]) -> None:
    out.write(json.dumps(event) + "\n")
    out.flush()


def _serve(entry: Any, job: dict[str, Any], table: Any, out: TextIO) -> None:
    from opdb_entries import NotCallable, write
    from opdb_run import Outcome, run

    number = 0
    forms = entry.forms(table)
    for form in forms[:1] if job["primary_only"] else forms:
        for index, raw in enumerate(entry.samples()):
            if job["limit"] is not None and index >= job["limit"]:
                break
            if form.startswith("torch.ops.") and index:
                break  # one sample says it
            number += 1
            if number <= job["skip"]:
                continue
            try:
                sample = write(entry, form, raw)
            except NotCallable as error:
                _say(out, {"begin": [form, ""]})
                _say(out, {"end": Outcome("refused", reason=f"not tried: {error}").as_dict()})
                continue
            _say(out, {"begin": [form, sample.source]})
            if form.startswith("torch.ops."):
                reason = f"{entry.op.name} is not public in torch: only {form} reaches it"
                _say(out, {"end": Outcome("refused", sample.source, reason=reason).as_dict()})
                continue
            try:
                outcome = run(entry, sample, table).as_dict()
            except Exception as error:  # noqa: BLE001 - torch's own failure: reported, and the sample does not count
                outcome = Outcome("torch", sample.source, reason=f"{type(error).__name__}: {error}"[:300]).as_dict()
            _say(out, {"end": outcome})

    if job.get("errors") and not forms[0].startswith("torch.ops."):
        _serve_errors(entry, forms[0], job, number, table, out)


def _serve_errors(entry: Any, form: str, job: dict[str, Any], number: int, table: Any, out: TextIO) -> None:
    """Calls that torch refuses, under the form `errors`."""
    from opdb_entries import write
    from opdb_run import Outcome, run_error

    for raw in entry.error_samples():
        number += 1
        if number <= job["skip"]:
            continue
        try:
            sample = write(entry, form, raw)
        except Exception:  # noqa: BLE001 - not a call of this spelling (torch may refuse it while it is recorded)
            sample = None
        _say(out, {"begin": ["errors", "" if sample is None else sample.source]})
        outcome = Outcome("torch") if sample is None else run_error(entry, sample, table)
        _say(out, {"end": outcome.as_dict()})


def _serve_case(case: Any, job: dict[str, Any], table: Any, out: TextIO) -> None:
    import row_cases
    from row_conversion import NotConverted

    for number, (form, judge) in enumerate((("case", row_cases.judge), ("styles", row_cases.judge_styles))):
        if number < job["skip"]:
            continue
        _say(out, {"begin": [form, case.code]})
        end: dict[str, Any] = {"source": case.code, "outcome": "right", "reason": ""}
        try:
            found = judge(case, table)
            end |= {"checks": found.checks, "styles": found.styles, "refused_styles": found.refused_styles}
            used = row_cases.case_of(case, table).converted.rows
            end["rows"] = [f"{row.name} {row.digest()}" for row in used if row.name == case.name]
            if found.problems:
                end |= {"outcome": "wrong", "reason": "; ".join(found.problems)[:500]}
        except NotConverted as error:
            end |= {"outcome": "refused", "reason": str(error)[:500]}
        except Exception as error:  # noqa: BLE001 - whatever is raised is the result of this case
            end |= {"outcome": "raised", "reason": f"{type(error).__name__}: {error}"[:500]}
        _say(out, {"end": end})


if __name__ == "__main__":
    main()
