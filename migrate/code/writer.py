"""The output directory: converted files, everything else as it was, the helpers, `MIGRATION.md`, `report.json`."""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from mappings.errors import UserError
from migrate.code.project import Project

_ABSOLUTE = re.compile(r"^from (?:ms_models\.(?:compat|parallel)|mappings)\b\.?([\w.]*)(?= import )", re.MULTILINE)
MARKER = "MIGRATION.md"
PACKAGE = "ms_compat"


def check_output(repo: Path, out: Path, force: bool) -> None:
    """Refuse an output directory that would damage something.

    Raises:
        UserError: inside the repository, around it, or existing.
    """
    source, target = repo.resolve(), out.resolve()
    if target == source or source in target.parents:
        raise UserError(f"{out}: lies inside the repository {repo}; give a directory outside of it")
    if target in source.parents:
        raise UserError(f"{out}: contains the repository {repo}; give another directory")
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file; give a directory")
    if any(out.iterdir()):
        if not force:
            raise UserError(f"{out}: exists; give another directory, or --force to replace it")
        if not (out / MARKER).is_file():
            raise UserError(
                f"{out}: holds no {MARKER}, so it is no earlier output and is not replaced; remove it yourself"
            )


def write_tree(
    project: Project, out: Path, texts: Mapping[PurePosixPath, bytes], helpers: Mapping[PurePosixPath, set[str]]
) -> None:
    """Write the output beside its place and move it there when it is complete.

    Args:
        project: the repository; files without a text are copied.
        out: output directory; an earlier one is replaced.
        texts: new contents by relative path, also of files that the repository does not have.
        helpers: modules of `ms_compat` by the folder that gets the package.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        for path in [*(s.path for s in project.sources), *project.others]:
            target = staging / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(project.root / path, target, follow_symlinks=False)
        for path, text in texts.items():
            target = staging / path
            if target.is_symlink():
                target.unlink()
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text)
        for folder, names in helpers.items():
            vendor(staging / folder / PACKAGE, names)
        staging.chmod(0o755)
        if out.exists():
            shutil.rmtree(out)
        staging.rename(out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise


def vendor(directory: Path, names: Iterable[str]) -> None:
    """Copy helper modules, and those that they import, into a package directory."""
    for name in sorted({"__init__", *with_dependencies(names)}):
        target = directory / _helper_file(name)[1]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(helper_text(name), encoding="utf-8")


def with_dependencies(names: Iterable[str]) -> set[str]:
    """Helper modules together with those that they import, by dotted names within the package."""
    found, pending = set[str](), list(names)
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        package = _package(name)
        for node in ast.walk(ast.parse(helper_text(name))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = package[: len(package) - node.level + 1]
                modules = [node.module] if node.module else [alias.name for alias in node.names]
                for module in modules:
                    parts = [*base, *module.split(".")]
                    pending += [".".join(parts[:end]) for end in range(1, len(parts) + 1)]  # packages above it, too
    return found


def helper_text(name: str) -> str:
    """The source of a helper as it stands in the output. It is copied, never imported: no MindSpore is needed here.

    Most helpers are files of `ms_models/compat`. Cut layers (`--shard`) come from `ms_models/parallel` with the layout
    of `mappings`; their imports are made relative, so that the output needs neither.
    """
    up = "." * (1 + len(_package(name)))
    return _ABSOLUTE.sub(rf"from {up}\1", _helper_file(name)[0].read_text(encoding="utf-8"))


def _package(name: str) -> list[str]:
    """The package, within that of all helpers, that relative imports of a helper start from."""
    parts = name.split(".")
    return parts if _helper_file(name)[1].name == "__init__.py" and name != "__init__" else parts[:-1]


def _helper_file(name: str) -> tuple[Path, Path]:
    """Where the source of a helper is, and where it stands in the output; a package is its `__init__.py`."""
    places = (Path(*name.split(".")).with_suffix(".py"), Path(*name.split("."), "__init__.py"))
    return next(
        (folder / place, place) for folder in _helper_folders() for place in places if (folder / place).is_file()
    )


@functools.cache
def _helper_folders() -> tuple[Path, ...]:
    folders = []
    for package, *below in (("ms_models", "compat"), ("ms_models", "parallel"), ("mappings",)):
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            raise UserError(f"the package {package} is not installed beside migrate; reinstall msmigrate")
        folders.append(Path(spec.submodule_search_locations[0]).joinpath(*below))
    return tuple(folders)
