"""How much of torch the table covers: weighted by use, by torch's operator database, by namespace."""

from __future__ import annotations

import csv
import functools
from collections import Counter
from pathlib import Path
from typing import Any

import mappings.api
from mappings.api import ApiTable, Standing, known_names, load_table
from mappings.api.evidence import passing, read_evidence, row_key

USE_COUNTS = Path(mappings.api.__file__).parent / "use_counts.csv"
# Objects a method of unknown receiver may belong to; the converter knows the type, the counts do not.
OWNERS = (
    "torch.Tensor",
    "torch.nn.Module",
    "torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler",
    "torch.amp.GradScaler",
    "torch.utils.data.DataLoader",
    "torch.device",
    "torch.Generator",
)
PASSING, FAILING = "mapped and passing", "mapped, no passing evidence"
ANSWERS = (PASSING, FAILING, Standing.UNSUPPORTED.value, Standing.UNMAPPED.value, Standing.UNKNOWN.value)


class Coverage:
    """The tables of one state of rows and evidence."""

    def __init__(self) -> None:
        self.table: ApiTable = load_table()
        self.evidence, self.entries = read_evidence()

    @functools.cache  # noqa: B019 - the object lives as long as the command
    def answer(self, name: str) -> str:
        """One of `ANSWERS`; a name passes when all its supported rows do."""
        standing = self.table.standing(name)
        if standing is not Standing.MAPPED:
            return standing.value
        rows = [row for row in self.table.rows(name) if row.status != "unsupported"]
        return PASSING if all(passing(self.evidence.get(row_key(row))) for row in rows) else FAILING

    def by_use(self) -> dict[str, Any]:
        """Uses counted in 15 repositories: of names, and of methods, by answer."""
        found: dict[str, Any] = {}
        missing: list[tuple[int, str]] = []
        with USE_COUNTS.open(encoding="ascii", newline="") as file:
            for record in csv.DictReader(file):
                name, uses = record["name"], int(record["count"])
                if record["kind"] == "method":
                    owned = [f"{owner}.{name}" for owner in OWNERS]
                    answers = [self.answer(n) for n in owned]
                    answer = min(answers, key=ANSWERS.index)
                else:
                    answer = self.answer(name)
                part = found.setdefault(record["kind"], {"names": Counter(), "uses": Counter()})
                part["names"][answer] += 1
                part["uses"][answer] += uses
                if answer not in (PASSING, Standing.UNSUPPORTED.value):
                    missing.append((uses, name))
        for part in found.values():
            part["names"], part["uses"] = dict(part["names"]), dict(part["uses"])
        found["most used without"] = [f"{name} ({uses})" for uses, name in sorted(missing, reverse=True)[:20]]
        return found

    def by_opdb(self) -> dict[str, Any]:
        """Entries of torch's operator database in float32 on the CPU."""
        outcomes: Counter[str] = Counter()
        for entry in self.entries.values():
            if entry["right_through_row"]:
                outcomes["fully right"] += 1
            elif self.table.standing(entry["row"]) is Standing.UNSUPPORTED:
                outcomes["unsupported"] += 1
            elif entry["row"] not in self.table and entry["row"] != "operator":
                outcomes["no row"] += 1
            else:
                outcomes["partly right" if entry.get("right") else "not right"] += 1
        return {"entries": len(self.entries), **dict(sorted(outcomes.items()))}

    def by_namespace(self) -> dict[str, dict[str, int]]:
        """Public names of each namespace that has a row, by answer."""
        spaces = sorted({name.rpartition(".")[0] for name in self.table.names()} - {""})
        every = known_names() | self.table.names()
        found: dict[str, dict[str, int]] = {}
        for space in spaces:
            names = [n for n in every if n.rpartition(".")[0] == space]
            counts = Counter(self.answer(n) for n in names)
            found[space] = {answer: counts[answer] for answer in ANSWERS[:4]}
        return found

    def tables(self) -> dict[str, Any]:
        """All three, as plain data."""
        rows = list(self.table)
        proved = sum(passing(self.evidence.get(row_key(row))) for row in rows)
        return {
            "rows": {"rows": len(rows), "names": len(self.table.names()), "with passing evidence": proved},
            "by use": self.by_use(),
            "by op_db": self.by_opdb(),
            "by namespace": self.by_namespace(),
        }


def text(tables: dict[str, Any]) -> str:
    """The tables for a terminal."""
    rows = tables["rows"]
    lines = [f"{rows['rows']} rows for {rows['names']} names, {rows['with passing evidence']} with passing evidence"]
    for kind, title in (("api", "names used"), ("method", "methods used")):
        part = tables["by use"][kind]
        uses, names = sum(part["uses"].values()), sum(part["names"].values())
        lines += ["", f"{title}: {uses} uses of {names} names in 15 repositories"]
        for answer in ANSWERS:
            if count := part["uses"].get(answer, 0):
                lines.append(
                    f"  {answer:28s} {100 * count / uses:6.2f} %  {count:6d} uses {part['names'][answer]:5d} names"
                )
    if without := tables["by use"]["most used without"]:
        lines.append(f"  most used without an answer: {', '.join(without)}")
    found = dict(tables["by op_db"])
    total = found.pop("entries")
    lines += ["", f"torch's operator database, {total} entries in float32"]
    lines += [f"  {outcome:28s} {100 * count / max(total, 1):6.2f} %  {count:6d}" for outcome, count in found.items()]
    lines += ["", f"{'namespace':44s} {'passing':>8s} {'unproved':>8s} {'unsupp.':>8s} {'unmapped':>8s}"]
    lines += [f"{s:44s} " + " ".join(f"{n:8d}" for n in c.values()) for s, c in tables["by namespace"].items()]
    return "\n".join(lines)
