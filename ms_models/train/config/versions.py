"""Versions of what a run depends on."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

VERSIONED = ("msmigrate", "mindspore", "numpy")


def versions() -> dict[str, str]:
    """By name; the same keys in checkpoints and saved configurations."""
    result = {"python": platform.python_version()}
    for name in VERSIONED:
        try:
            result[name] = version(name)
        except PackageNotFoundError:
            result[name] = "not installed as a package"
    return result
