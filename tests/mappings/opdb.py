"""Runs torch's operator database through the rows of the table and says what is right.

    python tests/mappings/opdb.py add nn.functional.pad      # entries by key: every sample that fails, with its reason
    python tests/mappings/opdb.py 'linalg.*' --brief         # shell patterns; one line per entry
    python tests/mappings/opdb.py --all --brief --json FILE  # everything
    options: -n WORKERS (2), --limit SAMPLES per form, --primary (only the entry's own name, no aliases and methods),
             --timeout SECONDS per sample, --failing (only what is not right), --tag torch.Tensor (names with a prefix),
             --errors (also the calls that torch refuses: right when they are refused or raise here too)

An entry is fully right when every sample is right through the row of its own name (`torch.X` where torch has it, else
`torch.Tensor.X`): value, shape, data type, structure, and gradients where the database says autograd is supported.
The table and the helpers are read anew at each start of a worker. A death of a worker is charged to its sample.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import opdb_entries
from opdb_pool import Pool

from mappings.api import load_table

OUTCOMES = ("right", "wrong", "refused", "raised")
REASON_LENGTH = 200
Outcomes = dict[str, list[dict[str, Any]]]


def counts(outcomes: list[dict[str, Any]]) -> Counter[str]:
    """Samples by outcome; samples that torch itself cannot run do not count."""
    return Counter(o["outcome"] for o in outcomes if o["outcome"] != "torch")


def fully_right(outcomes: list[dict[str, Any]]) -> bool:
    """Whether there are samples and all are right."""
    tally = counts(outcomes)
    return bool(tally) and set(tally) == {"right"}


def summary(outcomes: list[dict[str, Any]]) -> dict[str, Any]:
    """Counts, worst error of the right samples and the most frequent reason of the others."""
    tally = counts(outcomes)
    reasons = Counter(o["reason"] for o in outcomes if o["outcome"] not in ("right", "torch"))
    errors = [o["error"] for o in outcomes if o["outcome"] == "right"]
    found: dict[str, Any] = {k: tally[k] for k in OUTCOMES if tally[k]}
    found["error"] = float(f"{max(errors, default=0.0):.1e}")
    if any(o["gradient"] for o in outcomes):
        found["gradient"] = True
    if reasons:
        found["reason"] = reasons.most_common(1)[0][0][:REASON_LENGTH]
    elif not tally:
        found["reason"] = f"torch cannot run its samples here: {outcomes[0]['reason'] if outcomes else 'it has none'}"
    return found


def line(key: str, form: str, outcomes: list[dict[str, Any]]) -> str:
    """One form of one entry for a terminal."""
    found = summary(outcomes)
    tally = " ".join(f"{found.get(k, 0)}" for k in OUTCOMES)
    word = "RIGHT" if fully_right(outcomes) else "-    "
    return f"{word} {key:40s} {form:46s} {tally:14s} {found['error']:.0e}  {found.get('reason', '')[:150]}"


def main() -> int:
    """Command line; exit code 1 when something is not fully right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--brief", action="store_true")
    parser.add_argument("--failing", action="store_true")
    parser.add_argument("--primary", action="store_true")
    parser.add_argument("--errors", action="store_true")
    parser.add_argument("--tag", default="")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("-n", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=30.0)
    options = parser.parse_args()
    table = load_table()
    known = opdb_entries.entries()
    patterns = ["*"] if options.all else options.names
    keys = [k for k in known if any(fnmatch.fnmatchcase(k, p) or k.partition(".")[0] == p for p in patterns)]
    keys = [k for k in keys if known[k].forms()[0].startswith(options.tag)]
    if not keys:
        print(f"no entry of the database matches {' '.join(patterns)}", file=sys.stderr)
        return 2
    results: dict[str, Outcomes] = {}

    def finished(key: str, outcomes: Outcomes) -> None:
        results[key] = outcomes
        for form, found in outcomes.items():
            if options.failing and fully_right(found):
                continue
            print(line(key, form, found), flush=True)
            if not options.brief:
                for o in found:
                    if o["outcome"] != "right":
                        print(
                            f"    {o['outcome']:8s}{o['source']}\n        {o['converted']}\n        {o['reason'][:700]}"
                        )

    start = time.monotonic()
    Pool(min(options.n, len(keys)), options.timeout).run(keys, finished, options.limit, options.primary, options.errors)
    right = [k for k in keys if fully_right(results[k].get(known[k].forms(table)[0], []))]
    print(f"{len(right)} of {len(keys)} entries fully right through their row; {time.monotonic() - start:.0f} s")
    if options.json:
        found = {k: {form: summary(o) for form, o in results[k].items()} for k in keys}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if len(right) == len(keys) else 1


if __name__ == "__main__":
    sys.exit(main())
