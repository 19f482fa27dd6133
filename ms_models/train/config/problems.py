"""`Problems`: several faults of a configuration as one message."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from mappings.errors import UserError

T = TypeVar("T")
HEAD = "config: "


class Problems:
    """Goes on after a fault, so that a person sees all of them at once."""

    def __init__(self) -> None:
        self._texts: list[str] = []

    def attempt(self, make: Callable[[], T]) -> T | None:
        """What `make` gives; None where it raised a UserError, which is noted."""
        try:
            return make()
        except UserError as error:
            self._texts.append(str(error))
            return None

    def add(self, text: str) -> None:
        """Notes a fault."""
        self._texts.append(text)

    def check(self) -> None:
        """Raises a UserError with everything that was noted, on one line."""
        if self._texts:
            first, *others = self._texts
            raise UserError("; ".join([first, *(text.removeprefix(HEAD) for text in others)]))
