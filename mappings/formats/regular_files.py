"""Opening files of a checkpoint: regular ones, or links to them. A pipe would wait for ever, a device do anything."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Opens a file for reading.

    Raises:
        OSError: it cannot be opened, or is a directory, a pipe, a socket or a device.
    """
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "is no regular file", str(path))
    return path.open("rb")


def is_there(path: Path) -> bool:
    """Whether a name exists, be it a link that leads nowhere: reading it then says what is wrong."""
    return os.path.lexists(path)
