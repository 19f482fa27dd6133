"""Memory stays within the budget under a hard limit of the process, whatever the copies take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
from hf_checkpoints import config

from mappings.families import family_for_config
from mappings.formats.safetensors import build_header

ROOT = Path(__file__).parents[2]

LIMITED = """
import json, os, resource, sys
from pathlib import Path
import numpy as np
from mappings.arrangement import Arrangement, concat, stack
from mappings.formats.hf_directory import read_tensors
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export
from migrate.weights.engine import mover
from migrate.weights.engine.execute import execute
from migrate.weights.engine.plan import plan
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile
work, budget, margin = Path(sys.argv[1]), *map(int, sys.argv[2:])
source, out, back = (work / name for name in ("hf", "out", "back"))
os.fsync = lambda fd: None  # what reaches the disk when is not the question here
entries = list(read_tensors(source).values())
used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + budget + margin,) * 2)

def convert_with(dtype, change):
    \"\"\"All matrices changed, in the engine alone.\"\"\"
    whole = {e.name: Stored("s", e.name, e.dtype, Arrangement.of(e.name, e.shape)) for e in entries}
    tensors = tuple(SourceTensor(whole[e.name], e.path, e.offset) for e in entries)
    shapes = {e.name: e.shape for e in entries}
    groups = {}
    for e in entries:
        groups.setdefault(e.shape, []).append(Arrangement.of(e.name, e.shape))
    stored = tuple(Stored("t", f"t{n}", dtype, change(group)) for n, group in enumerate(groups.values()))
    made = plan(Checkpoint(source, "hf", None, {}, shapes, tensors, (), (), {}), [TargetFile("t", stored, {})])
    (work / "engine").mkdir(exist_ok=True)
    done = execute(made, work / "engine", memory_budget=budget, threads=2, advance=lambda amount: None)
    return done.bytes_written == made.bytes_minimum

def turned(group):
    square = len(group[0].shape) == 2 and group[0].shape[0] == group[0].shape[1]
    return concat(1, [part.transpose() for part in group]) if square else concat(0, group)

options = {"memory_budget": budget, "threads": 2, "force": True}
results = [convert(source, out, layout=ParallelLayout(tp=2), **options).exit_code]
mover.kernel_copy = lambda *arguments: 0
results.append(export(out, back, **options).exit_code)
results.append(convert_with("F32", turned))
results.append(convert_with("BF16", lambda group: stack(0, group)))
try:
    np.fromfile(source / "model.safetensors", np.uint8)
    results.append("whole file fitted")
except MemoryError:
    results.append("whole file refused")
print(json.dumps(results))
"""


def test_memory_stays_within_the_budget_under_a_hard_limit(tmp_path):
    """About 80 MiB of weights, tensors of 16 MiB, an address space of 4 MiB for buffers.

    The margin is what Python itself needs: thread stacks of 8 MiB, module imports, hashing. The control reads the file
    whole in the same process, which the limit must refuse.
    """
    model = config(
        "llama",
        vocab_size=4096,
        hidden_size=1024,
        intermediate_size=4096,
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
    budget, margin = 4 << 20, 32 << 20
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path), str(budget), str(margin)],
        cwd=ROOT,
        env=environment,
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [0, 0, True, True, "whole file refused"]
    original, back = tmp_path / "hf/model.safetensors", tmp_path / "back/model.safetensors"
    assert original.stat().st_size > 2 * (budget + margin)
    assert original.read_bytes()[len(header) :] == back.read_bytes()[-(original.stat().st_size - len(header)) :]
