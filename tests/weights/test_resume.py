"""A conversion killed at any step goes on with --resume to the same bytes; old output stays until the new is there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights import command, conversion
from migrate.weights.command import convert, verify
from migrate.weights.containers import sharded
from migrate.weights.destinations import Destination
from migrate.weights.engine import execute, mover, plan

TP2 = ParallelLayout(tp=2)
HERE = Path(__file__).parent


def test_kill_at_any_step_and_resume(tmp_path):
    write_model(tmp_path / "hf", config("llama", attention_bias=True), dtype="BF16", shards=2)
    write_model(tmp_path / "other", config("llama"), dtype="BF16", seed=5)
    (tmp_path / "work").mkdir()
    arguments = [str(tmp_path / name) for name in ("hf", "other", "work")]
    done = subprocess.run(
        [sys.executable, str(HERE / "killed_conversions.py"), *arguments, "6"],
        cwd=HERE.parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=240,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert len([r for r in results if not r["force"]]) >= 16 and len([r for r in results if r["force"]]) >= 20
    for result in results:
        assert result["killed"] == signal.SIGKILL, result
        assert result["status"] == 0 and result["value"][1] == 0, result
        assert result["same"] and result["kept"] and result["whole"], result
        assert result["traces"] == ["expected", "old", "out"], result
    # Not everything is done again: of the kills in the later half, all but the last few find finished batches.
    assert sum(result["value"][2] > 0 for result in results) > len(results) // 3


@pytest.fixture
def halted(tmp_path, monkeypatch):
    """A conversion that failed after its first batches were safe; what it did is kept."""
    write_model(tmp_path / "hf", config("llama"), dtype="BF16")
    monkeypatch.setattr(plan, "BATCH", 2000)
    monkeypatch.setattr(execute, "SYNC_BYTES", 1)
    real, calls = mover.Mover.unit, []

    def unit(self, rows, *, direct):
        calls.append(rows)
        if len(calls) > 20:
            raise OSError(5, "Input/output error")
        real(self, rows, direct=direct)

    with monkeypatch.context() as patched:
        patched.setattr(mover.Mover, "unit", unit)
        with pytest.raises(UserError, match=r"what is finished was kept, go on with --resume"):
            convert(tmp_path / "hf", tmp_path / "out", layout=TP2, threads=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.journal", ".out.partial", "hf"]
    return tmp_path


def test_failure_keeps_what_is_safe_and_resume_does_the_rest(halted):
    report = convert(halted / "hf", halted / "out", layout=TP2, resume=True)
    assert report.exit_code == 0 and report.facts["batches_resumed"] > 0
    assert 0 < report.facts["bytes_moved"] < report.facts["bytes_minimum"]
    assert verify(halted / "out", source=halted / "hf").exit_code == 0
    convert(halted / "hf", halted / "again", layout=TP2)
    for path in (halted / "again").iterdir():
        assert path.read_bytes() == (halted / "out" / path.name).read_bytes()
    assert sorted(path.name for path in halted.iterdir()) == ["again", "hf", "out"]


def test_without_resume_it_begins_again_and_says_so(halted):
    report = convert(halted / "hf", halted / "out", layout=TP2)
    assert [found.code for found in report.findings if found.code == "W018"] == ["W018"]
    assert "batches_resumed" not in report.facts
    assert sorted(path.name for path in halted.iterdir()) == ["hf", "out"]


def test_resume_refuses_another_plan_or_a_changed_source(halted):
    before = sorted(path.name for path in halted.iterdir())
    with pytest.raises(UserError, match=r"begun for another conversion \(plan differ"):
        convert(halted / "hf", halted / "out", layout=ParallelLayout(tp=4), resume=True)
    os.utime(halted / "hf/model.safetensors")
    with pytest.raises(UserError, match=r"begun for another conversion \(sources differ"):
        convert(halted / "hf", halted / "out", layout=TP2, resume=True)
    assert sorted(path.name for path in halted.iterdir()) == before


def test_resume_with_nothing_to_resume(tmp_path):
    write_model(tmp_path / "hf", config("llama"))
    assert convert(tmp_path / "hf", tmp_path / "out", layout=TP2, resume=True).exit_code == 0
    with pytest.raises(UserError, match="not empty"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, resume=True)


def test_damaged_journal_is_not_trusted(halted):
    journal = halted / ".out.journal"
    journal.write_bytes(journal.read_bytes() + b'{"batches": 5}\n')
    report = convert(halted / "hf", halted / "out", layout=TP2, resume=True)
    assert report.exit_code == 0 and "batches_resumed" not in report.facts
    assert verify(halted / "out", source=halted / "hf").exit_code == 0


@pytest.mark.parametrize("change", [Path.unlink, lambda path: os.truncate(path, 5000)], ids=["removed", "cut"])
def test_a_file_that_was_lost_meanwhile_is_made_again(halted, change):
    change(halted / ".out.partial/model-rank00000.safetensors")
    report = convert(halted / "hf", halted / "out", layout=TP2, resume=True)
    assert report.exit_code == 0
    assert verify(halted / "out", source=halted / "hf").exit_code == 0


def test_torn_last_line_is_ignored(halted):
    journal = halted / ".out.journal"
    journal.write_bytes(journal.read_bytes() + b'{"batches":[9')
    report = convert(halted / "hf", halted / "out", layout=TP2, resume=True)
    assert report.exit_code == 0 and report.facts["batches_resumed"] > 0
    assert verify(halted / "out", source=halted / "hf").exit_code == 0


def test_second_conversion_to_one_output_is_refused(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config("llama"))
    real = conversion.execute

    def run(*arguments, **options):
        with pytest.raises(UserError, match="another conversion to this output is running"):
            convert(tmp_path / "hf", tmp_path / "out", layout=TP2, force=True)
        return real(*arguments, **options)

    monkeypatch.setattr(conversion, "execute", run)
    assert convert(tmp_path / "hf", tmp_path / "out", layout=TP2).exit_code == 0


PLACES = {
    "tokenizer": (conversion, "copy_files"),
    "config": (Path, "write_text"),
    "sharded": (sharded.Manifest, "write"),
    "hf": (command, "hash_file"),
}


@pytest.mark.parametrize("where", ["tokenizer", "config", "last"])
@pytest.mark.parametrize("container", ["sharded", "hf", "mindspore", "strategy", "iteration", "ckpt"])
def test_a_failure_in_the_small_files_at_the_end_keeps_what_was_copied(tmp_path, monkeypatch, container, where):
    """They are made anew; links, checksums and headers that the first run wrote do no harm."""

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    write_model(tmp_path / "hf", config("llama"))
    layout = ParallelLayout(tp=2, dp=2) if container in ("strategy", "iteration") else ParallelLayout()
    destination = Destination(container, layout, crc=container in ("mindspore", "ckpt"))
    options = {"destination": destination, "cast": "F64"}  # so that config.json is written, not copied
    place = PLACES.get(container if where == "last" else where, (command, "_conversion_manifest"))
    with monkeypatch.context() as patched:
        patched.setattr(*place, fail)
        with pytest.raises(UserError, match=r"out: writing failed \(No space .* device\); what is finished was kept"):
            convert(tmp_path / "hf", tmp_path / "out", **options)
    report = convert(tmp_path / "hf", tmp_path / "out", **options, resume=True)
    assert report.exit_code == 0 and report.facts["batches_resumed"] and report.facts["bytes_moved"] == 0
    convert(tmp_path / "hf", tmp_path / "again", **options)
    for path in (path for path in (tmp_path / "again").rglob("*") if path.is_file()):
        assert path.read_bytes() == (tmp_path / "out" / path.relative_to(tmp_path / "again")).read_bytes(), path
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "hf", "out"]
