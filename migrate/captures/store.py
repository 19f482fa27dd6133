"""What one side computed, on disk: a safetensors file per stage and a manifest. The frameworks never meet."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json

MANIFEST = "manifest.json"
FORMAT = "msmigrate-capture-1"


def first_line(error: Exception) -> str:
    """Type and first line of an exception."""
    first = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[0]}"


class CaptureWriter:
    """Collects tensors stage by stage. The manifest is rewritten after each, so a crash loses one stage only."""

    def __init__(
        self, out: Path, versions: Mapping[str, str], describe: Callable[[Exception], str] = first_line
    ) -> None:
        self.out = out
        self.describe = describe
        self.body: dict[str, Any] = {"format": FORMAT, "versions": dict(versions), "stages": {}, "errors": {}}
        self._write()

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, np.ndarray]]:
        """A mapping to fill with the tensors of a stage; stored at the end, in the order of filling.

        An exception inside is recorded as the reason why the stage has no tensors, and the next stage may go on.
        """
        tensors: dict[str, np.ndarray] = {}
        try:
            yield tensors
            self._store(name, tensors)
        except Exception as error:  # noqa: BLE001 - whatever a framework raises; the comparing process reports it
            self.body["errors"][name] = self.describe(error)
        self._write()

    def _store(self, name: str, tensors: Mapping[str, np.ndarray]) -> None:
        from safetensors.numpy import save_file

        file = f"{name}.safetensors"
        save_file({key: np.asarray(value, order="C") for key, value in tensors.items()}, self.out / file)
        self.body["stages"][name] = {"file": file, "names": list(tensors)}

    def _write(self) -> None:
        temporary = self.out / f"{MANIFEST}.tmp"
        temporary.write_text(json.dumps(self.body, indent=1), encoding="utf-8")
        temporary.replace(self.out / MANIFEST)


@dataclass(frozen=True)
class Capture:
    """A capture read back; tensors are loaded one at a time."""

    out: Path
    versions: dict[str, str]
    stages: dict[str, dict[str, Any]]
    errors: dict[str, str]

    @classmethod
    def read(cls, out: Path) -> Capture:
        """Reads the manifest of a capture.

        Raises:
            UserError: there is none, or it is of another version.
        """
        body = read_json(out / MANIFEST)
        if body.get("format") != FORMAT:
            raise UserError(f"{out / MANIFEST}: format is not {FORMAT!r}")
        return cls(out, body["versions"], body["stages"], body["errors"])

    def names(self, stage: str) -> list[str]:
        """Tensors of a stage in the order they were recorded."""
        return list(self.stages[stage]["names"])

    @contextmanager
    def reader(self, stage: str) -> Iterator[Any]:
        """A function from name to array, for the tensors of a stage."""
        path = self.out / self.stages[stage]["file"]
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                yield arrays.__getitem__
            return
        from safetensors import safe_open

        with safe_open(path, framework="np") as file:
            yield file.get_tensor
