"""The version of the CANN toolkit, from the files that its installer leaves."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

VERSION = re.compile(r"^\s*version\s*=\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
FULL_NAMES = ("compiler/version.info", "runtime/version.info", "toolkit/version.info", "version.info", "version.cfg")
INSTALL_INFO = "ascend_toolkit_install.info"


def cann_version(home: Path) -> tuple[str, Path] | None:
    """The version of a toolkit, and the file that says so; None where none does.

    Args:
        home: `ASCEND_HOME_PATH`, e.g. `/usr/local/Ascend/ascend-toolkit/latest`.
    """
    for path in _candidates(home):
        if path.is_file() and (found := _version_in(path)) is not None:
            return found, path
    return None


def _candidates(home: Path) -> Iterator[Path]:
    yield from (home / name for name in FULL_NAMES)
    processor = platform.machine()
    for folder in (home, home / f"{processor}-linux", *sorted(home.glob("*-linux"))):
        yield folder / INSTALL_INFO


def _version_in(path: Path) -> str | None:
    # `Version=8.5.0` and `version=8.3.RC1`; bracketed lists of what runs together (`[7.1:8.3]`) are no version.
    for match in VERSION.finditer(path.read_text(encoding="utf-8", errors="replace")):
        if match[1][0].isdecimal():
            return match[1]
    return None
