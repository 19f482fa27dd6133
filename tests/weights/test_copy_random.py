"""The engine makes exactly the right bytes from any layout to any other, however small its buffers are."""

from __future__ import annotations

import random

import numpy as np
import pytest
from random_layouts import make_case

from mappings.arrangement import Arrangement, concat, stack
from migrate.weights.engine import execute as execution
from migrate.weights.engine import mover
from migrate.weights.engine.execute import execute
from migrate.weights.engine.plan import plan
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile

SIZES = [(8 << 20, 1 << 20), (3000, 5000), (300, 500), (40, 120)]


@pytest.fixture(autouse=True)
def any_budget(monkeypatch):
    monkeypatch.setattr(execution, "MIN_BUDGET", 1)


def run(case, directory, monkeypatch, soft, budget, threads=1):
    monkeypatch.setattr(mover, "SOFT", soft)
    made = plan(case.source, case.files)
    assert not made.findings
    directory.mkdir()
    advanced = []
    done = execute(made, directory, memory_budget=budget, threads=threads, advance=advanced.append)
    found = case.written(directory)
    for name, expected in case.expected.items():
        assert np.array_equal(found[name], expected), name
    assert done.bytes_written == made.bytes_minimum == sum(advanced)
    return made, done


@pytest.mark.parametrize(("soft", "budget"), SIZES)
@pytest.mark.parametrize("seed", range(20))
def test_random_layouts(tmp_path, monkeypatch, soft, budget, seed):
    case = make_case(tmp_path, seed)
    run(case, tmp_path / "out", monkeypatch, soft, budget, threads=1 + seed % 2)


@pytest.mark.parametrize("seed", range(10))
def test_random_layouts_without_the_kernel(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(mover, "kernel_copy", lambda *arguments: 0)
    run(make_case(tmp_path, 1000 + seed), tmp_path / "out", monkeypatch, 300, 500)


@pytest.mark.parametrize(("soft", "budget"), SIZES[:2])
@pytest.mark.parametrize("seed", range(10))
def test_random_layouts_that_are_decoded(tmp_path, monkeypatch, soft, budget, seed):
    case = make_case(tmp_path, seed, decoded=True)
    made, _ = run(case, tmp_path / "out", monkeypatch, soft, budget)
    if soft == SIZES[0][0]:
        for number in np.unique(made.copies.source).tolist():
            assert case.source.tensors[number].decoder.decoded.max() == 1  # no row is decoded twice


def experts(count, f, h):
    """Transposed and joined experts, as MindSpore Transformers stores them."""
    names = [[f"{part}{e}" for part in ("gate", "up")] for e in range(count)]
    halves = [concat(1, [Arrangement.of(name, (f, h)).transpose() for name in pair]) for pair in names]
    return stack(0, halves).reshape(count * h, 2 * f)


def alternating(f, h):
    return stack(1, [Arrangement.of(name, (f, h)) for name in ("gate0", "up0")]).reshape(2 * f, h)


def columns(ranks, f, h):
    return [Arrangement.of("gate0", (f, h)).slice(1, r * h // ranks, (r + 1) * h // ranks) for r in range(ranks)]


F, H = 96, 160
PARTS = dict.fromkeys(("gate0", "up0", "gate1", "up1"), (F, H))
WHOLE = {name: Arrangement.of(name, shape) for name, shape in PARTS.items()}
ONCE = {
    "columns to ranks": (["gate0"], [WHOLE["gate0"]], columns(8, F, H)),
    "ranks to columns": (["gate0"], columns(8, F, H), [WHOLE["gate0"]]),
    "three ranks to four": (["gate0"], columns(5, F, H), columns(4, F, H)),
    "to alternating rows": (["gate0", "up0"], [WHOLE["gate0"], WHOLE["up0"]], [alternating(F, H)]),
    "from alternating rows": (["gate0", "up0"], [alternating(F, H)], [WHOLE["gate0"], WHOLE["up0"]]),
    "to experts": (list(PARTS), list(WHOLE.values()), [experts(2, F, H)]),
    "from experts": (list(PARTS), [experts(2, F, H)], list(WHOLE.values())),
    "alternating columns, in two bytes": (
        ["gate0", "up0"],
        [WHOLE["gate0"], WHOLE["up0"]],
        [stack(2, [WHOLE["gate0"], WHOLE["up0"]]).reshape(F, 2 * H)],
    ),
    "experts of two ranks": (
        list(PARTS),
        [experts(2, F, H)],
        [concat(1, [experts(2, F, H).slice(1, r * F // 2 + part * F, (r + 1) * F // 2 + part * F) for part in (0, 1)])
         for r in (0, 1)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("budget", [4 << 20, 20_000], ids=["large", "small"])
@pytest.mark.parametrize("name", ONCE)
def test_every_byte_is_read_once_and_every_range_written_once(tmp_path, monkeypatch, name, budget):
    atoms, stored, wanted = ONCE[name]
    rng = np.random.default_rng(0)
    data = {atom: rng.integers(1, 65536, PARTS[atom]).astype("<u2") for atom in atoms}
    from random_layouts import Case, built

    tensors, position = [], 0
    with (tmp_path / "source").open("wb") as file:
        for number, arrangement in enumerate(stored):
            tensors.append(
                SourceTensor(Stored("source", f"s{number}", "U16", arrangement), tmp_path / "source", position)
            )
            position += file.write(built(arrangement, data).tobytes())
    shapes = {atom: PARTS[atom] for atom in atoms}
    source = Checkpoint(tmp_path, "hf", None, {}, shapes, tuple(tensors), (), (), {})
    targets = tuple(Stored("t.safetensors", f"t{n}", "U16", arrangement) for n, arrangement in enumerate(wanted))
    expected = {f"t{n}": built(arrangement, data) for n, arrangement in enumerate(wanted)}
    case = Case(source, [TargetFile("t.safetensors", targets, {})], expected)
    writes = []
    real = mover.write_all
    monkeypatch.setattr(
        mover, "write_all", lambda fd, buffer, at: (writes.append((at, len(buffer))), real(fd, buffer, at))
    )
    made, done = run(case, tmp_path / "out", monkeypatch, budget, budget)
    assert done.bytes_read == made.bytes_read == position
    assert sum(size for _, size in writes) == position
    assert min(size for _, size in writes) >= 2 * F // 8  # never element by element
    if budget > position:
        assert len(writes) <= 8


def test_planning_does_not_depend_on_the_order_of_sources(tmp_path):
    case = make_case(tmp_path, 3)
    tensors = list(case.source.tensors)
    random.Random(1).shuffle(tensors)
    from dataclasses import replace

    again = plan(replace(case.source, tensors=tuple(tensors)), case.files)
    assert again.bytes_minimum == plan(case.source, case.files).bytes_minimum and not again.findings
