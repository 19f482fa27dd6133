"""`requirements*.txt` of the converted repository: torch out, MindSpore in, everything else as it was."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from migrate.code.findings import finding
from migrate.code.torch_packages import TORCH_PACKAGES
from migrate.report import Finding

MINDSPORE = "mindspore==2.10.*"
NUMPY = "numpy>=1.26,<2"
# A requirement starts with its name; what follows is extras, a version, a marker or a comment (PEP 508).
_NAME = re.compile(r"^\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?=$|[\[<>=!~;@#,( ])")
_DECLARING = ("pyproject.toml", "setup.py", "setup.cfg", "environment.yml", "environment.yaml", "Pipfile")


def is_requirements(path: PurePosixPath) -> bool:
    """Whether a file is a pip requirements file by its name."""
    return path.suffix == ".txt" and "requirements" in path.name.lower()


def convert_requirements(text: str, path: str) -> tuple[str, list[Finding]]:
    """The new text, and findings for packages that need torch themselves; unchanged if torch is not in it."""
    lines = text.splitlines(keepends=True)
    names = [_normalized(line) for line in lines]
    findings = [
        finding("M114", f"{name}: {TORCH_PACKAGES[name.replace('-', '_')]}", file=path, line=number)
        for number, name in enumerate(names, 1)
        if name is not None and name.replace("-", "_") in TORCH_PACKAGES
    ]
    if "torch" not in names:
        return text, findings
    result: list[str] = []
    placed = False
    for line, name in zip(lines, names, strict=True):
        end = line[len(line.rstrip("\r\n")) :]
        if name == "torch":
            if not placed:
                result.append(MINDSPORE + end)
                if "numpy" not in names:
                    result[-1] = MINDSPORE + (end or "\n")
                    result.append(NUMPY + end)
            placed = True
        elif name == "numpy":
            result.append(NUMPY + end)
        else:
            result.append(line)
    return "".join(result), findings


def declares_torch(path: PurePosixPath, text: str) -> bool:
    """Whether another file that declares dependencies names torch."""
    return path.name in _DECLARING and re.search(r"(?<![\w.-])torch(?![\w.-])", text) is not None


def _normalized(line: str) -> str | None:
    match = _NAME.match(line)
    return re.sub(r"[-_.]+", "-", match[1]).lower() if match else None
