"""Section `model.adapter`: how the runner uses a class that the code converter produced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AdapterConfig:
    """A model class of converted code."""

    repository: str
    """Output directory of `msmigrate code`."""
    module: str
    """Importable name of the module, from the repository, e.g. `model`."""
    class_name: str
    """Name of the class in it."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the constructor."""
