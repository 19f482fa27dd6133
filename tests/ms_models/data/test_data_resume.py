"""A preparation that is interrupted goes on to the same bytes, wherever it was; what has changed is refused."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappings.errors import UserError
from ms_models.data import documents, encoding, shards, staging
from ms_models.data.prepare import prepare
from ms_models.data.recipe import Recipe
from tests.ms_models.data.data_helpers import contents, random_texts
from tests.ms_models.train.run_helpers import write_tokenizer

SHARD = 8 * 12 * 30  # 30 rows of 8


class Killed(BaseException):
    """Not an error that anybody handles."""


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    write_tokenizer(directory)
    return directory


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Of 14 parts, in two files."""
    monkeypatch.setattr(documents, "SPAN_BYTES", 1200)
    for name, seed in (("a", 1), ("b", 2)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in random_texts(80, seed=seed))
        (tmp_path / f"{name}.jsonl").write_text(lines)
    sources = (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl"))
    return Recipe(text=sources, seq_length=8, validation_fraction=0.2, shard_bytes=SHARD)


def dying_after(parts: int) -> Any:
    """A tracker under which the preparation dies."""
    left = parts

    @contextmanager
    def track(title: str, total: int) -> Iterator[Callable[[int], None]]:
        def advance(amount: int) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Killed

        yield advance

    return track


@pytest.mark.parametrize("packing", ["document", "fit"])
def test_the_same_bytes_after_dying_again_and_again(
    packing: Any, recipe: Recipe, tokenizer: Path, tmp_path: Path
) -> None:
    recipe = replace(recipe, packing=packing)
    expected = prepare(recipe, tokenizer, tmp_path / "whole")
    deaths, said = 0, []
    while not (tmp_path / "out").exists():
        try:
            # every third part is written down; dying after some more loses up to two of them
            found = prepare(
                recipe, tokenizer, tmp_path / "out", track=dying_after(3 * deaths + 2), journal_s=0, say=said.append
            )
        except Killed:
            deaths += 1
    assert deaths > 3 and len(said) == deaths
    assert ".out.partial: going on after" in said[-1]
    assert found == expected
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert len([name for name in contents(tmp_path / "out") if name.endswith(".mindrecord")]) > 3


WRITTEN = ("left-overs", "journal.json.new", "rows", "mindrecord")


@pytest.mark.parametrize("where", WRITTEN)
def test_the_same_bytes_after_dying_while_something_is_written(
    where: str, recipe: Recipe, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(recipe, tokenizer, tmp_path / "whole")
    count = 0

    def at_the_fifth(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == 5:
            raise Killed

    with monkeypatch.context() as patch:
        if where == "left-overs":
            real = np.savez
            half = b"PK half"
            patch.setattr(
                staging.np,
                "savez",
                lambda file, **parts: (file.write(half), at_the_fifth(), file.seek(0), real(file, **parts)),
            )
        elif where == "journal.json.new":
            dump = json.dump
            patch.setattr(
                staging.json,
                "dump",
                lambda body, file: (file.write('{"num'), at_the_fifth(), file.seek(0), dump(body, file)),
            )
        elif where == "rows":
            append = shards.ShardWriter._append
            patch.setattr(shards.ShardWriter, "_append", lambda self, rows: (append(self, rows), at_the_fifth()))
        else:
            write = shards.write_shard
            patch.setattr(shards, "write_shard", lambda raw, length: (write(raw, length), at_the_fifth())[0])
        with pytest.raises(Killed):
            prepare(recipe, tokenizer, tmp_path / "out", journal_s=0)
    assert (tmp_path / ".out.partial" / "journal.json").is_file()
    prepare(recipe, tokenizer, tmp_path / "out", journal_s=0)
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def interrupted(recipe: Recipe, tokenizer: Path, out: Path) -> Path:
    with pytest.raises(Killed):
        prepare(recipe, tokenizer, out, track=dying_after(6), journal_s=0)
    return out.with_name(f".{out.name}.partial")


def test_what_has_changed_is_refused_and_fresh_begins_anew(recipe: Recipe, tokenizer: Path, tmp_path: Path) -> None:
    prepare(recipe, tokenizer, tmp_path / "whole")
    kept = interrupted(recipe, tokenizer, tmp_path / "out")
    with pytest.raises(UserError, match=r"another recipe \(seq_length was 8, now it is 16\); restore that, or begin"):
        prepare(replace(recipe, seq_length=16), tokenizer, tmp_path / "out")
    path = Path(recipe.text[1])
    before = path.stat()
    path.write_text(path.read_text().replace("w1 ", "w2 "))
    with pytest.raises(UserError, match="other text or another tokenizer"):
        prepare(recipe, tokenizer, tmp_path / "out")
    path.write_text(path.read_text())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert kept.is_dir()
    prepare(replace(recipe, seed=7), tokenizer, tmp_path / "out", fresh=True)
    assert not kept.exists()
    prepare(replace(recipe, seed=7), tokenizer, tmp_path / "other")
    assert contents(tmp_path / "out") == contents(tmp_path / "other")


def test_what_is_kept_must_be_whole(recipe: Recipe, tokenizer: Path, tmp_path: Path) -> None:
    kept = interrupted(recipe, tokenizer, tmp_path / "out")
    for rows in kept.glob("train-*.rows"):
        os.truncate(rows, 0)
    with pytest.raises(UserError, match=r"train-0000\d\.rows: missing or cut short; prepare the data anew"):
        prepare(recipe, tokenizer, tmp_path / "out")
    (kept / "journal.json").write_text("{")
    with pytest.raises(UserError, match=r"journal\.json"):
        prepare(recipe, tokenizer, tmp_path / "out")


def test_two_preparations_do_not_write_to_one_place(recipe: Recipe, tokenizer: Path, tmp_path: Path) -> None:
    with staging.Staging(tmp_path / "out"), pytest.raises(UserError, match="another preparation is writing there"):
        prepare(recipe, tokenizer, tmp_path / "out")
    assert not list(tmp_path.glob(".out*"))


def test_a_bad_line_and_a_full_disk_are_one_line_and_what_was_done_stays(
    recipe: Recipe, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(recipe, tokenizer, tmp_path / "whole")

    class Full:
        """A file on a disk that has become full."""

        def __init__(self, file: Any) -> None:
            self.file = file

        def write(self, data: Any) -> int:
            if self.file.tell() > 20 * 8 * 12:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return int(self.file.write(data))

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    real = Path.open
    with monkeypatch.context() as patch:
        patch.setattr(
            Path,
            "open",
            lambda self, mode="r", **k: Full(real(self, mode, **k)) if mode == "ab" else real(self, mode, **k),
        )
        with pytest.raises(UserError) as caught:
            prepare(recipe, tokenizer, tmp_path / "out", journal_s=0)
    assert "train-00000.rows: cannot be written (No space left on device); what was done is kept in" in str(
        caught.value
    )
    prepare(recipe, tokenizer, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


COMMAND = """
import sys
from pathlib import Path
from ms_models.data import documents
from ms_models.data.prepare import prepare
from ms_models.data.recipe import Recipe
if __name__ == "__main__":
    documents.SPAN_BYTES = 20000
    recipe = Recipe(text=(sys.argv[1],), seq_length=8, shard_bytes=8 * 12 * 2000, packing="fit")
    print(prepare(recipe, Path(sys.argv[2]), Path(sys.argv[3]), processes=2, journal_s=0.05))
"""


@pytest.mark.slow
def test_killed_processes_leave_nothing_behind_but_what_goes_on(tokenizer: Path, tmp_path: Path) -> None:
    """`kill -9` at eight moments; about two minutes."""
    lines = "".join(json.dumps({"text": text}) + "\n" for text in random_texts(30_000))
    (tmp_path / "a.jsonl").write_text(lines)
    (tmp_path / "run.py").write_text(COMMAND)

    def start(out: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "run.py", "a.jsonl", "tokenizer", out]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, start_new_session=True)

    assert start("whole").wait(300) == 0
    moments = 0
    for extra in range(40):
        process = start("out")
        journal, before = tmp_path / ".out.partial" / "journal.json", time.time()
        while process.poll() is None and not (journal.is_file() and journal.stat().st_mtime > before):
            time.sleep(0.01)
        time.sleep(0.2 * (extra % 4))
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            moments += 1
        process.wait(60)
        if (tmp_path / "out").exists() or moments == 8:
            break
    assert moments >= 3
    assert (tmp_path / "out").exists() or start("out").wait(300) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    deadline = time.time() + 20
    while (left := _running(tmp_path)) and time.time() < deadline:
        time.sleep(0.2)
    assert not left


def _running(directory: Path) -> list[str]:
    """Processes whose working directory this is."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if (process / "cwd").resolve() == directory.resolve():
                    found.append(process.name)
            except OSError:
                continue  # it has ended, or is somebody else's
    return found


@pytest.mark.slow
def test_a_process_that_dies_is_told(tokenizer: Path, tmp_path: Path) -> None:
    """About ten seconds: processes start and import MindSpore."""
    (tmp_path / "a.txt").write_text("w1 w2")
    spans = documents.find_spans([tmp_path / "a.txt"], (), 0)
    with encoding.Workers(2, tokenizer, encoding.ReadingOptions()) as workers:
        assert workers._pool is not None
        workers._pool.submit(os._exit, 3)
        with pytest.raises(UserError, match="a process died that encodes text or writes shards"):
            list(workers.encode(encoding.Task(span) for span in spans for _ in range(9)))
    with encoding.Workers(2, tokenizer, encoding.ReadingOptions()) as workers:
        writer = shards.ShardWriter(tmp_path, "train", 8, SHARD, workers.submit)
        workers.submit(os._exit, 3)
        with pytest.raises(UserError, match="died"), writer:
            writer.add(np.ones((40, 3, 8), np.int32))
            time.sleep(2)
            writer.add(np.ones((40, 3, 8), np.int32))
