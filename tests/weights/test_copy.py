"""Copying: slow paths give the same bytes, and what goes wrong is named and leaves no output."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hf_checkpoints import config, tensors_of, write_model

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights import conversion
from migrate.weights.command import convert, export, verify
from migrate.weights.engine import execute as execution
from migrate.weights.engine import mover

TP2 = ParallelLayout(tp=2)
ROOT = Path(__file__).parents[2]


@pytest.fixture
def source(tmp_path):
    write_model(tmp_path / "hf", config("llama", attention_bias=True), dtype="BF16", shards=2)
    return tmp_path / "hf"


def both_ways(source):
    """The tensors of a conversion to two ranks, and of the export of that."""
    convert(source, source.parent / "out", layout=TP2)
    export(source.parent / "out", source.parent / "back")
    ranks = [(source.parent / "out" / f"model-rank{rank:05d}.safetensors").read_bytes() for rank in (0, 1)]
    return ranks, tensors_of(source.parent / "back")


def use_no_kernel_copy(monkeypatch):
    monkeypatch.setattr(mover, "kernel_copy", lambda *arguments: 0)


def use_refused_kernel_copy(monkeypatch):
    def refuse(*arguments):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)


def use_short_kernel_copy(monkeypatch):
    real = os.copy_file_range
    monkeypatch.setattr(os, "copy_file_range", lambda s, t, count, *rest: real(s, t, min(count, 7), *rest))


def use_short_reads_and_writes(monkeypatch):
    use_no_kernel_copy(monkeypatch)
    pread, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, buffers, offset: pread(fd, [buffers[0][:5]], offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, buffer, offset: pwrite(fd, buffer[:11], offset))


def use_tiny_blocks(monkeypatch):
    use_no_kernel_copy(monkeypatch)
    monkeypatch.setattr(mover, "SOFT", 100)  # a little over one row of the widest strided tensor


@pytest.mark.parametrize(
    "prepare",
    [use_no_kernel_copy, use_refused_kernel_copy, use_short_kernel_copy, use_short_reads_and_writes, use_tiny_blocks],
)
def test_every_path_gives_the_same_bytes(source, monkeypatch, prepare):
    with monkeypatch.context() as patched:
        prepare(patched)
        ranks, back = both_ways(source)
    assert back == tensors_of(source)
    for name in ("out", "back"):
        (source.parent / name).rename(source.parent / f"slow-{name}")
    assert both_ways(source)[0] == ranks
    assert verify(source.parent / "slow-out", source=source).exit_code == 0


def test_progress_adds_up(source):
    from contextlib import contextmanager

    seen = {}

    @contextmanager
    def track(title, total):
        seen[title] = [total, 0]

        def advance(amount):
            seen[title][1] += amount

        yield advance

    convert(source, source.parent / "out", layout=TP2, track=track)
    assert set(seen) == {"copying"}
    assert all(total == done > 0 for total, done in seen.values())


@pytest.mark.parametrize("strided", [False, True])
def test_failed_copy_names_the_tensor_and_keeps_nothing(source, monkeypatch, strided):
    name = "model.layers.1.mlp.down_proj.weight" if strided else "model.layers.1.self_attn.k_proj.bias"
    real = mover.Mover.unit

    def fail(self, rows, *, direct):
        if self.plan.targets[rows[0].target.tensor].name == name:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, rows, direct=direct)

    monkeypatch.setattr(mover.Mover, "unit", fail)
    with pytest.raises(UserError, match=f"tensor '{name}': copying failed: Input/output error; nothing was kept"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


def test_out_of_memory_is_an_error_with_a_name(source, monkeypatch):
    def fail(self, rows, *, direct):
        raise MemoryError

    monkeypatch.setattr(mover.Mover, "unit", fail)
    with pytest.raises(UserError, match=r"tensor 'model\..*': copying failed: out of memory; give a smaller memory"):
        convert(source, source.parent / "out", layout=TP2)


def test_source_that_shrinks_while_copying_is_noticed(source, monkeypatch):
    real = execution.execute

    def shrink(plan, *arguments, **options):
        for path in source.glob("*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
        return real(plan, *arguments, **options)

    monkeypatch.setattr(conversion, "execute", shrink)
    with pytest.raises(UserError, match=r"tensor '.*': copying failed: the source file became shorter"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


def test_source_that_is_written_while_copying_is_noticed(source, monkeypatch):
    real = execution.execute

    def touch(plan, *arguments, **options):
        done = real(plan, *arguments, **options)
        os.utime(next(source.glob("*.safetensors")))
        return done

    monkeypatch.setattr(conversion, "execute", touch)
    with pytest.raises(UserError, match="a file changed while it was copied"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


FEW_DESCRIPTORS = """
import resource, sys
from pathlib import Path
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export
source, out, back = map(Path, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
layout = ParallelLayout(tp=4, pp=2)
codes = [convert(source, out, layout=layout, threads=2).exit_code, export(out, back, threads=2).exit_code]
sys.exit(sum(codes))
"""


def test_more_files_than_may_be_open(tmp_path):
    """Sixty files of weights, 40 descriptors: files are opened when needed and closed when others are."""
    write_model(tmp_path / "hf", config("llama", num_hidden_layers=8), dtype="BF16", shards=60)
    arguments = [str(tmp_path / name) for name in ("hf", "out", "back")]
    subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS, *arguments], cwd=ROOT, timeout=120, check=True)
    assert tensors_of(tmp_path / "back") == tensors_of(tmp_path / "hf")
    assert len(list((tmp_path / "back").glob("*.safetensors"))) == 60


def test_interrupt_keeps_what_is_finished(source, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(conversion, "copy_files", interrupt)
        with pytest.raises(KeyboardInterrupt):
            convert(source, source.parent / "out", layout=TP2)
    assert sorted(path.name for path in source.parent.iterdir()) == [".out.journal", ".out.partial", "hf"]
    report = convert(source, source.parent / "out", layout=TP2, resume=True)
    assert report.exit_code == 0 and report.facts["bytes_moved"] == 0
    assert sorted(path.name for path in source.parent.iterdir()) == ["hf", "out"]
    assert verify(source.parent / "out", source=source).exit_code == 0
