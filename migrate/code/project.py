"""The repository to convert: its files, their module names, and which module an import means."""

from __future__ import annotations

import functools
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mappings.errors import UserError

SKIPPED_DIRECTORIES = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        ".venv",
        "venv",
        "node_modules",
        "__pycache__",
        ".mypy_cache",
        ".ruff_cache",
        ".pytest_cache",
    }
)

_TORCH_IMPORT = re.compile(r"^\s*(?:import|from)\b.*\btorch\b", re.MULTILINE)


@dataclass(frozen=True)
class SourceFile:
    """One Python file of the repository."""

    path: PurePosixPath
    """Relative to the repository."""
    module: str
    """Dotted name from the repository root, e.g. `pkg.model`; a package is named by its directory."""
    text: str | None
    """None: not readable as Python source; `fault` says why."""
    fault: str | None = None
    encoding: str = "utf-8"

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @functools.cached_property
    def imports_torch(self) -> bool:
        """Whether the file imports torch itself; only then is an unknown object worth a question."""
        return bool(_TORCH_IMPORT.search(self.text or ""))


class Project:
    """All files of a repository; nothing of it is ever imported."""

    def __init__(self, root: Path, sources: list[SourceFile], others: list[PurePosixPath]) -> None:
        self.root = root
        self.sources = sources
        self.others = others
        self._by_module = {source.module: source for source in sources}

    def module(self, name: str) -> SourceFile | None:
        """The file of a module name as `SourceFile.module` spells it."""
        return self._by_module.get(name)

    def find(self, name: str, importer: SourceFile) -> str | None:
        """Which of our modules `import name` means in a file, or None when it is not ours.

        A script sees the modules beside it, everything sees those of the root and of `src/`.
        """
        for prefix in (".".join(importer.path.parent.parts), ".".join(self.import_root(importer).parts), "", "src"):
            candidate = f"{prefix}.{name}" if prefix else name
            if candidate in self._by_module:
                return candidate
        return None

    def import_root(self, source: SourceFile) -> PurePosixPath:
        """The folder that has to be on `sys.path` for a file to be imported: the one around its outermost package."""
        folder = source.path.parent
        while folder.parts and ".".join(folder.parts) in self._by_module:
            folder = folder.parent
        return folder


def load_project(root: Path) -> Project:
    """List and read a repository.

    Raises:
        UserError: no directory, or no Python file in it.
    """
    if not root.is_dir():
        raise UserError(f"{root}: not a directory; give the root of a PyTorch repository")
    sources, others = [], []
    for path in _files(root):
        relative = PurePosixPath(path.relative_to(root).as_posix())
        if path.suffix == ".py" and not path.is_symlink():
            sources.append(_read(path, relative))
        else:
            others.append(relative)
    if not sources:
        raise UserError(f"{root}: no Python files; give the root of a PyTorch repository")
    return Project(root, sources, others)


def _files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.iterdir()):
        if path.is_dir() and not path.is_symlink():
            if path.name not in SKIPPED_DIRECTORIES:
                yield from _files(path)
        else:
            yield path


def _read(path: Path, relative: PurePosixPath) -> SourceFile:
    parts = relative.with_suffix("").parts
    if parts[-1] == "__init__":
        parts = parts[:-1]
    module = ".".join(parts)
    try:
        # The coding cookie decides; line ends are kept because the output must differ only where it was converted.
        content = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)  # from bytes: an error names no path
        text = content.decode(encoding)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        return SourceFile(relative, module, None, f"cannot be read as Python source ({error})")
    return SourceFile(relative, module, text, encoding=encoding)
