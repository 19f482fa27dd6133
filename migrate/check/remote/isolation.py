"""How foreign code is run: a process with a home and caches of its own, without network where that is allowed."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from migrate.processes import run

UNSHARE = ("unshare", "--user", "--map-root-user", "--net", "--")
"""A network of its own, which has no way out; needs no rights where user namespaces are allowed."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy")


@cache
def has_own_network() -> bool:
    """Whether this system lets a process have a network of its own."""
    try:
        return run([*UNSHARE, "true"], 10.0).returncode == 0
    except OSError:
        return False  # no such program


def prefix() -> list[str]:
    """What to put before a command."""
    return list(UNSHARE) if has_own_network() else []


def described() -> str:
    """What keeps the process from the network, in words."""
    if has_own_network():
        return "in a process without network (unshare)"
    return "in a process whose connections are refused (no unshare here)"


def environment(home: Path) -> dict[str, str]:
    """Variables of the process: its home and caches, no proxies, no accelerators."""
    cache = home / "huggingface"
    return {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TMPDIR": str(home),
        "HF_HOME": str(cache),
        "HF_HUB_CACHE": str(cache / "hub"),
        "HF_MODULES_CACHE": str(cache / "modules"),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: "" for proxy in PROXIES for name in (proxy, proxy.upper())},
    }
