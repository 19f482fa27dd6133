"""Family files, read by libyaml where it is there: in pure Python the thirty of them take longer than many a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_LOADER = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader


def read_yaml(path: Path) -> Any:
    """Contents of a file: plain data only."""
    return yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)
