"""One torch name: its rows with their evidence, or which of the other answers holds."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from mappings.api import ApiTable, Row, Standing, known_names, load_table
from mappings.api.evidence import passing, read_evidence, row_key
from mappings.errors import UserError

SHORT = {"F": "torch.nn.functional", "nn": "torch.nn", "Tensor": "torch.Tensor", "optim": "torch.optim"}
ASCEND_STANDING = "code-verified, not measured"
"""What holds for every Ascend template: its name exists and its call binds, but no test runs on an Ascend device."""
EXIT_CODES = {Standing.MAPPED: 0, Standing.UNSUPPORTED: 1, Standing.UNMAPPED: 1}


def canonical(name: str, table: ApiTable) -> str:
    """The qualified name behind `arange`, `F.gelu`, `nn.Linear`, `Tensor.view` or `view`.

    Raises:
        UserError: torch has no such public name; the message lists the nearest ones.
    """
    head, dot, rest = name.partition(".")
    guesses = [name, f"{SHORT.get(head, head)}{dot}{rest}", f"torch.{name}", f"torch.Tensor.{name}"]
    guesses.append(f"torch.nn.functional.{name}")
    for guess in guesses:
        if table.known(guess):
            return guess
    raise UserError(f"{name}: torch has no public name like this{_nearest(name, table)}")


def _nearest(name: str, table: ApiTable) -> str:
    every = table.names() | known_names()
    last = name.rpartition(".")[2]
    near = difflib.get_close_matches(name if name.startswith("torch.") else f"torch.{name}", every, 3, 0.8)
    near += [n for n in difflib.get_close_matches(f"torch.Tensor.{last}", every, 2, 0.85) if n not in near]
    return f"; did you mean {' or '.join(near)}?" if near else ""


def describe(name: str) -> dict[str, Any]:
    """Everything about one name: standing, rows, evidence.

    Raises:
        UserError: torch has no such public name.
    """
    table, (evidence, _) = load_table(), read_evidence()
    name = canonical(name, table)
    standing = table.standing(name)
    rows = [_row(row, evidence.get(row_key(row))) for row in table.rows(name)]
    return {"name": name, "standing": standing.value, "exit_code": EXIT_CODES[standing], "rows": rows}


def _row(row: Row, found: Mapping[str, Any] | None) -> dict[str, Any]:
    texts = ("status", "portable", "ascend", "symbol", "returns", "note", "reason", "advice", "versions")
    described = {key: getattr(row, key) for key in texts if getattr(row, key) is not None}
    if row.ascend is not None:
        described["ascend_standing"] = ASCEND_STANDING
    if row.signature is not None:
        described["signature"] = str(row.signature).replace("'", "")
    described |= {key: dict(getattr(row, key)) for key in ("drop", "when") if getattr(row, key)}
    return {**described, "evidence": found, "passing": passing(found)}


def text(described: Mapping[str, Any]) -> str:
    """The description for a terminal."""
    lines = [f"{described['name']}: {described['standing']}"]
    if not described["rows"]:
        lines.append("  torch has this name; no row of the table says anything about it.")
        lines.append("  `msmigrate code` leaves it as it is and reports it.")
    for row in described["rows"]:
        lines += ["", f"  {described['name']}{row.get('signature', '')}    [{row['status']}]"]
        for key in ("portable", "ascend", "symbol", "note", "reason", "advice"):
            if key in row:
                lines.append(f"    {key:9s} {row[key]}")
            if key == "ascend" and key in row:
                lines.append(f"    {'':9s} ({row['ascend_standing']})")
        if "drop" in row:
            drops = [n if v == "any" else f"{n} (only {v})" for n, v in row["drop"].items()]
            lines.append(f"    {'drops':9s} {', '.join(drops)}")
        if "when" in row:
            lines.append(f"    {'when':9s} {', '.join(f'{n} {c}' for n, c in row['when'].items())}")
        lines.append(f"    {'versions':9s} MindSpore {row['versions']}")
        lines.append(f"    {'evidence':9s} {_evidence(row['evidence'])}")
    return "\n".join(lines)


def _evidence(found: Mapping[str, Any] | None) -> str:
    if not found:
        return "none for this row as it stands; run `make test-mappings`"
    made = "; ".join(f"{name} {version}" for name, version in found["versions"].items())
    if "failed" in found:
        return f"FAILED: {found['failed']} ({made})"
    if found.get("refuses"):
        return f"the converter refuses it with reason and advice ({made})"
    parts = [f"{found['cases']} written cases ({', '.join(found['checks'])}) in {', '.join(found['modes'])}"]
    if found["styles"]:
        parts.append(f"call styles: {', '.join(found['styles'])}")
    if samples := found.get("samples"):
        total = sum(samples.values())
        parts.append(f"{samples.get('right', 0)} of {total} op_db samples right, worst error {found['error']:.0e}")
    return "; ".join([*parts, made])
