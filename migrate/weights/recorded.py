"""Files of a checkpoint against the sizes that its manifest records; digests are a matter of `verify`."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

from mappings.formats.conversion_manifest import NAME as CONVERSION
from mappings.formats.conversion_manifest import ConversionManifest
from mappings.formats.manifest import NAME, FileRecord, Manifest
from mappings.formats.regular_files import is_there
from migrate.report import Finding
from migrate.weights.codes import finding
from migrate.weights.containers import sharded
from migrate.weights.side_files import CARRIED


def recorded(home: Path, container: str | None = None) -> tuple[str, Mapping[str, FileRecord]] | None:
    """Name of the manifest of a directory, and the files it records; None where there is none.

    Args:
        home: the directory.
        container: as which it is read, if somebody says so: other tools have a `manifest.json`, too.

    Raises:
        UserError: it is malformed.
    """
    if container in (None, sharded.NAME) and is_there(home / NAME):
        return NAME, Manifest.read(home).files
    conversion = ConversionManifest.read(home)
    return None if conversion is None else (CONVERSION, conversion.files)


def of_other_size(home: Path, container: str | None = None) -> list[Finding]:
    """Findings for recorded files that are missing, cut, or others: cheap, so that every reader asks first.

    What people do change, a configuration or the files of a tokenizer, is noted; all else is an error.

    Args and errors are those of `recorded`.
    """
    known = recorded(home, container)
    if known is None:
        return []
    name, records = known
    found = []
    for file, record in sorted(records.items()):
        path = home / file
        missing = not path.is_file()
        if not missing and path.stat().st_size == record.bytes:
            continue
        message = "missing" if missing else f"{path.stat().st_size} bytes, {name} says {record.bytes}"
        code = "W027" if any(fnmatch(file, one) for one in CARRIED) else "W010" if missing else "W011"
        found.append(finding(code, message, file=file))
    return found
