"""A source or an output that is wrong is refused with everything that is wrong, and nothing is written."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from hf_checkpoints import config, random_bytes, write_model, write_tensors

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.report import Severity
from migrate.weights import conversion
from migrate.weights.codes import CODES
from migrate.weights.command import convert, export, verify
from migrate.weights.destinations import Destination

TP2 = ParallelLayout(tp=2)
RNG = np.random.default_rng(0)


def tensor(dtype="F32", shape=(3,), itemsize=4):
    return dtype, random_bytes(shape, itemsize, RNG)


def codes(report, severity=Severity.ERROR):
    return {(found.code, found.tensor) for found in report.findings if found.severity is severity}


def test_all_faults_are_listed_at_once_and_nothing_is_written(tmp_path):
    norm, q, down = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"
    extra = {
        "model.layers.2.mlp.up_proj.weight": tensor(),  # a layer that config.json does not have
        "model.embed_tokens.weight_scale": tensor(),
        q: tensor(shape=(16, 15)),
        down: tensor("U16", (16, 24), 2),
    }
    write_model(tmp_path / "hf", config(), extra=extra, without=(norm, "model.layers.1.self_attn.v_proj.bias"))
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert codes(report) == {
        ("W001", norm),
        ("W001", "model.layers.1.self_attn.v_proj.bias"),
        ("W002", "model.layers.2.mlp.up_proj.weight"),
        ("W002", "model.embed_tokens.weight_scale"),
        ("W003", q),
        ("W004", down),
    }
    assert report.exit_code == 1
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_ignored_buffers_and_files_left_behind_are_notes(tmp_path):
    buffer = "model.layers.0.self_attn.rotary_emb.inv_freq"
    write_model(tmp_path / "hf", config(dtype="bfloat16"), extra={buffer: tensor()})
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert report.exit_code == 0
    assert codes(report, Severity.NOTE) == {("W006", buffer), ("W008", None), ("W009", None)}
    assert {found.file for found in report.findings if found.code == "W009"} == {"README.md"}


def test_small_files_whose_names_cannot_be_printed_stay_behind(tmp_path):
    """No manifest could name them: line breaks, and bytes that are no UTF-8."""
    write_model(tmp_path / "hf", config())
    (tmp_path / "hf/tokenizer\n.json").write_text("{}")
    (tmp_path / os.fsdecode(b"hf/tokenizer\xe9.json")).write_text("{}")
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    left = {found.file for found in report.findings if found.code == "W009"}
    assert left == {"README.md", "tokenizer\n.json", "tokenizer\udce9.json"}
    assert json.loads(report.to_json())["exit_code"] == 0
    assert verify(tmp_path / "out", source=tmp_path / "hf").exit_code == 0


@pytest.mark.parametrize("multiple", [10**12, 10**18, 10**24])
@pytest.mark.parametrize("container", ["sharded", "strategy"])
def test_padding_that_no_disk_holds(tmp_path, container, multiple):
    write_model(tmp_path / "hf", config())
    destination = Destination(container, ParallelLayout(tp=2, vocab_multiple=multiple))
    with pytest.raises(UserError, match=r"needs \d+ bytes, the disk has|would have more elements than any disk"):
        convert(tmp_path / "hf", tmp_path / "out", destination=destination)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("container", ["hf", "sharded", "mindspore", "strategy", "iteration", "ckpt"])
def test_counts_that_no_model_has_are_refused_before_anybody_counts_to_them(tmp_path, container):
    layout = ParallelLayout(tp=2) if container in ("sharded", "strategy", "iteration") else ParallelLayout()
    write_model(tmp_path / "hf", config())
    source = tmp_path / container
    if container != "hf":
        convert(tmp_path / "hf", source, destination=Destination(container, layout))
    for layers in (10**30, 10**4):
        (source / "config.json").write_text(json.dumps(config(num_hidden_layers=layers)))
        with pytest.raises(UserError, match=r"config\.json: 10+ layers with 0 experts each are more than any model"):
            convert(source, tmp_path / "out", layout=TP2)


@pytest.mark.parametrize("container", ["hf", "sharded"])
def test_sizes_that_contradict_each_other_are_named(tmp_path, container):
    """Fused projections of falcon are cut by the number of groups, which does not divide the heads here."""
    fields = {"vocab_size": 31, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    body = {"model_type": "falcon", **fields, "new_decoder_architecture": True}
    write_model(tmp_path / "hf", {**body, "num_kv_heads": 2})
    convert(tmp_path / "hf", tmp_path / "sharded", layout=ParallelLayout())
    (tmp_path / container / "config.json").write_text(json.dumps({**body, "num_kv_heads": 3}))
    with pytest.raises(UserError, match=r"config\.json: its sizes do not fit each other: .*\(16, 16\)"):
        convert(tmp_path / container, tmp_path / "out", layout=TP2)


def test_other_weights_files_are_named(tmp_path):
    write_model(tmp_path / "hf", config())
    for name in ("consolidated.safetensors", "pytorch_model.bin", "tokenizer.pt"):
        (tmp_path / "hf" / name).write_bytes(b"other weights")
    (tmp_path / "hf/original").mkdir()
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    left = ["README.md", "consolidated.safetensors", "original", "pytorch_model.bin", "tokenizer.pt"]
    assert [found.file for found in report.findings if found.code == "W009"] == left
    assert not {*left} & {path.name for path in (tmp_path / "out").iterdir()}


def test_mixed_dtypes_are_kept_and_noted(tmp_path):
    norm = "model.norm.weight"
    write_model(tmp_path / "hf", config(), dtype="BF16", extra={norm: tensor(shape=(16,))})
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert report.exit_code == 0 and ("W007", None) in codes(report, Severity.NOTE)
    assert export(tmp_path / "out", tmp_path / "back").exit_code == 0
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()


@pytest.mark.parametrize("shards", [1, 2])
def test_tied_copy_that_differs_is_an_error(tmp_path, shards):
    head = random_bytes((37, 16), 4, RNG)
    write_model(
        tmp_path / "hf", config(tie_word_embeddings=True), extra={"lm_head.weight": ("F32", head)}, shards=shards
    )
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert codes(report) == {("W005", "lm_head.weight")}
    assert report.exit_code == 1 and not (tmp_path / "out").exists()


def test_untied_model_without_a_head_is_an_error(tmp_path):
    write_model(tmp_path / "hf", config(), without=("lm_head.weight",))
    assert codes(convert(tmp_path / "hf", tmp_path / "out", layout=TP2)) == {("W001", "lm_head.weight")}


def test_dry_run_writes_nothing_and_counts_the_bytes(tmp_path):
    write_model(tmp_path / "hf", config())
    report = convert(tmp_path / "hf", tmp_path / "out", layout=TP2, dry_run=True)
    assert report.exit_code == 0 and [path.name for path in tmp_path.iterdir()] == ["hf"]
    written = convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    for fact in ("bytes_minimum", "bytes_padding", "tensors", "files"):
        assert report.facts[fact] == written.facts[fact]
    # One padded row of 16 floats in the embedding and in the head: 37 rows become 38.
    assert report.facts["bytes_padding"] == 2 * 16 * 4


@pytest.mark.parametrize(
    ("layout", "words"),
    [(ParallelLayout(tp=3), "does not divide"), (ParallelLayout(pp=3), "3")],
)
def test_layout_that_does_not_fit(tmp_path, layout, words):
    write_model(tmp_path / "hf", config())
    with pytest.raises(UserError, match=words):
        convert(tmp_path / "hf", tmp_path / "out", layout=layout)


def test_source_that_is_no_model_directory(tmp_path):
    with pytest.raises(UserError, match="no such directory"):
        convert(tmp_path / "none", tmp_path / "out", layout=TP2)
    (tmp_path / "hf").mkdir()
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    (tmp_path / "hf/config.json").write_text(json.dumps(config("rwkv")))
    with pytest.raises(UserError, match="model_type 'rwkv' is not supported"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    write_model(tmp_path / "model", config())
    convert(tmp_path / "model", tmp_path / "sharded", layout=TP2)
    (tmp_path / "sharded/config.json").write_text(json.dumps(config("llama")))
    with pytest.raises(UserError, match=r"manifest\.json says family 'qwen2', config\.json 'llama'"):
        export(tmp_path / "sharded", tmp_path / "out")


def test_outputs_that_would_destroy_something_are_refused(tmp_path):
    source = tmp_path / "a" / "hf"
    write_model(source, config())
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").write_text("precious")
    cases = [
        (source, "inside each other"),
        (source / "out", "inside each other"),
        (tmp_path / "a", "inside each other"),
        (tmp_path / "file", "no directory"),
        (tmp_path / "link", "no directory"),
        (tmp_path / "full", "not empty"),
    ]
    for out, words in cases:
        with pytest.raises(UserError, match=words):
            convert(source, out, layout=TP2)
    with pytest.raises(UserError, match="--force does not replace it"):
        convert(source, tmp_path / "full", layout=TP2, force=True)
    assert (tmp_path / "full/notes.txt").read_text() == "precious"


def test_force_replaces_a_checkpoint_and_leaves_nothing_else(tmp_path):
    write_model(tmp_path / "hf", config())
    convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    with pytest.raises(UserError, match="not empty"):
        convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout())
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(), force=True)
    assert not (tmp_path / "out/model-rank00001.safetensors").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def test_output_that_somebody_else_fills_meanwhile_is_kept(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config())

    real = conversion.copy_files

    def fill(*arguments):
        real(*arguments)
        (tmp_path / "out").mkdir()
        (tmp_path / "out/theirs").write_text("x")

    monkeypatch.setattr(conversion, "copy_files", fill)
    with pytest.raises(UserError, match="filled by another process"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["theirs"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def test_failed_replacement_keeps_the_old_checkpoint(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config())
    convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    monkeypatch.setattr("migrate.weights.engine.mover.Mover.unit", fail)
    with pytest.raises(UserError, match="No space left"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, force=True)
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


def fail(self, rows, *, direct):
    raise OSError(28, "No space left on device")


def test_too_little_space_is_found_before_writing(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config())
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(UserError, match="the disk has 1000 free"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_bad_budget_threads_and_shard_size(tmp_path):
    write_model(tmp_path / "hf", config())
    with pytest.raises(UserError, match="budget"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, memory_budget=1000)
    with pytest.raises(UserError, match="threads"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, threads=0)
    with pytest.raises(UserError, match="max shard size"):
        export(tmp_path / "hf", tmp_path / "out", max_shard_size=0)


def test_links_inside_and_in_the_hub_cache_are_followed(tmp_path):
    snapshot, blobs = tmp_path / "cache/snapshots/abc", tmp_path / "cache/blobs"
    write_model(snapshot, config())
    blobs.mkdir()
    for path in list(snapshot.iterdir()):
        path.rename(blobs / f"blob-{path.name}")
        path.symlink_to(f"../../blobs/blob-{path.name}")
    assert convert(snapshot, tmp_path / "out", layout=TP2).exit_code == 0
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir())
    assert (tmp_path / "out/tokenizer.json").read_text() == (blobs / "blob-tokenizer.json").read_text()


def test_links_that_leave_the_directory_or_dangle_are_refused(tmp_path):
    write_model(tmp_path / "hf", config())
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "hf/tokenizer.model").symlink_to("../secret")
    with pytest.raises(UserError, match=r"tokenizer\.model: is a link out of the directory"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    (tmp_path / "secret").unlink()
    with pytest.raises(UserError, match=r"tokenizer\.model: is a link that leads to no file"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_malformed_shard_names_file_and_tensor(tmp_path):
    write_model(tmp_path / "hf", config(), shards=2)
    path = tmp_path / "hf/model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"model-00002-of-00002\.safetensors: truncated"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)


def test_every_code_is_explained():
    assert sorted(CODES) == [f"W{number:03d}" for number in range(1, len(CODES) + 1)]
    for code in CODES.values():
        assert code.why.endswith(".") and code.fix.endswith(".")


def test_tensor_files_written_by_the_tests_are_what_they_say(tmp_path):
    from safetensors import safe_open

    write_tensors(tmp_path / "x.safetensors", {"a": tensor("BF16", (2, 3), 2), "b": tensor("F64", (1,), 8)})
    with safe_open(tmp_path / "x.safetensors", "numpy") as file:
        assert file.get_slice("a").get_dtype() == "BF16" and file.get_slice("b").get_dtype() == "F64"
