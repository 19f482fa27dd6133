"""`weights convert` between containers: options, what is recognised, and what goes along beside the tensors."""

from __future__ import annotations

import json

import pytest
from container_runs import elements, with_states
from hf_checkpoints import config, tensors_of, write_model
from safetensors.numpy import load_file, save_file

from mappings.errors import UserError
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from migrate.report import Severity, Verdict
from migrate.weights.command import convert, export, verify
from migrate.weights.containers import hf, mindspore
from migrate.weights.destinations import Destination
from migrate.weights.opening import Hints, kind_of, open_checkpoint

LAYOUT = ParallelLayout(tp=2, dp=2)


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    write_model(folder / "hf", config("qwen2", vocab_size=40), dtype="BF16")
    with_states(hf.read(folder / "hf"), folder / "full")
    return folder / "full"


def run(source, out, destination: Destination, hints: Hints | None = None) -> None:
    report = convert(source, out, destination=destination, hints=hints)
    assert [stage.verdict for stage in report.stages if stage.verdict is not Verdict.PASS] == [], report.findings


def test_every_container_is_written_recognised_and_read(tmp_path, full):
    wanted = elements(mindspore.read(full))
    source, hints = full, Hints(container="mindspore")
    for kind, destination in {
        "iteration": Destination("iteration", LAYOUT, "mindformers", step=30),
        "strategy": Destination("strategy", LAYOUT, "mindformers", remove_redundancy=True),
        "mindspore": Destination("mindspore", spelling="mindformers_contiguous"),
        "ckpt": Destination("ckpt", spelling="mindformers", crc=True),
    }.items():
        out = tmp_path / kind
        run(source, out, destination, hints)
        source, hints = (out / "model.ckpt" if kind == "ckpt" else out), None
        assert kind_of(source) == kind
        assert elements(open_checkpoint(source)) == wanted


def test_counters_that_differ_between_ranks_are_found(tmp_path, full):
    run(full, tmp_path / "a", Destination("strategy", LAYOUT), Hints(container="mindspore"))
    path = tmp_path / "a/rank_1/checkpoint_1.safetensors"
    entry = next(entry for entry in read_header(path)[0] if entry.name == "loss_scale")
    data = bytearray(path.read_bytes())
    data[entry.offset] ^= 1
    path.write_bytes(data)  # rank 3 shares the file
    assert convert(tmp_path / "a", tmp_path / "sharded", layout=LAYOUT).exit_code == 0  # they have no place there
    report = convert(tmp_path / "a", tmp_path / "out", destination=Destination("strategy", LAYOUT))
    found = {(f.code, f.file, f.tensor) for f in report.findings if f.severity is Severity.ERROR}
    assert found == {("W014", f"rank_{rank}/checkpoint_{rank}.safetensors", "loss_scale") for rank in (1, 3)}
    assert report.exit_code == 1 and not (tmp_path / "out").exists()


def test_files_under_other_names_are_recognised(tmp_path, full):
    run(full, tmp_path / "a", Destination("mindspore", spelling="mindformers"), Hints(container="mindspore"))
    (tmp_path / "a/param_name_map.json").unlink()
    (tmp_path / "a/part0.safetensors").rename(tmp_path / "a/ms-model-00001-of-00001.safetensors")
    (tmp_path / "a/conversion_manifest.json").unlink()
    assert kind_of(tmp_path / "a") == "mindspore"
    run(tmp_path / "a", tmp_path / "b", Destination("ckpt"))
    assert kind_of(tmp_path / "b") == "ckpt"
    assert elements(open_checkpoint(tmp_path / "b")) == elements(mindspore.read(full))
    (tmp_path / "b/other.ckpt").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 \.ckpt files in it"):
        open_checkpoint(tmp_path / "b")
    assert kind_of(full.parent / "hf") == "hf"


def test_numbers_of_a_run_go_along_from_step_to_step(tmp_path, full):
    run(full, tmp_path / "a", Destination("iteration", LAYOUT, "mindformers", step=7), Hints(container="mindspore"))
    path = tmp_path / "a/iteration_00000007/common.json"
    common = json.loads(path.read_text())
    assert common["global_step"] == 7 and common["loss_scale"] == 2.5 and common["ckpt_status"] == 0
    common |= {"epoch_num": 3, "step_num": 4, "consumed_samples": 56}
    path.write_text(json.dumps(common | {"data_plan_state": {}}))
    (tmp_path / "a/conversion_manifest.json").unlink()
    report = convert(
        tmp_path / "a",
        tmp_path / "b",
        destination=Destination("iteration", ParallelLayout(pp=2), "mindformers", step=7),
    )
    assert any("data_plan_state is not carried over" in finding.message for finding in report.findings)
    assert json.loads((tmp_path / "b/iteration_00000007/common.json").read_text()) == common
    assert (tmp_path / "b/latest_checkpointed_iteration.txt").read_text() == "7"


