"""`export`: what transformers loads, runs without a source record, shard sizes, and ranks that disagree."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hf_checkpoints import config, tensors_of, write_model, write_tensors

from mappings.errors import UserError
from mappings.formats.manifest import Manifest, hash_file
from mappings.formats.safetensors import read_bytes, read_header
from mappings.layout import ParallelLayout
from migrate.report import Severity
from migrate.weights.command import convert, export, verify

INDEX = "model.safetensors.index.json"


def sharded(tmp_path, model, *, record=True, **options):
    write_model(tmp_path / "hf", model, **options)
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(tp=2))
    if not record:  # as a training run writes it
        edit_manifest(tmp_path / "out", lambda body: body.update(source={}, training={"step": 100}))
    return tmp_path / "out"


def edit_manifest(directory, edit):
    body = json.loads((directory / "manifest.json").read_text())
    edit(body)
    (directory / "manifest.json").write_text(json.dumps(body))


@pytest.mark.parametrize("tied", [False, True])
def test_run_without_a_source_record_gives_one_file(tmp_path, tied):
    out = sharded(tmp_path, config(tie_word_embeddings=tied), record=False, shards=2, tied_copy=tied)
    assert export(out, tmp_path / "back").exit_code == 0
    expected = tensors_of(tmp_path / "hf")
    if tied:
        del expected["lm_head.weight"]  # the usual form of a tied checkpoint
    assert tensors_of(tmp_path / "back") == expected
    names = {path.name for path in (tmp_path / "back").iterdir()}
    assert names == {"model.safetensors", "config.json", "tokenizer.json", "generation_config.json"}
    assert read_header(tmp_path / "back/model.safetensors")[1] == {"format": "pt"}


def test_optimizer_state_is_left_and_named(tmp_path):
    out = sharded(tmp_path, config(), record=False)
    for rank in (0, 1):
        weights, state = (out / f"{kind}-rank{rank:05d}.safetensors" for kind in ("model", "optimizer"))
        held = tensors_of_file(weights)
        write_tensors(
            state, {f"{moment}.{name}": t for moment in ("exp_avg", "exp_avg_sq") for name, t in held.items()}
        )
        record = {"bytes": state.stat().st_size, "sha256": hash_file(state).sha256}
        edit_manifest(out, lambda body, name=state.name, record=record: body["files"].update({name: record}))
    (out / "state.json").write_text("{}")
    report = export(out, tmp_path / "back")
    assert report.exit_code == 0, report.to_json()
    assert "state.json" in {found.file for found in report.findings if found.code == "W009"}
    left = [found.message for found in report.findings if found.code == "W023"]
    assert len(left) == 1 and f"{2 * len(tensors_of(tmp_path / 'hf'))} tensors of training left out" in left[0]
    assert tensors_of(tmp_path / "back") == tensors_of(tmp_path / "hf")


def tensors_of_file(path):
    """(dtype, bytes) by name."""
    return {
        entry.name: (entry.dtype, np.frombuffer(read_bytes(entry), np.uint8).reshape(*entry.shape, entry.itemsize))
        for entry in read_header(path)[0]
    }


@pytest.mark.parametrize("record", [False, True])
def test_files_stay_under_the_size_and_the_index_is_right(tmp_path, record):
    out = sharded(tmp_path, config(), record=record)
    limit = 4000
    assert export(out, tmp_path / "back", max_shard_size=limit).exit_code == 0
    index = json.loads((tmp_path / "back" / INDEX).read_text())
    total = 0
    for path in sorted((tmp_path / "back").glob("*.safetensors")):
        entries = read_header(path)[0]
        assert sum(entry.nbytes for entry in entries) <= limit or len(entries) == 1
        assert {n for n, file in index["weight_map"].items() if file == path.name} == {e.name for e in entries}
        total += sum(entry.nbytes for entry in entries)
    assert index["metadata"]["total_size"] == total
    assert len(set(index["weight_map"].values())) > 3
    assert verify(tmp_path / "back", source=tmp_path / "hf").exit_code == 0


def test_total_size_follows_a_buffer_that_was_left_out(tmp_path):
    buffer = {"model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", np.zeros((2, 4), np.uint8))}
    out = sharded(tmp_path, config(), shards=2, extra=buffer)
    export(out, tmp_path / "back")
    before, after = (json.loads((tmp_path / name / INDEX).read_text()) for name in ("hf", "back"))
    assert before["metadata"]["total_size"] - after["metadata"]["total_size"] == 8
    assert set(before["weight_map"]) - set(after["weight_map"]) == set(buffer)
    assert verify(tmp_path / "back", source=tmp_path / "hf").exit_code == 0


def test_replicas_that_drifted_apart_are_an_error(tmp_path):
    out = sharded(tmp_path, config(), record=False)
    path = out / "model-rank00001.safetensors"
    entry = next(entry for entry in read_header(path)[0] if entry.name == "model.norm.weight")
    data = bytearray(path.read_bytes())
    data[entry.offset + 3] ^= 0x80  # the sign of the first element
    path.write_bytes(data)
    report = export(out, tmp_path / "back")
    assert [(f.code, f.file, f.tensor) for f in report.findings] == [("W014", path.name, "model.norm.weight")]
    assert "from byte 3" in report.findings[0].message
    assert report.exit_code == 1 and not (tmp_path / "back").exists()


def test_rank_file_of_another_model_is_an_error(tmp_path):
    out = sharded(tmp_path, config(), record=False)
    write_model(tmp_path / "other", config(intermediate_size=32), dtype="BF16")
    convert(tmp_path / "other", tmp_path / "other-out", layout=ParallelLayout(tp=2))
    name = "model-rank00001.safetensors"
    (out / name).write_bytes((tmp_path / "other-out" / name).read_bytes())
    report = export(out, tmp_path / "back")
    assert [(found.code, found.file) for found in report.findings] == [("W011", name)]
    size = (out / name).stat().st_size  # a manifest that knows it
    edit_manifest(out, lambda body: body["files"][name].update(bytes=size))
    report = export(out, tmp_path / "back")
    assert {found.code for found in report.findings if found.severity is Severity.ERROR} == {"W003", "W017"}
    assert report.exit_code == 1 and not (tmp_path / "back").exists()


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda s: s.update(files=[]), "'files' is no dict"),
        (lambda s: s["files"].update({"../x.safetensors": {}}), "no plain safetensors name"),
        (lambda s: s["files"].update({"config.json": {}}), "no plain safetensors name"),
        (
            lambda s: s["files"].update({"x.safetensors": {"tensors": [["a"]], "metadata": {}}}),
            "'a', which the model does not have",
        ),
        (lambda s: s["files"].update({"x.safetensors": {}}), "is malformed"),
        (
            lambda s: s["files"]["model.safetensors"]["tensors"].append(["x", "F32", [1]]),
            "'x', which the model does not have",
        ),
        (lambda s: s["files"]["model.safetensors"]["tensors"].append(["model.norm.weight", "F32", [16]]), "already"),
        (lambda s: s.update(tied={"model.norm.weight": "lm_head.weight"}), "config.json does not"),
        (lambda s: s.update(index=[1]), "index"),
    ],
)
def test_source_record_that_contradicts_the_model_is_refused(tmp_path, edit, words):
    out = sharded(tmp_path, config())
    edit_manifest(out, lambda body: edit(body["source"]))
    with pytest.raises(UserError, match=words):
        export(out, tmp_path / "back")
    assert not (tmp_path / "back").exists()


@pytest.mark.parametrize(("kind", "dtype"), [("qwen2", "float32"), ("llama", "bfloat16")])
@pytest.mark.parametrize("tied", [False, True])
def test_transformers_loads_the_export_and_generates_the_same(tmp_path, kind, dtype, tied):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = config(kind, num_key_value_heads=2, vocab_size=101, tie_word_embeddings=tied, eos_token_id=None)
    torch.manual_seed(0)
    kind_config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = AutoModelForCausalLM.from_config(kind_config, dtype=getattr(torch, dtype))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.save_pretrained(tmp_path / "hf", max_shard_size="6KB")
    assert convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(tp=2, vocab_multiple=8)).exit_code == 0
    assert export(tmp_path / "out", tmp_path / "back").exit_code == 0
    for path in (tmp_path / "hf").iterdir():  # the very files, index included
        assert (tmp_path / "back" / path.name).read_bytes() == path.read_bytes(), path.name
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype="auto").eval()
    assert all(p.dtype == getattr(torch, dtype) for p in loaded.parameters())
    prompt = torch.tensor([[1, 5, 9, 77]])
    expected, found = (m.eval().generate(prompt, max_new_tokens=12, do_sample=False) for m in (model, loaded))
    assert found.shape == (1, 16) and len(set(found[0].tolist())) > 3
    assert torch.equal(expected, found)


def test_manifest_records_every_file(tmp_path):
    out = sharded(tmp_path, config())
    manifest = Manifest.read(out)
    assert set(manifest.files) == {path.name for path in out.iterdir()} - {"manifest.json"}
    assert all(hash_file(out / name) == record for name, record in manifest.files.items())
    assert manifest.training == {} and manifest.family == "qwen2"
