"""`conversion_manifest.json`: what a conversion wrote into a directory whose format has no manifest of its own.

Digests for `verify`; the spelling, which names alone may not tell; and the record of the files of the Hugging Face
source, so that a conversion back gives the very same files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import SHA256, FileRecord
from mappings.formats.regular_files import is_there

NAME = "conversion_manifest.json"
FORMAT = "msmigrate-conversion-1"


@dataclass(frozen=True)
class ConversionManifest:
    """Contents of the file."""

    container: str
    spelling: str
    files: Mapping[str, FileRecord]
    """By path relative to the directory, with forward slashes; every file but this one."""
    source: Mapping[str, Any]
    """Record of the files of a Hugging Face source; empty where there was none."""
    versions: Mapping[str, str]

    def text(self) -> str:
        """Of the file."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @classmethod
    def read(cls, directory: Path) -> ConversionManifest | None:
        """The manifest of a directory; None where it has none.

        Raises:
            UserError: malformed, of another version, or with a name that leads out of the directory.
        """
        path = directory / NAME
        if not is_there(path):
            return None
        body = read_json(path)
        if body.pop("format", None) != FORMAT:
            raise UserError(f"{path}: format is not {FORMAT!r}")
        try:
            files = {name: FileRecord(**record) for name, record in body["files"].items()}
            manifest = cls(**{**body, "files": files})
        except (KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: malformed ({error!r})") from error
        texts = (manifest.container, manifest.spelling)
        if not all(isinstance(t, str) for t in texts) or not isinstance(manifest.source, dict):
            raise UserError(f"{path}: malformed (container, spelling or source)")
        if not files:
            raise UserError(f"{path}: lists no files")
        for name, record in files.items():
            parts = PurePosixPath(name).parts
            if not parts or ".." in parts or name.startswith("/") or not name.isprintable():
                raise UserError(f"{path}: file {name!r} is outside the directory")
            if type(record.bytes) is not int or record.bytes < 0 or not SHA256.fullmatch(str(record.sha256)):
                raise UserError(f"{path}: malformed record of {name!r}")
        return manifest
