"""`Sighting`: a place in source code that has to do with a model type."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["class", "config", "model"]
"""A configuration class that bears the name; a registration of the name; a registration of a model for a class."""


@dataclass(frozen=True)
class Sighting:
    """One place."""

    kind: Kind
    name: str | None
    """The model type; None where the source does not say it (it is computed, or no class of that name was found)."""
    file: str
    """Relative to what was scanned."""
    line: int
    origin: str
    """Of whose source: `repository`, or the name of a package."""
    class_name: str = ""
    """Of the configuration."""
    exist_ok: bool = False
    """Whether the registration says that the name may be taken."""

    @property
    def place(self) -> str:
        """For a message."""
        where = "" if self.origin == REPOSITORY else f"{self.origin}: "
        return f"{where}{self.file}:{self.line}"


REPOSITORY = "repository"
