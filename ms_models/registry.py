"""`Registry`: which class builds checkpoints of which `model_type`, for one kind of model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from mappings.errors import UserError

T = TypeVar("T")


class Registry(Generic[T]):
    """Classes by `model_type`.

    Args:
        what: the kind of model, for messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self._classes: dict[str, type[T]] = {}

    def register(self, model_type: str, model: type[T]) -> None:
        """Makes `from_pretrained` build `model` for checkpoints of `model_type`.

        Raises:
            UserError: the type is taken; the message names who registered it.
        """
        if (owner := self._classes.get(model_type)) is not None:
            raise UserError(
                f"model_type {model_type!r} is already registered by {_named(owner)}; {_named(model)} needs another "
                f"model_type, in the class and in its config.json, e.g. {model_type}_custom"
            )
        self._classes[model_type] = model

    def registered(self) -> list[str]:
        """Model types that `from_pretrained` can build, sorted."""
        return sorted(self._classes)

    def find(self, directory: Path, config: Mapping[str, Any]) -> type[T]:
        """The class for a `config.json`.

        Raises:
            UserError: none is registered; the message lists those that are.
        """
        if (kind := self._classes.get(config["model_type"])) is None:
            known = ", ".join(self.registered())
            raise UserError(
                f"{directory}: no {self.what} is registered for model_type {config['model_type']!r} "
                f"(registered: {known})"
            )
        return kind


def _named(cls: type) -> str:
    """A class with the file and line where it stands."""
    name = f"{cls.__module__}.{cls.__qualname__}"
    try:
        return f"{name} ({Path(inspect.getfile(cls)).name}:{inspect.getsourcelines(cls)[1]})"
    except (OSError, TypeError):  # made without a file
        return name
