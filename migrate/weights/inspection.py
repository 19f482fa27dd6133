"""`msmigrate weights inspect`: names, shapes, dtypes, sizes, and what the numbers are like, of any checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.manifest import NAME, Manifest
from mappings.formats.mindspore_ckpt_reader import read_ckpt
from mappings.formats.safetensors import DTYPE_BITS, read_header
from migrate.progress import ByteCount, Tracker, quiet
from migrate.report import Report, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.containers.rank_folders import is_strategy
from migrate.weights.containers.state_dict import PICKLES, Entry, read_state_dict
from migrate.weights.statistics import FLOATS, Statistics, statistics

NUMBERS = ("nan", "inf", "min", "max", "mean", "std", "magnitudes")
THREADS = 2  # numpy leaves the interpreter free while it counts


@dataclass(frozen=True)
class Listed:
    """A tensor of the list."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path
    spans: tuple[tuple[int, int], ...]
    """(First byte, bytes) of its parts in the file."""

    @property
    def nbytes(self) -> int:
        """Size in the file."""
        return sum(size for _, size in self.spans)


def inspect(path: Path, *, track: Tracker = quiet) -> Report:
    """Lists the tensors of a directory or a file: safetensors, pickles of torch, MindSpore's `.ckpt`.

    `facts["tensors"]` holds per tensor name, file, dtype, shape, bytes; nan, inf, min, max, mean, std and a histogram
    of magnitudes (None where elements are packed or complex).

    Raises:
        UserError: there is no such path, nothing in it can be read, or it is malformed.
    """
    report = Report("weights inspect", str(path))
    kind, tensors, facts = _subject(path)
    report.facts.update(kind=kind, **facts)
    rows = []
    with track("reading", ByteCount(sum(t.nbytes for t in tensors))) as advance, ThreadPoolExecutor(THREADS) as pool:
        found = pool.map(lambda t: statistics(t.path, t.dtype, t.spans, t.name), tensors)
        for tensor, numbers in zip(tensors, found, strict=True):
            advance(tensor.nbytes)
            if numbers is not None and (numbers.nan or numbers.inf):
                message = f"{numbers.nan} NaN and {numbers.inf} Inf"
                report.findings.append(finding("W015", message, file=tensor.path.name, tensor=tensor.name))
            rows.append(_row(tensor, path, numbers))
    report.facts.update(
        files=len({tensor.path for tensor in tensors}),
        tensor_count=len(tensors),
        elements=sum(int(np.prod(tensor.shape, dtype=object)) for tensor in tensors),
        bytes=sum(tensor.nbytes for tensor in tensors),
        dtypes=dict(sorted(Counter(tensor.dtype for tensor in tensors).items())),
        tensors=rows,
    )
    counted = sum(tensor.dtype in FLOATS for tensor in tensors)
    special = len(report.findings)
    message = f"{special} of {counted} floating-point tensors hold NaN or Inf"
    verdict = Verdict.FAIL if special else Verdict.PASS if counted else Verdict.SKIPPED
    report.stages.append(Stage("finite", verdict, message, counted))
    return report


def _subject(path: Path) -> tuple[str, list[Listed], dict[str, Any]]:
    """What a path is, its tensors, and what else there is to say about it."""
    if path.is_file():
        if path.suffix == ".safetensors":
            return "safetensors file", list(_safetensors([path])), {"metadata": read_header(path)[1]}
        if path.suffix == ".ckpt":
            return "MindSpore checkpoint file", list(_ckpts([path])), {}
        return "pickled state dict", _entries(read_state_dict(path)), {}
    if not path.is_dir():
        what = "is neither a file nor a directory" if path.exists() else "no such file or directory"
        raise UserError(f"{path}: {what}")
    if (path / NAME).is_file():
        manifest = Manifest.read(path)
        files = [path / name for name in sorted(manifest.files) if name.endswith(".safetensors")]
        facts: dict[str, Any] = {"family": manifest.family, "layout": str(manifest.layout)}
        if "step" in manifest.training:
            facts["step"] = manifest.training["step"]
        return "sharded checkpoint", list(_safetensors(files)), facts
    if any(path.glob("model*.safetensors*")) or any(path.glob("*.bin*")):
        return "Hugging Face directory", _entries(read_state_dict(path)), {}
    files = sorted(file for file in path.rglob("*") if file.suffix in (".safetensors", ".ckpt") and file.is_file())
    weights = [file for file in files if not is_strategy(file)]
    if not weights:
        raise UserError(f"{path}: holds no .safetensors, .ckpt or {', '.join(PICKLES)} under a known name")
    tensors = [t for file in weights for t in (_ckpts([file]) if file.suffix == ".ckpt" else _safetensors([file]))]
    return "directory of MindSpore", tensors, {}


def _entries(entries: Mapping[str, Entry]) -> list[Listed]:
    return [
        Listed(e.name, e.dtype, e.shape, e.path, ((e.offset, _bytes(e.dtype, e.shape, e.strides)),))
        for e in entries.values()
    ]


def _bytes(dtype: str, shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """Size of a tensor; of a view, of the memory between its first and last element."""
    count = int(np.prod(shape, dtype=object))
    if strides is not None and count:
        count = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    return count * DTYPE_BITS[dtype] // 8


def _safetensors(files: Sequence[Path]) -> Iterator[Listed]:
    for file in files:
        for entry in read_header(file)[0]:
            yield Listed(entry.name, entry.dtype, entry.shape, file, ((entry.offset, entry.nbytes),))


def _ckpts(files: Sequence[Path]) -> Iterator[Listed]:
    for file in files:
        # A rank all of whose tensors are in the files of others has an empty one.
        for tensor in read_ckpt(file).tensors if file.stat().st_size else ():
            yield Listed(tensor.name, tensor.dtype, tensor.shape, file, tensor.spans)


def _row(tensor: Listed, subject: Path, numbers: Statistics | None) -> dict[str, Any]:
    file = tensor.path.relative_to(subject) if subject.is_dir() else tensor.path.name
    described = {"name": tensor.name, "file": str(file), "dtype": tensor.dtype, "shape": list(tensor.shape)}
    if numbers is None:
        return {**described, "bytes": tensor.nbytes, **dict.fromkeys(NUMBERS)}
    return {
        **described,
        "bytes": tensor.nbytes,
        "nan": numbers.nan,
        "inf": numbers.inf,
        "min": numbers.minimum,
        "max": numbers.maximum,
        "mean": numbers.mean,
        "std": numbers.deviation,
        "magnitudes": numbers.bars(),
    }
