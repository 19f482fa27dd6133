"""Text to MindRecord: find, encode in several processes, split, pack, write; the whole directory appears at once."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from dataclasses import field as dataclass_field
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from mappings.formats.manifest import fsync_directory
from ms_models.data.documents import Span, find_spans, fraction_of
from ms_models.data.packing import Packer
from ms_models.data.records import TRAIN, VALIDATION, PreparedData, ShardWriter
from ms_models.data.tokenization import Encoded, encode, read_tokenizer

SUFFIXES = (".txt", ".md", ".py", ".jsonl")
SHARD_BYTES = 256 << 20
COUNTED = (TRAIN, VALIDATION, "empty", "undecodable", "longer_than_a_sequence")
NAMED_PROBLEMS = 5
"""How many undecodable documents the summary names; all are counted."""

Tracker = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""`with track(title, total) as advance: advance(n)`."""


@contextmanager
def quiet(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A tracker that shows nothing."""
    yield lambda amount: None


def prepare(
    text: Sequence[Path | str],
    tokenizer: Path,
    out: Path,
    *,
    seq_length: int,
    validation_fraction: float = 0.02,
    shard_bytes: int = SHARD_BYTES,
    seed: int = 0,
    processes: int = 1,
    suffixes: Sequence[str] = SUFFIXES,
    field: str = "text",
    max_bytes: int | None = None,
    track: Tracker = quiet,
) -> dict[str, Any]:
    """Makes a directory of prepared data. The same arguments give the same bytes, whatever `processes` is.

    Args:
        text: files, directories, or `stdlib` for the source of Python's own library.
        tokenizer: model directory with `tokenizer.json`.
        out: directory to make; must not exist, or be empty.
        seq_length: tokens per row.
        validation_fraction: share of the documents held out, in [0, 1).
        shard_bytes: size of a shard, counted in its tokens' bytes.
        seed: of the order of documents and of the split.
        processes: that encode.
        suffixes: of the files taken from a directory.
        field: of the text in a JSON-lines record.
        max_bytes: stop taking documents once this much text is reached; None takes all.
        track: progress, in bytes of text.

    Returns:
        A flat summary: documents, tokens, sequences, what was left out.

    Raises:
        UserError: bad argument or input, with file and place.
    """
    _check(out, seq_length, validation_fraction, processes, max_bytes)
    facts = read_tokenizer(tokenizer)
    spans = _limit(find_spans(text, suffixes, seed), max_bytes)
    request = {
        "text": [str(source) for source in text], "suffixes": list(suffixes), "field": field, "seq_length": seq_length,
        "validation_fraction": validation_fraction, "shard_bytes": shard_bytes, "seed": seed, "max_bytes": max_bytes,
    }  # fmt: skip
    staging = out.with_name(f".{out.name}.tmp{os.getpid()}")
    staging.mkdir(parents=True)
    try:
        tally = Tally()
        with (
            ShardWriter(staging, TRAIN, seq_length, shard_bytes) as train,
            ShardWriter(staging, VALIDATION, seq_length, shard_bytes) as validation,
            track("preparing text", sum(span.stop - span.start for span in spans)) as advance,
        ):
            writers = {TRAIN: train, VALIDATION: validation}
            packers = {name: Packer(seq_length, facts.eos, facts.pad) for name in writers}
            for span, documents in encode(spans, tokenizer, field, processes):
                for document in documents:
                    if tally.keeps(document, span, seq_length):
                        held_out = fraction_of(f"split:{document.key}", seed) < validation_fraction
                        name = VALIDATION if held_out else TRAIN
                        tally.counts[name] += 1
                        writers[name].extend(packers[name].add(document.tokens))
                advance(span.stop - span.start)
            for name, packer in packers.items():
                writers[name].extend(packer.flush())
        _check_result(train.rows, validation.rows, validation_fraction, tally)
        data = PreparedData(
            seq_length=seq_length,
            splits={name: writer.split() for name, writer in writers.items()},
            tokenizer={**asdict(facts), "directory": str(facts.directory), "largest_id": tally.largest_id},
            documents=tally.to_dict(),
            request=request,
        )
        data.write(staging)
        _move(staging, out)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    return summary(data)


@dataclass
class Tally:
    """What became of the documents."""

    counts: Counter[str] = dataclass_field(default_factory=Counter)
    lengths: Counter[int] = dataclass_field(default_factory=Counter)
    """Documents by the bit length of their number of tokens."""
    problems: list[str] = dataclass_field(default_factory=list)
    largest_id: int = 0

    def keeps(self, document: Encoded, span: Span, seq_length: int) -> bool:
        """Counts a document; False for one that holds no text."""
        if not document.decodable:
            self.counts["undecodable"] += 1
            self.problems.append(f"{span.path}: {document.key} is not UTF-8")
            return False
        if not len(document.tokens):
            self.counts["empty"] += 1
            return False
        self.counts["longer_than_a_sequence"] += len(document.tokens) >= seq_length
        self.lengths[len(document.tokens).bit_length()] += 1
        self.largest_id = max(self.largest_id, int(document.tokens.max()))
        return True

    def to_dict(self) -> dict[str, Any]:
        """Counts, some examples of undecodable documents, and the histogram of lengths in tokens."""
        return {
            **{name: self.counts[name] for name in COUNTED},
            "undecodable_examples": self.problems[:NAMED_PROBLEMS],
            "length_histogram": {f"{1 << n - 1}..{(1 << n) - 1}": self.lengths[n] for n in sorted(self.lengths)},
        }


def summary(data: PreparedData) -> dict[str, Any]:
    """The figures of prepared data as one flat mapping."""
    return {
        "seq_length": data.seq_length,
        **{f"{name}_sequences": split.rows for name, split in data.splits.items()},
        **{f"{name}_tokens": split.tokens for name, split in data.splits.items()},
        **{f"documents_{name}": value for name, value in data.documents.items()},
        "tokenizer_sha256": data.tokenizer["sha256"],
        "vocabulary": data.tokenizer["vocabulary"],
    }


def _check(out: Path, seq_length: int, validation_fraction: float, processes: int, max_bytes: int | None) -> None:
    if seq_length < 2:
        raise UserError(f"seq_length must be at least 2, found {seq_length}")
    if not 0 <= validation_fraction < 1:
        raise UserError(f"validation_fraction must be at least 0 and below 1, found {validation_fraction}")
    if processes < 1:
        raise UserError(f"processes must be at least 1, found {processes}")
    if max_bytes is not None and max_bytes < 1:
        raise UserError(f"max_bytes must be at least 1, found {max_bytes}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: exists and is no directory")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty; choose another directory or remove it")


def _limit(spans: list[Span], max_bytes: int | None) -> list[Span]:
    if max_bytes is None:
        return spans
    kept, size = [], 0
    for span in spans:
        if size + span.stop - span.start <= max_bytes:
            kept.append(span)
            size += span.stop - span.start
    if not kept:
        raise UserError(f"max_bytes={max_bytes} is less than every document; raise it")
    return kept


def _check_result(train: int, validation: int, fraction: float, tally: Tally) -> None:
    if not train:
        raise UserError(
            f"text: no row left to train on ({sum(tally.lengths.values())} documents found); give more text"
        )
    if fraction and not validation:
        raise UserError(
            f"text: none of {tally.counts[TRAIN]} documents fell into the validation share of {fraction}; "
            "raise validation_fraction, or set it to 0"
        )


def _move(staging: Path, out: Path) -> None:
    if out.is_dir():
        out.rmdir()
    staging.rename(out)
    fsync_directory(out.parent)
