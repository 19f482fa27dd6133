"""`environment.yml` of conda: its own packages, and those that pip installs; MindSpore comes by pip."""

from __future__ import annotations

import copy
import re
from collections.abc import Set
from typing import Any

import yaml

from migrate.code.dependencies.swap import MINDSPORE, NUMPY, VERSIONS, goes, is_framework, name_of, swap
from migrate.code.findings import finding
from migrate.report import Finding

_ITEM = re.compile(r"^(\s*)-\s+(['\"]?)([^'\"#]*?)\2(\s*#.*)?$")
_CHANNELS = ("pytorch", "pytorch-nightly", "pytorch-lts")


def is_environment(text: str) -> bool:
    """Whether a YAML file describes a conda environment."""
    body = _read(text)
    return isinstance(body, dict) and isinstance(body.get("dependencies"), list)


def convert_environment(text: str, path: str, imported: Set[str] = frozenset()) -> tuple[str, list[Finding]]:
    """The new text, and findings for what cannot be rewritten; unchanged if torch is not in it."""
    body = _read(text)
    conda = [item for item in body["dependencies"] if isinstance(item, str)]
    lists = [item["pip"] for item in body["dependencies"] if isinstance(item, dict) and "pip" in item]
    by_pip = [str(item) for item in (lists[0] if lists else None) or ()]
    swapped = swap(by_pip, imported)
    findings = [
        finding("M114", f"{p.name}: {p.advice}", file=path, line=_line(text, by_pip[p.place])) for p in swapped.problems
    ]
    names = {_conda_name(item) for item in conda}
    if not any(map(is_framework, names)) and not any(is_framework(name_of(item)) for item in by_pip):
        return text, findings
    # What conda installs, pip does not install again.
    items = [tuple(t for t in texts if name_of(t) != NUMPY or NUMPY not in names) for texts in swapped.items]
    there = {NUMPY} & names | {name_of(t) for texts in items for t in texts}
    added = [package + VERSIONS[package] for package in (MINDSPORE, NUMPY) if package not in there]
    new = _edited(text, items, added, imported, has_pip="pip" in names)
    wanted = copy.deepcopy(body)
    kept = [_kept(item) for item in conda if not _leaves(item, imported)]
    wanted["dependencies"] = [*kept, *([] if "pip" in names else ["pip"]), {"pip": [*sum(items, ()), *added]}]
    wanted["channels"] = [channel for channel in body.get("channels") or () if channel not in _CHANNELS]
    if _canonical(_read(new)) != _canonical(wanted):
        return text, [*findings, finding("M115", "torch is required in a form that is not rewritten", file=path)]
    return new, findings


def _edited(text: str, items: list[tuple[str, ...]], added: list[str], imported: Set[str], *, has_pip: bool) -> str:
    """The text line by line: `items` in place of what pip installs, `added` behind them."""
    result: list[str] = []
    section, pip, indent, end, pip_end = "", None, "", 0, 0
    remaining = iter(items)
    for line in text.splitlines():
        if line[:1] not in (" ", "-", "#", ""):
            section = line.split(":")[0]
        item = _ITEM.match(line)
        if item is None or section not in ("channels", "dependencies"):
            result.append(line)
            continue
        depth, value, comment = item[1], item[3].strip(), item[4] or ""
        if section == "channels":
            result += [] if value in _CHANNELS else [line]
            continue
        if pip is not None and len(depth) > len(pip):
            texts = next(remaining, (value,))
            result += [line] if texts == (value,) else [f"{depth}- {t}{comment}" for t in texts]
            pip_end, indent = len(result), depth
        else:
            if value == "pip:":
                pip, indent = depth, f"{depth}  "
            if not _leaves(value, imported):
                result.append(line if _kept(value) == value else f"{depth}- {_kept(value)}{comment}")
            end, pip_end = len(result), len(result) if value == "pip:" else pip_end
            indent = indent if pip is not None else f"{depth}  "
    lines = [f"{indent}- {t}" for t in added]
    outer = indent[:-2] if pip is None else pip
    if pip is None:
        lines = [f"{outer}- pip:", *lines]
    own = [] if has_pip else [f"{outer}- pip"]
    place = end if pip is None else pip_end
    if pip is None:
        result[place:place] = [*own, *lines]
    else:
        result[place:place] = lines
        start = next(n for n, line in enumerate(result) if line.strip().startswith("- pip:"))
        result[start:start] = own
    return "\n".join(result) + ("\n" if text.endswith("\n") else "")


def _conda_name(item: str) -> str | None:
    """Name in `channel::name=1.2=build`."""
    return name_of(re.split(r"[=<>!~\s]", item.split("::")[-1])[0])


def _leaves(item: str, imported: Set[str]) -> bool:
    name = _conda_name(item)
    return is_framework(name) or goes(name, imported)


def _kept(item: str) -> str:
    return NUMPY + VERSIONS[NUMPY] if _conda_name(item) == NUMPY and "1.26" not in item else item


def _canonical(body: Any) -> Any:
    """Conda does not mind the order of packages."""
    if not isinstance(body, dict):
        return None
    plain = sorted(item for item in body["dependencies"] if isinstance(item, str))
    by_pip = [sorted(item["pip"]) for item in body["dependencies"] if isinstance(item, dict)]
    return {**body, "channels": body.get("channels") or [], "dependencies": [plain, by_pip]}


def _line(text: str, value: str) -> int | None:
    return next((n for n, line in enumerate(text.splitlines(), 1) if value in line), None)


def _read(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return None
