"""Which commit the working directory is at, for the record of a run."""

from __future__ import annotations

import subprocess
from pathlib import Path

TIMEOUT_S = 10.0


def git_state(directory: Path) -> dict[str, str]:
    """`git_commit` and `git_changes` of a working directory; empty where it is none, or git is not there.

    Args:
        directory: in a working tree, or not.
    """
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return {}
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    count = "unknown" if changes is None else str(len(changes.splitlines()))
    return {"git_commit": commit.strip(), "git_changes": "none" if count == "0" else f"{count} changed files"}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        result = subprocess.run(
            ["git", "-C", str(directory), *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None  # no git here: the record goes without
    return result.stdout if result.returncode == 0 else None