def test_files_of_mindformers_before_2(tmp_path, full):
    for step in (100, 200):
        destination = Destination("strategy", LAYOUT, "mindformers", mindformers="qwen", epoch=2, step=step)
        run(full, tmp_path / str(step), destination, Hints(container="mindspore"))
    home = tmp_path / "200"
    assert (home / "checkpoint/rank_3/qwen_rank_3-2_200.safetensors").is_file()
    assert (home / "strategy/ckpt_strategy_rank_3.ckpt").is_file() and kind_of(home) == "strategy"
    for rank in range(4):  # several steps in one folder, as training leaves them
        name = f"checkpoint/rank_{rank}/qwen_rank_{rank}-2_100.safetensors"
        (home / name).write_bytes((tmp_path / "100" / name).read_bytes())
    found = open_checkpoint(home, Hints(ending="-2_100"))
    assert all(tensor.path.stem.endswith("2_100") for tensor in found.tensors)
    assert all(tensor.path.stem.endswith("2_200") for tensor in open_checkpoint(home).tensors)


@pytest.mark.parametrize(
    ("destination", "message"),
    [
        (Destination("strategy", step=3), "with --mindformers only"),
        (Destination("strategy", mindformers="a/b"), "must be a word"),
        (Destination("strategy", mindformers="x", as_ckpt=True), "are safetensors"),
        (Destination("mindspore", mindformers="x"), "--mindformers is for strategy"),
        (Destination("sharded", epoch=3), "--epoch is for strategy"),
    ],
)
def test_options_that_contradict_each_other_are_refused(destination, message):
    with pytest.raises(UserError, match=message):
        destination.check()


def test_hints_for_ranks_are_refused_elsewhere(full):
    for hints in (Hints(ending="-1"), Hints(redundancy_removed=True)):
        with pytest.raises(UserError, match="are for rank_N folders"):
            open_checkpoint(full, hints)


def test_a_piece_that_is_on_no_rank_is_missed(tmp_path):
    name = "model.layers.0.mlp.down_proj.weight"
    write_model(tmp_path / "hf", config("qwen2", vocab_size=40))
    run(tmp_path / "hf", tmp_path / "ranks", Destination("strategy", LAYOUT, remove_redundancy=True))
    assert verify(tmp_path / "ranks", source=tmp_path / "hf").exit_code == 0
    (tmp_path / "ranks/conversion_manifest.json").unlink()  # as MindSpore has none
    path = next(
        path for path in sorted((tmp_path / "ranks").glob("rank_*/*.safetensors")) if name in tensors_of(path.parent)
    )
    arrays, metadata = load_file(path), read_header(path)[1]
    del arrays[name]
    save_file(arrays, path, metadata=metadata)
    wanted = [("W001", name, "incomplete: nothing holds index [0, 0]")]
    for report in (
        verify(tmp_path / "ranks"),
        verify(tmp_path / "ranks", source=tmp_path / "hf"),
        convert(tmp_path / "ranks", tmp_path / "out", layout=LAYOUT),
    ):
        assert report.exit_code == 1
        assert [(f.code, f.tensor, f.message) for f in report.findings if f.severity is Severity.ERROR] == wanted


def test_files_in_another_spelling_than_the_original_are_noted(tmp_path):
    write_model(tmp_path / "hf", config("mixtral", num_local_experts=2))
    run(tmp_path / "hf", tmp_path / "fused", Destination("hf", spelling="hf_fused"))
    run(tmp_path / "fused", tmp_path / "ranks", Destination("sharded", LAYOUT))
    again = convert(tmp_path / "ranks", tmp_path / "single", destination=Destination("hf"))
    assert [f.message for f in again.findings if f.code == "W025"] == [
        "the files of the original have the spelling hf_fused, so these are named anew"
    ]
    same = export(tmp_path / "ranks", tmp_path / "back")
    assert [f.code for f in same.findings if f.code == "W025"] == []
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "fused/model.safetensors").read_bytes()
