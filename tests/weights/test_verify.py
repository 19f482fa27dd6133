"""`verify` passes what is right and finds each kind of damage that was planted."""

from __future__ import annotations

import json

import pytest
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.formats.manifest import Manifest, hash_file
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from migrate.report import Verdict
from migrate.weights.command import convert, export, verify

RANK0, RANK1 = "model-rank00000.safetensors", "model-rank00001.safetensors"
DOWN = "model.layers.0.mlp.down_proj.weight"


@pytest.fixture
def sharded(tmp_path):
    write_model(tmp_path / "hf", config("llama"), dtype="BF16", shards=2)
    convert(tmp_path / "hf", tmp_path / "sharded", layout=ParallelLayout(tp=2, dp=2))
    return tmp_path / "sharded"


def entry_of(path, name):
    return next(entry for entry in read_header(path)[0] if entry.name == name)


def flip(path, position):
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def rerecord(directory):
    """Makes the manifest vouch for the files as they are now, so that only the source can tell."""
    manifest = Manifest.read(directory)
    for name in manifest.files:
        manifest.files[name] = hash_file(directory / name)
    manifest.write(directory)


def swap(path, first, second):
    data = bytearray(path.read_bytes())
    a, b = entry_of(path, first), entry_of(path, second)
    assert a.nbytes == b.nbytes
    left, right = data[a.offset : a.offset + a.nbytes], data[b.offset : b.offset + b.nbytes]
    data[a.offset : a.offset + a.nbytes], data[b.offset : b.offset + b.nbytes] = right, left
    path.write_bytes(data)


def codes(report):
    return [(found.code, found.file, found.tensor) for found in report.findings]


def verdicts(report):
    return {stage.name: stage.verdict for stage in report.stages}


def test_sound_checkpoint_passes_every_stage(sharded):
    report = verify(sharded, source=sharded.parent / "hf")
    assert report.exit_code == 0 and not report.findings
    compared = {stage.name: stage.compared for stage in report.stages}
    parameters = 3 + 9 * 2  # embedding, norm, head; nine in each of two layers
    norms = 5  # on both ranks
    assert compared == {
        "digests": 5,
        "headers": 2 * parameters,
        "replicas": norms,
        "side files": 3,
        "source": 2 * parameters,
    }
    without = verify(sharded)
    assert without.exit_code == 0 and verdicts(without)["source"] is Verdict.SKIPPED


def test_flipped_byte_is_found_by_the_digest_and_by_the_source(sharded):
    flip(sharded / RANK1, entry_of(sharded / RANK1, DOWN).offset + 5)
    assert codes(verify(sharded)) == [("W011", RANK1, None)]
    assert verify(sharded).exit_code == 1
    rerecord(sharded)
    assert verify(sharded).exit_code == 0  # the digest can no longer tell
    report = verify(sharded, source=sharded.parent / "hf")
    assert codes(report) == [("W013", RANK1, DOWN)] and report.exit_code == 1
    # Byte 5 is the second byte of element 2 in the first row.
    assert "1 of 192 elements differ from the source, the first at [0, 2]" in report.findings[0].message


def test_flipped_byte_in_padding_is_found(sharded):
    entry = entry_of(sharded / RANK1, "lm_head.weight")
    flip(sharded / RANK1, entry.offset + entry.nbytes - 1)
    rerecord(sharded)
    found = codes(verify(sharded, source=sharded.parent / "hf"))
    assert found == [("W026", RANK1, "lm_head.weight"), ("W013", RANK1, "lm_head.weight")]


def test_truncated_rank_file_is_found(sharded):
    path = sharded / RANK0
    path.write_bytes(path.read_bytes()[:-2])
    report = verify(sharded, source=sharded.parent / "hf")
    assert [code for code, *_ in codes(report)] == ["W011", "W012"]
    assert report.exit_code == 1 and "source" not in verdicts(report)


def test_missing_rank_file_is_found(sharded):
    (sharded / RANK1).unlink()
    report = verify(sharded, source=sharded.parent / "hf")
    assert codes(report) == [("W010", RANK1, None)] and report.exit_code == 1


def test_swapped_tensors_are_found(sharded):
    names = [f"model.layers.0.self_attn.{which}_proj.weight" for which in "kv"]
    swap(sharded / RANK0, *names)
    assert codes(verify(sharded)) == [("W011", RANK0, None)]
    rerecord(sharded)
    report = verify(sharded, source=sharded.parent / "hf")
    assert sorted(codes(report)) == [("W013", RANK0, name) for name in names]


