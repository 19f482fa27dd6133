"""Plans: what the proofs refuse, how copies form units, which replica is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from random_layouts import make_case

from mappings.arrangement import Arrangement, concat, stack
from migrate.weights.engine import compare, forms
from migrate.weights.engine.compare import differences
from migrate.weights.engine.execute import execute
from migrate.weights.engine.plan import PlanError, plan
from migrate.weights.tensors import Checkpoint, SourceTensor, Stored, TargetFile

A, B = Arrangement.of("a", (6, 4)), Arrangement.of("b", (6, 4))


def source(*arrangements, atoms=("a", "b"), directory=Path("/none"), dtype="U16"):
    """Tensors one behind the other in one file."""
    tensors, offset = [], 0
    for number, arrangement in enumerate(arrangements):
        tensors.append(SourceTensor(Stored("s", f"s{number}", dtype, arrangement), directory / "s", offset))
        offset += 2 * arrangement.size
    return Checkpoint(directory, "hf", None, {}, dict.fromkeys(atoms, (6, 4)), tuple(tensors), (), (), {})


def target(*arrangements, form="safetensors"):
    stored = tuple(Stored("t", f"t{number}", "U16", arrangement) for number, arrangement in enumerate(arrangements))
    return [TargetFile("t", stored, {}, form)]


def codes(made):
    return [(found.code, found.tensor) for found in made.findings]


def test_sound_plan():
    made = plan(source(A, B), target(stack(0, [B, A])))
    assert not made.findings and made.bytes_minimum == 2 * 48 and made.bytes_padding == 0
    assert made.kinds == {"ranges": 2} and made.lossy == ()


@pytest.mark.parametrize(
    "stored",
    [
        Arrangement((6, 4), (*A.pieces, *B.pieces)),
        Arrangement((6, 4), (*A.slice(1, 0, 3).pieces, *B.slice(1, 0, 2).pieces)),
        Arrangement((5, 4), A.pieces),
        Arrangement((6, 4), (replace(A.pieces[0], steps=(1, 2)),)),
        Arrangement((3, 4), (replace(A.pieces[0], axes=(1, 1), at=(0, 0)),)),
    ],
)
def test_pieces_that_overlap_or_stick_out_are_refused(stored):
    with pytest.raises(PlanError, match="claim the same elements"):
        plan(source(A, B), target(stored, A, B))
    with pytest.raises(PlanError, match="claim the same elements"):
        plan(source(stored, A, B), target(A, B))


def test_what_the_source_lacks_is_a_finding():
    made = plan(source(A.slice(0, 0, 3), B), target(A, B))
    assert codes(made) == [("W019", "t0")]
    assert "12 of 24 elements of a are in the source" in made.findings[0].message
    assert codes(plan(source(A), target(A, B))) == [("W019", "t1")]


def test_what_the_targets_would_drop_is_a_finding():
    made = plan(source(A, B), target(A.slice(1, 0, 3), B))
    assert codes(made) == [("W020", "a")] and "index [0, 3]" in made.findings[0].message
    assert codes(plan(source(A, B), target(B))) == [("W020", "a")]
    assert codes(plan(source(A, B), target(B), dropped=["a"])) == []
    cut = plan(source(A, B), target(*(A.slice(0, n, n + 2) for n in (0, 2, 4)), B))
    assert codes(cut) == []


def test_pieces_outside_the_parameter_are_refused():
    longer = Arrangement.of("a", (7, 4))
    with pytest.raises(PlanError, match="outside the parameter"):
        plan(source(longer, B), target(longer, B))


def test_units_are_what_interleaves():
    h = Arrangement.of("a", (6, 4)), Arrangement.of("b", (6, 4))
    alternating = plan(source(*h), target(stack(1, h).reshape(12, 4)))
    assert np.diff(alternating.units).tolist() == [2] and not alternating.direct.any()
    apart = plan(source(*h), target(concat(0, [part.transpose() for part in h])))
    assert np.diff(apart.units).tolist() == [1, 1]
    columns = plan(source(A, B), target(A.slice(1, 0, 2), A.slice(1, 2, 4), B))
    assert sorted(np.diff(columns.units).tolist()) == [1, 2] and columns.direct.tolist() == [False, True]


def test_long_runs_are_shared_between_threads():
    size = 300 << 20
    big = Arrangement.of("a", (size,))
    checkpoint = replace(source(big), atoms={"a": (size,)})
    made = plan(checkpoint, target(big))
    assert len(made.copies) > 8 and made.direct.all() and made.bytes_minimum == 2 * size
    assert made.copies.write.tolist() == made.copies.read.tolist() == sorted(made.copies.read.tolist())


def test_replicas_are_read_once_and_compared(tmp_path):
    """One copy whole, one in halves, a third of rows that only overlap; the last has one wrong element."""
    values = np.arange(1, 25, dtype="<u2").reshape(6, 4)
    wrong = values[1:5].copy()
    wrong[2, 3] ^= 0x0100  # the high byte
    parts = [A.slice(0, 0, 3), A, A.slice(0, 3, 6), A.slice(0, 1, 5)]
    arrays = [values[:3], values, values[3:], wrong]
    (tmp_path / "s").write_bytes(b"".join(array.tobytes() for array in arrays))
    checkpoint = source(*parts, atoms=("a",), directory=tmp_path)
    made = plan(checkpoint, target(A))
    assert not made.findings and made.bytes_minimum == 48
    done = execute(made, tmp_path, memory_budget=1 << 20, threads=1, advance=lambda amount: None)
    assert done.bytes_read == 48 and (tmp_path / "t").read_bytes()[-48:] == values.tobytes()
    found = differences(made, memory_budget=1 << 20, advance=lambda amount: None)
    assert {(one.copy.stored.name, one.byte) for one in found} == {("s3", 2 * (2 * 4 + 3) + 1)}


def test_copies_of_what_is_dropped_are_compared_where_asked():
    class Listed(list):
        def __contains__(self, item):
            raise AssertionError("a hundred thousand look-ups in a list")

    twice = source(A, A, B, B)
    assert len(plan(twice, target(A, B)).comparisons) == 2
    made = plan(twice, target(A), dropped=Listed(["b"]))
    assert not made.findings and len(made.comparisons) == 1 and made.comparisons.target.tolist() == [1]
    assert len(plan(twice, target(A), dropped=["b"], compare_dropped=True).comparisons) == 2


def test_replicas_of_several_dtypes_differ(tmp_path):
    checkpoint = source(A, A, atoms=("a",))
    second = replace(checkpoint.tensors[1], stored=replace(checkpoint.tensors[1].stored, dtype="I16"))
    made = plan(replace(checkpoint, tensors=(checkpoint.tensors[0], second)), target(A))
    assert [one.byte for one in differences(made, memory_budget=1 << 20, advance=lambda amount: None)] == [None]


def test_digest_depends_on_everything_that_is_written(tmp_path):
    case = make_case(tmp_path, 0)
    digest = plan(case.source, case.files).digest
    assert digest == plan(case.source, case.files).digest
    first, *rest = case.files
    others = [
        [replace(first, metadata={"format": "pt"}), *rest],
        [replace(first, name="other"), *rest],
        [replace(first, tensors=first.tensors[::-1]), *rest],
        [*rest, first],
    ]
    assert len({digest, *(plan(case.source, files).digest for files in others)}) == 5


def test_long_tensors_of_a_ckpt_lie_in_slices(tmp_path, monkeypatch):
    from mappings.formats import mindspore_ckpt

    monkeypatch.setattr(forms, "SLICE_BYTES", 20)
    monkeypatch.setattr(mindspore_ckpt.ckpt_layout, "__defaults__", (20,))
    values = np.arange(48, dtype="<u2").reshape(2, 6, 4)
    (tmp_path / "s").write_bytes(values.tobytes())
    files = target(concat(1, [B, A]), form="ckpt")
    made = plan(source(A, B, directory=tmp_path), files)
    execute(made, tmp_path, memory_budget=1 << 20, threads=1, advance=lambda amount: None)
    data = (tmp_path / "t").read_bytes()
    spans = mindspore_ckpt.ckpt_layout([("t0", "U16", (6, 8))]).spans["t0"]
    assert len(spans) == 5
    content = b"".join(data[at : at + size] for at, size in spans)
    assert content == np.concatenate([values[1], values[0]], 1).tobytes()


def test_packed_elements_are_refused():
    with pytest.raises(PlanError, match="F4 elements are no whole bytes"):
        plan(source(A, B, dtype="F4"), target(A, B))


def test_empty_checkpoint(tmp_path):
    made = plan(source(atoms=()), target())
    assert made.kinds == {} and made.lossy == () and made.bytes_minimum == made.bytes_padding == 0
    done = execute(made, tmp_path, memory_budget=1 << 20, threads=1, advance=lambda amount: None)
    assert set(done.files) == {"t"} and (tmp_path / "t").stat().st_size == done.files["t"].bytes


def test_a_link_to_the_same_file_is_not_read_again(tmp_path, monkeypatch):
    single = source(A, atoms=("a",), directory=tmp_path)
    other = replace(single.tensors[0], path=tmp_path / "other", stored=replace(single.tensors[0].stored, file="other"))
    made = plan(replace(single, tensors=(single.tensors[0], other)), target(A))
    read, right = [], compare.read_into

    def counted(fd, buffer, offset):
        read.append(len(buffer))
        right(fd, buffer, offset)

    monkeypatch.setattr(compare, "read_into", counted)
    values = np.arange(24, dtype="<u2").tobytes()
    for name in ("s", "other"):
        (tmp_path / name).write_bytes(values)
    assert differences(made, memory_budget=1 << 20, advance=lambda amount: None) == [] and sum(read) == 2 * 48
    (tmp_path / "other").unlink()
    (tmp_path / "other").hardlink_to(tmp_path / "s")
    assert differences(made, memory_budget=1 << 20, advance=lambda amount: None) == [] and sum(read) == 2 * 48
