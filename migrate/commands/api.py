"""`msmigrate api`."""

from __future__ import annotations

from typing import Annotated

import typer

from mappings.errors import UserError
from migrate.commands.options import Json


def api(
    name: Annotated[str | None, typer.Argument(help="A torch name: torch.arange, F.gelu, Tensor.view.")] = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Print how much of torch the table covers.")] = False,
    json: Json = False,
) -> None:
    """Say what a torch name becomes in MindSpore, and what proves it."""
    import json as json_module

    if coverage == (name is not None):
        raise UserError("api: give either a torch name or --coverage")
    if name is None:
        from migrate.api import coverage as tables

        found = tables.Coverage().tables()
        typer.echo(json_module.dumps(found, indent=2) if json else tables.text(found))
        return
    from migrate.api import names

    described = names.describe(name)
    typer.echo(json_module.dumps(described, indent=2) if json else names.text(described))
    raise typer.Exit(described["exit_code"])
