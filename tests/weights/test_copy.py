"""Copying: slow paths give the same bytes, memory stays within the budget, a crash leaves no output."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hf_checkpoints import config, tensors_of, write_model

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.safetensors import build_header
from mappings.layout import ParallelLayout
from migrate.weights import copy
from migrate.weights.command import convert, export, verify

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
    monkeypatch.setattr(copy, "_kernel_copy", lambda *arguments: 0)


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
    monkeypatch.setattr(copy, "MAX_BLOCK", 100)  # a little over one row of the widest strided tensor


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


def test_row_that_does_not_fit_the_budget_is_refused(source, monkeypatch):
    monkeypatch.setattr(copy, "MAX_BLOCK", 50)
    with pytest.raises(UserError, match=r"tensor 'model\.layers.*': one row does not fit the memory budget"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


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
    assert set(seen) == {"copying", "hashing"}
    assert all(total == done > 0 for total, done in seen.values())


@pytest.mark.parametrize("strided", [False, True])
def test_failed_copy_names_the_tensor_and_keeps_nothing(source, monkeypatch, strided):
    name = "model.layers.1.mlp.down_proj.weight" if strided else "model.layers.1.self_attn.k_proj.bias"
    real = copy._Copier._rows if strided else copy._Copier._contiguous

    def fail(self, thing, rest):
        if (thing.name if strided else thing.target.name) == name:
            raise OSError(errno.EIO, "Input/output error")
        return real(self, thing, rest)

    monkeypatch.setattr(copy._Copier, "_rows" if strided else "_contiguous", fail)
    with pytest.raises(UserError, match=f"tensor '{name}': copying failed: Input/output error"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


def test_source_that_shrinks_while_copying_is_noticed(source, monkeypatch):
    real = copy.execute

    def shrink(plan, *arguments, **options):
        for path in source.glob("*.safetensors"):
            os.truncate(path, path.stat().st_size // 2)
        return real(plan, *arguments, **options)

    monkeypatch.setattr("migrate.weights.command.execute", shrink)
    with pytest.raises(UserError, match=r"tensor '.*': copying failed: the source file became shorter"):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


def test_interrupt_keeps_nothing(source, monkeypatch):
    def interrupt(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("migrate.weights.command.copy_files", interrupt)
    with pytest.raises(KeyboardInterrupt):
        convert(source, source.parent / "out", layout=TP2)
    assert [path.name for path in source.parent.iterdir()] == ["hf"]


KILLED = """
import os, signal, sys
from pathlib import Path
from mappings.layout import ParallelLayout
from migrate.weights import copy
from migrate.weights.command import convert
real, calls = copy._write_all, 0
def write(*arguments):
    global calls
    calls += 1
    if calls > int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
copy._write_all = write
convert(Path(sys.argv[1]), Path(sys.argv[2]), layout=ParallelLayout(tp=2), threads=1)
"""


@pytest.mark.parametrize("writes", [0, 1, 3])
def test_kill_in_the_middle_leaves_no_output_and_the_next_run_works(source, writes):
    out = source.parent / "out"
    command = [sys.executable, "-c", KILLED, str(source), str(out), str(writes)]
    done = subprocess.run(command, cwd=ROOT, timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not out.exists()
    assert all(path.name.startswith(".out.") for path in source.parent.iterdir() if path != source)
    report = convert(source, out, layout=TP2)
    assert [found.code for found in report.findings if found.code == "W018"] == ["W018"]
    assert verify(out, source=source).exit_code == 0


LIMITED = """
import json, resource, sys
from pathlib import Path
import numpy as np
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export
source, out, back, budget, margin = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), *map(int, sys.argv[4:])
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + budget + margin,) * 2)
codes = []
for kernel in (True, False):
    if not kernel:
        from migrate.weights import copy
        copy._kernel_copy = lambda *arguments: 0
    options = {"memory_budget": budget, "threads": 2, "force": True}
    codes.append(convert(source, out, layout=ParallelLayout(tp=2), **options).exit_code)
    codes.append(export(out, back, **options).exit_code)
try:
    np.fromfile(source / "model.safetensors", np.uint8)
    codes.append("whole file fitted")
except MemoryError:
    codes.append("whole file refused")
print(json.dumps(codes))
"""


def test_memory_stays_within_the_budget_under_a_hard_limit(tmp_path):
    """About 110 MiB of weights, tensors of 32 MiB, an address space of 8 MiB for buffers.

    The margin is what Python itself needs: two thread stacks of 8 MiB, module imports, hashing. The control reads the
    file whole in the same process, which the limit must refuse.
    """
    model = config(
        "llama",
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=8192,
        num_hidden_layers=1,
        tie_word_embeddings=True,
    )
    parameters = family_for_config(model).parameters(model)
    header, spans = build_header([(p.name, "F32", p.shape) for p in parameters])
    (tmp_path / "hf").mkdir()
    with (tmp_path / "hf/model.safetensors").open("wb") as file:
        file.write(header)
        rng = np.random.default_rng(0)
        for _, size in spans.values():
            file.write(rng.bytes(size))
    (tmp_path / "hf/config.json").write_text(json.dumps(model))
    budget, margin = 8 << 20, 40 << 20
    arguments = [str(tmp_path / name) for name in ("hf", "out", "back")] + [str(budget), str(margin)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, *arguments],
        cwd=ROOT,
        env=environment,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0, 0, 0, "whole file refused"]
    original, back = tmp_path / "hf/model.safetensors", tmp_path / "back/model.safetensors"
    assert original.stat().st_size > 2 * (budget + margin)
    assert original.read_bytes()[len(header) :] == back.read_bytes()[-(original.stat().st_size - len(header)) :]
