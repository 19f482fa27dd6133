"""C311 to C313, C402 and C70x: what prepared data says of itself fits the model and the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mappings.families.positions import first_position
from mappings.formats.manifest import hash_file
from migrate.check.codes import finding
from migrate.check.positions import positions
from migrate.check.special_ids import claims, show
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

SAME = (("seq_length", "sequences of"), ("isolates", "separated documents"))


def shards_are_there(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Every shard has the size that the description gives."""
    for data in subject.data_sets:
        for split in ((data.body or {}).get("splits") or {}).values():
            for name, record in (split.get("files") or {}).items():
                tally.add()
                path, expected = data.path / name, record.get("bytes")
                size = path.stat().st_size if path.is_file() else None
                if size != expected:
                    what = "is missing" if size is None else f"has {size} bytes, {data.where} says {expected}"
                    yield finding("C701", f"{data.name}/{name} {what}", file=f"{data.name}/{name}")


def tokenizer_is_the_models(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The data was made with this model's tokenizer, special ids and vocabulary."""
    path = subject.directory / "tokenizer.json"
    own = hash_file(path).sha256 if path.is_file() and any(data.tokenizer for data in subject.data_sets) else None
    for data in subject.data_sets:
        if own is not None and isinstance(digest := data.tokenizer.get("sha256"), str):
            tally.add()
            if own != digest:
                message = f"made with a tokenizer.json of SHA-256 {digest[:12]}..., the model's is {own[:12]}..."
                yield finding("C312", message, file=data.where, field="tokenizer.sha256")
        for role in ("eos", "pad"):
            said, value = claims(subject, role), data.tokenizer.get(role)
            if value is None or not said:
                continue
            tally.add()
            if value not in {i for claim in said for i in claim.ids}:
                message = f"{role}: data.json says {value}, {said[0].file} says {show(said[0])}"
                yield finding("C311", message, file=data.where, field=f"tokenizer.{role}")
        largest = data.tokenizer.get("largest_id")
        if type(largest) is int and subject.vocab_size is not None:
            tally.add()
            if largest >= subject.vocab_size:
                message = f"the data holds id {largest}, the model has ids 0 to {subject.vocab_size - 1}"
                yield finding("C313", message, file=data.where, field="tokenizer.largest_id")


def rows_fit_positions(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Rows are no longer than the model's positions."""
    field_name, limit = positions(subject.config)
    for data in subject.data_sets:
        length = (data.body or {}).get("seq_length")
        if type(length) is int and type(limit) is int and limit > 0:
            tally.add()
            if length > (room := limit - first_position(subject.config)):
                message = f"rows of {length} tokens, {field_name} is {limit}"
                message += f", of which {room} can be used" * (room != limit)
                yield finding("C402", message, file=data.where, field="seq_length")
            asked = subject.section("data").get("seq_length")
            if type(asked) is int and not data.is_opened and asked != length:
                message = f"data.seq_length is {asked}, the rows have {length} tokens"
                yield finding("C703", message, file=data.where, field="seq_length")


def parts_blend(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """Parts of a blend are of one kind. The tokenizer of each is compared with the model's."""
    parts = [data for data in subject.data_sets if data.is_prepared and not data.is_opened]
    for data in parts[1:]:
        for field, words in SAME:
            tally.add()
            first, other = (part.body.get(field) for part in (parts[0], data) if part.body is not None)
            if first != other:
                message = f"{words} {other}, {parts[0].name} has {first}: they cannot be blended"
                yield finding("C703", message, file=data.where, field=field)


def rows_last(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """There are as many rows as the run reads, or as often as `data.max_epochs` allows."""
    train = subject.section("train")
    sizes = [_whole(train, "steps", 0), _whole(train, "micro_batch_size", 1), _whole(train, "accumulation", 1)]
    dp = _whole(subject.section("layout"), "dp", 1)
    parts = [data for data in subject.data_sets if not data.is_opened] or subject.data_sets
    total = sum(data.weight for data in parts)
    if not all(sizes) or not dp:
        return
    limit = subject.section("data").get("max_epochs")
    for data in parts:
        rows = data.rows("train")
        if rows is None:
            continue
        tally.add()
        needed = sizes[0] * sizes[1] * sizes[2] * dp * data.weight / total
        if rows == 0:
            yield finding("C704", "no rows to train on", file=data.where, field="splits.train.rows")
            continue
        epochs = needed / rows
        how = f"{sizes[0]} steps of {sizes[1] * sizes[2] * dp} rows read {rows} rows {epochs:.2f} times"
        if isinstance(limit, int | float) and epochs > limit:
            yield finding("C704", f"{how}, data.max_epochs is {limit:g}", file=data.where, field="splits.train.rows")
        elif epochs > 1:
            yield finding("C705", how, file=data.where, field="splits.train.rows")


def validation_is_there(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """A run that evaluates has rows to evaluate on."""
    every = _whole(subject.section("train"), "eval_every", 0)
    parts = [data for data in subject.data_sets if data.rows("validation") is not None]
    if not every or not parts:
        return
    tally.add()
    if not any(data.rows("validation") for data in parts):
        message = f"train.eval_every is {every}, no data has rows for validation"
        yield finding("C706", message, file=parts[0].where, field="splits.validation.rows")


def _whole(section: dict[str, Any], name: str, default: int) -> int:
    value = section.get(name, default)
    return value if type(value) is int and value > 0 else 0


ASSERTIONS = (
    shards_are_there,
    tokenizer_is_the_models,
    rows_fit_positions,
    parts_blend,
    rows_last,
    validation_is_there,
)
