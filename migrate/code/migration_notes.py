"""`MIGRATION.md` of the output: what was done, what is left, in the order in which a person would work."""

from __future__ import annotations

from collections import Counter

from migrate.code.execution import execution_notes
from migrate.code.rules import RULES
from migrate.code.shard.table import sharding_notes
from migrate.code.verify.module_report import module_notes
from migrate.report import LineStatus, Report, Severity, count_lines, line_summary

_SHOWN = 40
"""Lines of one file that are listed; `report.json` has all."""


def migration_notes(report: Report) -> str:
    """The text of the file."""
    facts = report.facts
    lines = [
        "# Migration to MindSpore",
        "",
        "Written by `msmigrate code`. The same facts for machines are in `report.json`.",
        "",
        f"* {facts['files']} Python files, {facts['lines']} lines, {facts['files_changed']} files changed, "
        f"{facts['files_that_compile']} compile.",
        f"* {facts['torch_names_converted']} of {facts['torch_names_seen']} uses of torch converted, "
        f"{facts['torch_names_unconverted']} left.",
    ]
    if "modules_imported" in facts:
        lines.append(f"* {facts['modules_imported']} of {facts['files_changed']} changed files import (`--verify`).")
    if facts["helpers"]:
        names = ", ".join(f"`{name}`" for name in facts["helpers"])
        lines.append(f"* Helpers that came along in `ms_compat/`: {names}. They stand alone and may be edited.")
    lines.append(
        "* `weights_table.json` lists the parameters and buffers of every module class: names (equal on both sides), "
        "shapes, layout, ties."
    )
    lines += _status(report)
    if "sharding" in facts:
        lines += sharding_notes(facts["sharding"])
    if facts.get("execution"):
        lines += execution_notes(facts["execution"])
    if "modules_as_graphs" in facts:
        lines += module_notes(facts["modules_as_graphs"])
    lines += ["", "## What is left", ""]
    open_findings = [f for f in report.findings if f.severity is not Severity.NOTE]
    if not open_findings:
        lines.append("Nothing: every use of torch was converted.")
    else:
        lines.append("Each line of code is marked by `# TODO(msmigrate:CODE)` above its statement.")
    for code, number in sorted(Counter(f.code for f in open_findings).items()):
        rule = RULES[code]
        places = f"{number} place{'s' if number > 1 else ''}"
        lines += ["", f"### {code}, {rule.title}: {places}", "", f"{rule.why} {rule.fix}", ""]
        for found in open_findings:
            if found.code == code:
                place = f"{found.file}:{found.line}" if found.line else str(found.file)
                lines.append(f"* `{place}` {found.message}")
    notes = [f for f in report.findings if f.severity is Severity.NOTE]
    if notes:
        lines += ["", "## Good to know", ""]
        lines += [f"* `{found.file}:{found.line}` {found.code}: {found.message}. {found.why}" for found in notes]
    return "\n".join(lines) + "\n"


def _status(report: Report) -> list[str]:
    """How many lines have which status, and where a person has to look."""
    counts = count_lines(report.files)
    lines = ["", "## Lines that touched torch", "", f"{line_summary(report.files)}.", ""]
    lines += ["| status | lines | meaning |", "|---|---|---|"]
    lines += [f"| {status} | {counts[status.value]:,} | {_MEANING[status]} |" for status in LineStatus]
    review = {file.path: [n for n in file.lines if n.status is LineStatus.REVIEW] for file in report.files}
    if not any(review.values()):
        return lines
    codes = sorted({line.code for found in review.values() for line in found})
    lines += ["", "To review:", ""]
    lines += [f"* {code}, {RULES[code].title}: {RULES[code].why} {RULES[code].fix}" for code in codes]
    lines.append("")
    for path, found in review.items():
        if found:
            more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
            lines.append(f"* `{path}`: {', '.join(f'{n.number} ({n.code})' for n in found[:_SHOWN])}{more}")
    return lines


_MEANING = {
    LineStatus.EXACT: "the MindSpore name means the same, and was executed against torch",
    LineStatus.PROVED: "written differently, and executed against torch",
    LineStatus.REVIEW: "converted; nothing was executed for it in this place",
    LineStatus.UNSUPPORTED: "not converted: no counterpart",
    LineStatus.UNKNOWN: "not converted: its meaning is not known",
}
