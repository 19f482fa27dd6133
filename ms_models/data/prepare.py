"""Text to MindRecord: find, encode in several processes, split, pack, write; the whole directory appears at once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from ms_models.data.documents import Span, find_spans, fraction_of
from ms_models.data.encoding import Encodings, Workers, default_processes
from ms_models.data.packing import packer_for
from ms_models.data.pieces import Cutter
from ms_models.data.reading import ReadingOptions, Task, tasks
from ms_models.data.recipe import Recipe
from ms_models.data.records import TRAIN, VALIDATION, PreparedData
from ms_models.data.shards import ShardWriter
from ms_models.data.staging import INTERVAL_S, Staging
from ms_models.data.tally import Tally
from ms_models.data.tokenization import TokenizerFacts, read_tokenizer

Tracker = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""`with track(title, total) as advance: advance(n)`."""


@contextmanager
def quiet(title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A tracker that shows nothing."""
    yield lambda amount: None


def prepare(
    recipe: Recipe,
    tokenizer: Path,
    out: Path,
    *,
    processes: int | None = 1,
    fresh: bool = False,
    track: Tracker = quiet,
    say: Callable[[str], None] = lambda line: None,
    journal_s: float = INTERVAL_S,
) -> dict[str, Any]:
    """Makes a directory of prepared data. The same recipe gives the same bytes, whatever `processes` is.

    A preparation that was interrupted goes on from its journal, if text, tokenizer and recipe are the same.

    Args:
        recipe: what to make.
        tokenizer: model directory with `tokenizer.json`.
        out: directory to make; must not exist, or be empty.
        processes: that encode, and write shards; None takes `default_processes`.
        fresh: forget an interrupted preparation and begin anew.
        track: progress, in bytes of text.
        say: receives a line when an interrupted preparation goes on.
        journal_s: seconds between two journals.

    Returns:
        A flat summary: documents, tokens, sequences, what was left out.

    Raises:
        UserError: bad argument or input, with file and place.
    """
    if processes is None:
        processes = default_processes()
    if processes < 1:
        raise UserError(f"processes must be at least 1, found {processes}")
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: exists and is no directory")
    if out.is_dir() and any(out.iterdir()):
        raise UserError(f"{out}: exists and is not empty; choose another directory or remove it")
    facts = read_tokenizer(tokenizer)
    spans = _spans(recipe)
    options = ReadingOptions(recipe.field, recipe.text_unit, recipe.skip_null)
    with Staging(out, fresh=fresh) as staging, Workers(processes, tokenizer, options) as workers:
        preparation = _Preparation(recipe, facts, staging, workers)
        done = preparation.resume(spans)
        try:
            with track("preparing text", sum(span.size for span in spans)) as advance:
                todo = preparation.skip(_tasks(spans, recipe.text_unit), done, advance)
                if done:
                    say(f"{staging.directory}: going on after {done} of its parts")
                for task, encodings in workers.encode(todo):
                    if preparation.add(task, encodings):
                        break
                    advance(task.size)
                    if staging.is_due(journal_s):
                        preparation.note(spans)
            data = preparation.finish()
        except KeyboardInterrupt:
            if staging.has_journal:
                say(f"what was done is kept in {staging.directory}, the same command goes on from there")
            raise
        except UserError as error:
            if not staging.has_journal:
                raise
            raise UserError(
                f"{error}; what was done is kept in {staging.directory}, the same command goes on from there"
            ) from error
        data.write(staging.directory)
        staging.publish()
    return summary(data)


class _Preparation:
    """What is under way: one packer and one writer a split, and the tally."""

    def __init__(self, recipe: Recipe, facts: TokenizerFacts, staging: Staging, workers: Workers) -> None:
        self.recipe, self.facts, self.staging, self.workers = recipe, facts, staging, workers
        self.tally = Tally([*recipe.text, *recipe.validation_text])
        self.cutter = Cutter(recipe, facts)
        if self.cutter.room < 1:
            raise UserError(f"seq_length {recipe.seq_length} has no room for text beside the special tokens; raise it")
        self.packers = {name: packer_for(recipe, facts.pad) for name in (TRAIN, VALIDATION)}
        self.writers = {
            name: ShardWriter(staging.directory, name, recipe.seq_length, recipe.shard_bytes, workers.submit)
            for name in self.packers
        }
        self.tasks = 0

    def add(self, task: Task, encodings: Encodings) -> bool:
        """Packs and writes the documents of one task; True when there are enough."""
        pieces: dict[str, list[np.ndarray]] = {name: [] for name in self.packers}
        source = task.span.source
        is_enough = False
        for key, problem, tokens in encodings.documents() if encodings.keys else ():
            if not self.tally.has_text(source, key, problem, tokens):
                continue
            split, cut = self._split(source, key), self.cutter.cut(tokens)
            self.tally.placed(source, split, cut)
            pieces[split] += cut.pieces
            if self.recipe.max_tokens is not None and self.tally.total(TRAIN) >= self.recipe.max_tokens:
                is_enough = True
                break
        for name, parts in pieces.items():
            if parts:
                self.writers[name].add(self.packers[name].add(parts))
                self.writers[name].collect(most=self.workers.processes)
        self.tasks += 1
        return is_enough

    def finish(self) -> PreparedData:
        """Writes what is left."""
        for name, writer in self.writers.items():
            with writer:
                writer.add(self.packers[name].flush())
        splits = {name: writer.split() for name, writer in self.writers.items()}
        self._check(splits[TRAIN].rows, splits[VALIDATION].rows)
        facts = {**asdict(self.facts), "directory": str(self.facts.directory), "largest_id": self._largest_id()}
        return PreparedData(
            seq_length=self.recipe.seq_length,
            splits=splits,
            tokenizer=facts,
            documents=self.tally.summary(),
            request=self.recipe.to_dict(),
            packing=self.recipe.packing,
            isolates=self.recipe.isolates,
            sources=self.tally.sources(),
        )

    def note(self, spans: Sequence[Span]) -> None:
        """Writes the journal."""
        state = {
            "corpus": self._fingerprint(spans),
            "recipe": self.recipe.to_dict(),
            "tasks": self.tasks,
            "tally": self.tally.state(),
            "writers": {name: writer.state() for name, writer in self.writers.items()},
        }
        self.staging.write(state, {name: packer.state() for name, packer in self.packers.items()})
        for writer in self.writers.values():
            writer.remove_raw()

    def resume(self, spans: Sequence[Span]) -> int:
        """Goes on from the journal, where there is one.

        Returns:
            The number of tasks that are done.

        Raises:
            UserError: it is of another corpus or recipe.
        """
        if not self.staging.has_journal:
            return 0
        state, arrays = self.staging.read()
        where, advice = self.staging.directory, "restore that, or begin anew with --fresh"
        now = self.recipe.to_dict()
        changed = [
            f"{name} was {old}, now it is {now[name]}" for name, old in state["recipe"].items() if old != now[name]
        ]
        if changed:
            raise UserError(f"{where}: was begun with another recipe ({'; '.join(changed)}); {advice}")
        if state["corpus"] != self._fingerprint(spans):
            raise UserError(f"{where}: was begun with other text or another tokenizer; {advice}")
        self.tasks = state["tasks"]
        self.tally.restore(state["tally"])
        for name, writer in self.writers.items():
            writer.restore(state["writers"][name])
            self.packers[name].restore(arrays.get(name, {}))
        return self.tasks

    def skip(self, todo: Iterator[Task], count: int, advance: Callable[[int], None]) -> Iterator[Task]:
        """The tasks after the first `count`."""
        for task in islice(todo, count):
            advance(task.size)
        return todo

    def _split(self, source: int, key: str) -> str:
        if source >= len(self.recipe.text):
            return VALIDATION
        return VALIDATION if fraction_of(f"split:{key}", self.recipe.seed) < self.recipe.held_out else TRAIN

    def _largest_id(self) -> int:
        return max([self.tally.largest_id, *self.cutter.before.tolist(), *self.cutter.after.tolist(), self.facts.pad])

    def _fingerprint(self, spans: Sequence[Span]) -> str:
        """Of files (names, sizes, times) and tokenizer."""
        parts = [(s.key, s.group, s.start, s.stop, s.path.stat().st_size, s.path.stat().st_mtime_ns) for s in spans]
        return hashlib.sha256(repr((self.facts.sha256, parts)).encode()).hexdigest()

    def _check(self, train: int, validation: int) -> None:
        lengths, fraction = self.tally.lengths, self.recipe.held_out
        if not train:
            raise UserError(f"text: no row left to train on ({lengths.documents} documents found); give more text")
        if not validation and (fraction or self.recipe.validation_text):
            documents = sum(counts[TRAIN] for counts in self.tally.documents)
            raise UserError(
                f"text: none of {documents} documents fell into the validation share of {fraction}; "
                "raise validation_fraction, or set it to 0"
            )


def _spans(recipe: Recipe) -> list[Span]:
    settings = {"field": recipe.field, "text_unit": recipe.text_unit}
    sources = [*recipe.text, *recipe.validation_text]
    return _limit(find_spans(sources, recipe.suffixes, recipe.seed, **settings), recipe.max_bytes)


def _tasks(spans: Sequence[Span], text_unit: str) -> Iterator[Task]:
    for span in spans:
        yield from tasks(span, text_unit)


def summary(data: PreparedData) -> dict[str, Any]:
    """The figures of prepared data as one flat mapping."""
    documents = {name: value for name, value in data.documents.items() if name != "lengths"}
    return {
        "seq_length": data.seq_length,
        "packing": data.packing,
        **{f"{name}_sequences": split.rows for name, split in data.splits.items()},
        **{f"{name}_tokens": split.tokens for name, split in data.splits.items()},
        **{f"{name}_padding_share": round(data.padding_share(name), 4) for name in data.splits},
        **{f"documents_{name}": value for name, value in documents.items()},
        "tokenizer_sha256": data.tokenizer["sha256"],
        "vocabulary": data.tokenizer["vocabulary"],
    }


def _limit(spans: list[Span], max_bytes: int | None) -> list[Span]:
    if max_bytes is None:
        return spans
    kept, size = [], 0
    for span in spans:
        if size + span.size <= max_bytes:
            kept.append(span)
            size += span.size
    if not kept:
        raise UserError(f"max_bytes={max_bytes} is less than every document; raise it")
    return kept
