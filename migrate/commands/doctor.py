"""`msmigrate doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from migrate.commands.options import Json, ReportFile, finish


def doctor(
    collective: Annotated[bool, typer.Option("--collective", help="Also run an all-reduce on two processes.")] = False,
    json: Json = False,
    report: ReportFile = None,
) -> None:
    """Check this machine: versions, a minimal operation, devices, the launcher."""
    from migrate.check import doctor as body

    finish(body.doctor(collective=collective), json, report)
