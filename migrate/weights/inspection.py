"""`msmigrate weights inspect`: names, shapes, dtypes, sizes, NaN and Inf counts of a checkpoint or a file."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_weights
from mappings.formats.manifest import NAME, Manifest
from mappings.formats.safetensors import SafetensorsError, TensorEntry, read_header
from migrate.progress import Tracker, quiet
from migrate.report import Report, Stage, Verdict
from migrate.weights.codes import finding

CHUNK = 8 << 20  # bytes read at a time; a multiple of every item size
# Integer type, exponent mask and fraction mask: all exponent bits set is Inf, or NaN where a fraction bit is set too.
MASKS = {
    "F16": ("<u2", 0x7C00, 0x03FF),
    "BF16": ("<u2", 0x7F80, 0x007F),
    "F32": ("<u4", 0x7F80_0000, 0x007F_FFFF),
    "F64": ("<u8", 0x7FF0_0000_0000_0000, 0x000F_FFFF_FFFF_FFFF),
}


def inspect(path: Path, *, track: Tracker = quiet) -> Report:
    """Lists the tensors of a Hugging Face directory, a sharded directory or one safetensors file.

    `facts["tensors"]` holds per tensor name, file, dtype, shape, bytes, and nan and inf (None where the dtype has no
    mask here: integers and packed formats).

    Raises:
        UserError: there is no such path, or it is malformed.
    """
    report = Report("weights inspect", str(path))
    if path.is_file():
        entries, metadata = read_header(path)
        report.facts.update(kind="safetensors file", metadata=metadata)
    elif (path / NAME).is_file():
        manifest = Manifest.read(path)
        files = sorted(name for name in manifest.files if name.endswith(".safetensors"))
        entries = [entry for name in files for entry in read_header(path / name)[0]]
        report.facts.update(kind="sharded checkpoint", family=manifest.family, layout=str(manifest.layout))
        if "step" in manifest.training:
            report.facts["step"] = manifest.training["step"]
    elif path.is_dir():
        weights = read_weights(path)
        entries = [entry for file in weights.files.values() for entry in file.entries]
        report.facts["kind"] = "Hugging Face directory"
    else:
        raise UserError(f"{path}: no such file or directory")
    rows = []
    with track("reading", sum(entry.nbytes for entry in entries)) as advance:
        for entry in entries:
            nan, inf = count_special(entry)
            advance(entry.nbytes)
            if nan or inf:
                message = f"{nan} NaN and {inf} Inf"
                report.findings.append(finding("W015", message, file=entry.path.name, tensor=entry.name))
            rows.append(
                {
                    "name": entry.name,
                    "file": entry.path.name,
                    "dtype": entry.dtype,
                    "shape": list(entry.shape),
                    "bytes": entry.nbytes,
                    "nan": nan,
                    "inf": inf,
                }
            )
    dtypes = {dtype: sum(entry.dtype == dtype for entry in entries) for dtype in sorted({e.dtype for e in entries})}
    report.facts.update(
        files=len({entry.path for entry in entries}),
        tensor_count=len(entries),
        elements=sum(int(np.prod(entry.shape, dtype=object)) for entry in entries),
        bytes=sum(entry.nbytes for entry in entries),
        dtypes=dtypes,
        tensors=rows,
    )
    counted = sum(row["nan"] is not None for row in rows)
    special = sum(bool(row["nan"] or row["inf"]) for row in rows)
    message = f"{special} of {counted} floating-point tensors hold NaN or Inf"
    verdict = Verdict.FAIL if special else Verdict.PASS if counted else Verdict.SKIPPED
    report.stages.append(Stage("finite", verdict, message, counted))
    return report


def count_special(entry: TensorEntry) -> tuple[int | None, int | None]:
    """How many NaN and Inf a tensor holds, by integer masks; (None, None) for dtypes without a mask.

    Raises:
        SafetensorsError: the file became shorter than its header says.
    """
    if entry.dtype not in MASKS:
        return None, None
    kind, exponent, fraction = MASKS[entry.dtype]
    nan = inf = 0
    fd = os.open(entry.path, os.O_RDONLY)
    try:
        position = 0
        while position < entry.nbytes:
            data = os.pread(fd, min(CHUNK, entry.nbytes - position), entry.offset + position)
            data = data[: len(data) - len(data) % entry.itemsize]
            if not data:
                raise SafetensorsError(entry.path, f"ends {entry.nbytes - position} bytes early", entry.name)
            values = np.frombuffer(data, kind)
            special = (values & exponent) == exponent
            if special.any():
                chosen = values[special] & fraction
                nan += int(np.count_nonzero(chosen))
                inf += int(chosen.size - np.count_nonzero(chosen))
            position += len(data)
    finally:
        os.close(fd)
    return nan, inf
