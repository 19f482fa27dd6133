"""Options that several commands share, as dataclasses: the fields become options, the command receives the object."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def grouped(function: Callable[..., None]) -> Callable[..., None]:
    """A command whose parameters of dataclass type are replaced by their fields, in their place.

    Args:
        function: its other parameters stay as they are; the fields are annotated as options are.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(function).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            parameters.append(_option(name, hints[name], parameter.default))
            continue
        groups[name] = hints[name]
        kinds = get_type_hints(hints[name], include_extras=True)
        parameters += [_option(one.name, kinds[one.name], one.default) for one in dataclasses.fields(hints[name])]

    def command(**values: Any) -> None:
        made = {
            name: kind(**{one.name: values.pop(one.name) for one in dataclasses.fields(kind)})
            for name, kind in groups.items()
        }
        function(**values, **made)

    command.__name__, command.__doc__, command.__module__ = function.__name__, function.__doc__, function.__module__
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    usual = inspect.Parameter.empty if default is dataclasses.MISSING else default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=usual, annotation=kind)
