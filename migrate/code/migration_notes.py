"""`MIGRATION.md` of the output: what was done, what is left, in the order in which a person would work."""

from __future__ import annotations

from collections import Counter

from migrate.code.findings import CODES
from migrate.report import Report, Severity


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
    if facts["helpers"]:
        names = ", ".join(f"`{name}`" for name in facts["helpers"])
        lines.append(f"* Helpers that came along in `ms_compat/`: {names}. They stand alone and may be edited.")
    lines += ["", "## What is left", ""]
    open_findings = [f for f in report.findings if f.severity is not Severity.NOTE]
    if not open_findings:
        lines.append("Nothing: every use of torch was converted.")
    else:
        lines.append("Each place is marked by a line `# TODO(msmigrate:CODE)` above its statement.")
    for code, number in sorted(Counter(f.code for f in open_findings).items()):
        entry = CODES[code]
        lines += ["", f"### {code}: {number} places", "", f"{entry.why} {entry.fix}", ""]
        for found in open_findings:
            if found.code == code:
                place = f"{found.file}:{found.line}" if found.line else str(found.file)
                lines.append(f"* `{place}` {found.message}")
    notes = [f for f in report.findings if f.severity is Severity.NOTE]
    if notes:
        lines += ["", "## Good to know", ""]
        lines += [f"* `{found.file}:{found.line}` {found.code}: {found.message}. {found.why}" for found in notes]
    return "\n".join(lines) + "\n"
