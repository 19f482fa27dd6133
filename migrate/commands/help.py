"""Help with its options in groups, as plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

OPTIONS = "Options"


class GroupedCommand(TyperCommand):
    """A command whose help has a heading for each `rich_help_panel` of its options, in order, the others last."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes all parameters; called by the command line library."""
        groups: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else OPTIONS
                groups.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for name in sorted(groups, key=lambda name: name == OPTIONS):
            with formatter.section(name):
                formatter.write_dl(groups[name])