def test_swapped_rank_files_are_found(sharded):
    other = sharded / "other"
    (sharded / RANK0).rename(other)
    (sharded / RANK1).rename(sharded / RANK0)
    other.rename(sharded / RANK1)
    tables = {("W026", RANK1, name) for name in ("lm_head.weight", "model.embed_tokens.weight")}
    assert set(codes(verify(sharded))) == {("W011", RANK0, None), ("W011", RANK1, None), *tables}
    rerecord(sharded)
    report = verify(sharded, source=sharded.parent / "hf")
    norms = {"model.norm.weight"} | {
        f"model.layers.{layer}.{which}_layernorm.weight" for layer in (0, 1) for which in ("input", "post_attention")
    }
    found = {tensor for code, _, tensor in codes(report) if code == "W013"}
    assert found == {entry.name for entry in read_header(sharded / RANK0)[0]} - norms


def test_tensor_cut_along_the_wrong_axis_is_found(sharded):
    """Same bytes in number, same digest trick: what a transposed or re-ordered slice would give."""
    path = sharded / RANK0
    entry = entry_of(path, DOWN)
    data = bytearray(path.read_bytes())
    whole = (sharded.parent / "hf").glob("*.safetensors")
    source = next(e for file in whole for e in read_header(file)[0] if e.name == DOWN)
    raw = source.path.read_bytes()[source.offset : source.offset + source.nbytes]
    data[entry.offset : entry.offset + entry.nbytes] = raw[: entry.nbytes]  # the first rows, not the first columns
    path.write_bytes(data)
    rerecord(sharded)
    assert codes(verify(sharded, source=sharded.parent / "hf")) == [("W013", RANK0, DOWN)]


def test_wrong_source_is_found(sharded):
    write_model(sharded.parent / "other", config("llama"), dtype="BF16", seed=1)
    report = verify(sharded, source=sharded.parent / "other")
    assert report.exit_code == 1 and {code for code, *_ in codes(report)} == {"W013"}
    write_model(sharded.parent / "wide", config("llama", vocab_size=41), dtype="F32")
    messages = " ".join(found.message for found in verify(sharded, source=sharded.parent / "wide").findings)
    assert "dtype BF16, the source has F32" in messages and "config.json" not in messages


def test_side_file_that_changed_is_found(sharded):
    (sharded / "tokenizer.json").write_text('{"version": "2.0"}')
    rerecord(sharded)
    assert codes(verify(sharded, source=sharded.parent / "hf")) == [("W013", "tokenizer.json", None)]


def test_file_that_the_manifest_does_not_know_is_reported(sharded):
    (sharded / "extra.bin").write_bytes(b"x")
    report = verify(sharded)
    assert codes(report) == [("W016", "extra.bin", None)] and report.exit_code == 1


def test_layout_in_the_manifest_that_contradicts_the_files_is_found(sharded):
    body = json.loads((sharded / "manifest.json").read_text())
    body["layout"]["vocab_multiple"] = 32  # 37 rows would be padded to 64, not 38
    (sharded / "manifest.json").write_text(json.dumps(body))
    report = verify(sharded, source=sharded.parent / "hf")
    assert {(code, tensor) for code, _, tensor in codes(report)} == {
        ("W003", "model.embed_tokens.weight"),
        ("W003", "lm_head.weight"),
    }
    assert verdicts(report)["source"] is Verdict.SKIPPED and report.exit_code == 1


@pytest.fixture
def exported(sharded):
    export(sharded, sharded.parent / "back")
    return sharded.parent / "back"


def test_exported_directory_passes_against_its_source(exported):
    report = verify(exported, source=exported.parent / "hf")
    assert report.exit_code == 0 and not report.findings
    assert {stage.name: stage.compared for stage in report.stages} == {"headers": 21, "side files": 3, "source": 21}
    assert verify(exported).exit_code == 0


def test_damage_in_an_exported_directory_is_found(exported):
    source = exported.parent / "hf"
    path = next(file for file in exported.glob("*.safetensors") if any(e.name == DOWN for e in read_header(file)[0]))
    flip(path, entry_of(path, DOWN).offset)
    assert codes(verify(exported, source=source)) == [("W013", path.name, DOWN)]
    path.write_bytes(path.read_bytes()[:-1])
    assert [code for code, *_ in codes(verify(exported, source=source))] == ["W012"]
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        verify(exported, source=source)


def test_missing_and_extra_tensors_in_an_exported_directory_are_found(tmp_path):
    write_model(tmp_path / "hf", config(tie_word_embeddings=True), tied_copy=True)
    write_model(tmp_path / "other", config(tie_word_embeddings=True))
    report = verify(tmp_path / "other", source=tmp_path / "hf")
    assert codes(report) == [("W001", None, "lm_head.weight")] and report.exit_code == 1
    report = verify(tmp_path / "hf", source=tmp_path / "other")
    assert codes(report) == [("W002", "model.safetensors", "lm_head.weight")] and report.exit_code == 1


def test_directory_of_neither_kind_is_refused(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        verify(tmp_path / "none")
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        verify(tmp_path)
