"""What is wrong with a checkpoint is found from headers, all at once, each fault with its file and tensor."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from container_runs import errors, to_iteration, to_mindspore, to_sharded, to_strategy, with_states
from hf_checkpoints import config, write_model
from safetensors.numpy import load_file, save_file

from mappings.arrangement import Arrangement
from mappings.errors import UserError
from mappings.formats.strategy import Operator, Strategy, encode_strategy, merged, read_strategy
from mappings.formats.strategy_slices import Slices, tensor_layout
from mappings.layout import ParallelLayout
from migrate.weights import slow_path
from migrate.weights.command import convert, diff
from migrate.weights.containers import ckpt, hf, iteration, mindspore, sharded, strategy
from migrate.weights.containers.content import Content
from migrate.weights.containers.counters import common_values
from migrate.weights.containers.stages import stages_for
from migrate.weights.containers.strategy_layouts import read_layouts
from migrate.weights.decoding.fp8 import BlockFp8
from migrate.weights.destinations import Destination
from migrate.weights.engine.plan import plan
from migrate.weights.tensors import Checkpoint, Part, SourceTensor, Stored

CONFIG = config("qwen2", vocab_size=40)
LAYOUT = ParallelLayout(tp=2, dp=2)
NORM, Q = "model.layers.0.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("training")
    write_model(folder / "hf", CONFIG)
    with_states(hf.read(folder / "hf"), folder / "full")
    return mindspore.read(folder / "full")


def change(path: Path, change) -> None:
    """Rewrites a file with other arrays; its own inode, so that linked ranks keep theirs."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        metadata = file.metadata()
    arrays = load_file(path)
    change(arrays)
    path.unlink()
    save_file(arrays, path, metadata=metadata)


def spoil(arrays: dict[str, np.ndarray]) -> None:
    """Seven faults."""
    del arrays[NORM]
    del arrays["exp_avg." + Q]
    arrays[Q] = arrays[Q][:-1].copy()
    arrays["model.layers.9.input_layernorm.weight"] = np.zeros(16, np.float32)
    arrays["model.norm.weight"] = np.zeros(16, np.int32)
    arrays["surprise"] = np.zeros(3, np.float32)
    arrays["accu_grads." + NORM] = np.zeros(16, np.float32)  # no fault: it is left out, and said so
    arrays["global_step"] = np.zeros(3, np.int32)  # no single number


FAULTS = {
    ("W001", NORM), ("W001", f"exp_avg.{Q}"), ("W003", Q), ("W002", "model.layers.9.input_layernorm.weight"),
    ("W004", "model.norm.weight"), ("W002", "surprise"), ("W002", "global_step"),
}  # fmt: skip


def found(checkpoint: Checkpoint) -> set[tuple[str, str | None]]:
    return {(code, tensor) for code, tensor, _ in errors(checkpoint)}


def test_all_faults_of_whole_files_are_found_at_once(tmp_path, training):
    to_mindspore(training, tmp_path / "a", part_bytes=1 << 30)
    (tmp_path / "a/param_name_map.json").unlink()
    (tmp_path / "a/hyper_param.safetensors").unlink()
    change(tmp_path / "a/part0.safetensors", spoil)
    checkpoint = mindspore.read(tmp_path / "a", config=CONFIG)
    assert found(checkpoint) == FAULTS
    assert [entry.name for entry in checkpoint.left_out] == ["accu_grads." + NORM]
    messages = " ".join(message for *_, message in errors(checkpoint))
    assert "reads like model.layers.{layer}.input_layernorm.weight" in messages and "2 layers" in messages


def test_all_faults_of_a_rank_are_found_at_once(tmp_path, training):
    to_strategy(training, tmp_path / "a", LAYOUT)
    change(tmp_path / "a/rank_2/checkpoint_2.safetensors", spoil)
    checkpoint = strategy.read(tmp_path / "a", config=CONFIG)
    assert found(checkpoint) == FAULTS
    files = {f.file for f in checkpoint.findings if f.severity.name == "ERROR"}
    assert files == {"rank_2/checkpoint_2.safetensors"}


def test_all_faults_of_a_sharded_rank_are_found_at_once(tmp_path, training):
    hf_only = Content.of(training).weights_only()
    assert hf_only.states == ()
    source = hf.read(training.directory.parent / "hf")
    to_sharded(source, tmp_path / "a", LAYOUT)

    def spoil_weights(arrays) -> None:
        arrays["exp_avg." + Q] = arrays[Q].copy()  # in the file of weights
        spoil(arrays)
        arrays["exp_avg." + Q] = arrays[Q].copy()
        del arrays["global_step"]

    change(tmp_path / "a/model-rank00001.safetensors", spoil_weights)
    expected = FAULTS - {("W001", f"exp_avg.{Q}"), ("W002", "global_step")} | {("W002", f"exp_avg.{Q}")}
    assert found(sharded.read(tmp_path / "a")) == expected


def test_a_dtype_that_differs_between_ranks_is_found(tmp_path, training):
    to_strategy(training, tmp_path / "a", LAYOUT)

    def halve(arrays) -> None:
        arrays[Q] = np.zeros(arrays[Q].shape, np.float16)

    change(tmp_path / "a/rank_1/checkpoint_1.safetensors", halve)
    assert found(strategy.read(tmp_path / "a", config=CONFIG)) == {("W017", Q)}


def test_a_tensor_without_any_rank_is_found(tmp_path, training):
    to_strategy(training, tmp_path / "a", LAYOUT)
    for path in (tmp_path / "a/strategy").iterdir():
        one = read_strategy(path)
        layouts = {name: cut for name, cut in one.layouts.items() if name != NORM}
        path.write_bytes(encode_strategy(Strategy(one.current_stage, one.operators, layouts)))
    for path in (tmp_path / "a").glob("rank_*/*"):
        change(path, lambda arrays: arrays.pop(NORM))
    assert found(strategy.read(tmp_path / "a", config=CONFIG)) == {("W001", NORM)}


def test_a_piece_that_no_rank_has_is_found(tmp_path, training):
    to_strategy(training, tmp_path / "a", LAYOUT, remove_redundancy=True)
    holders = [path for path in sorted((tmp_path / "a").glob("rank_*/*")) if Q in load_file(path)]
    assert len(holders) == 2  # both halves, each in one of two ranks
    change(holders[1], lambda arrays: arrays.pop(Q))
    checkpoint = strategy.read(tmp_path / "a", config=CONFIG)
    assert found(checkpoint) == {("W001", Q)}
    lost = plan(checkpoint, mindspore.layout(Content.of(checkpoint))).findings
    assert [(one.code, one.tensor) for one in lost] == [("W019", Q)]
    assert "of 256 elements" in lost[0].message


def test_strategies_that_contradict_each_other_are_refused(tmp_path, training):
    to_strategy(training, tmp_path / "a", LAYOUT)
    path = tmp_path / "a/strategy/ckpt_strategy_rank_3.ckpt"
    content = Content.of(training)
    other = stages_for(content, ParallelLayout(tp=4))
    from migrate.weights.containers.strategy_layouts import strategies_of

    path.write_bytes(encode_strategy(strategies_of(other)[0]))
    with pytest.raises(UserError, match=r"rank_3\.ckpt: parameter .* another file of stage 0 cuts it differently"):
        strategy.read(tmp_path / "a", config=CONFIG)
    path.write_bytes(b"\x08\x01garbage")
    with pytest.raises(UserError, match=r"rank_3\.ckpt: is no strategy file"):
        strategy.read(tmp_path / "a", config=CONFIG)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda d: (d / "rank_1").rename(d / "rank_9"), "rank_1 is missing, but there is rank_9"),
        (lambda d: (d / "rank_3").rename(d / "other"), "3 rank folders, the strategy is for 4"),
        (lambda d: (d / "rank_0/more.safetensors").write_bytes(b""), "2 files .* where one is expected"),
        (lambda d: [p.unlink() for p in (d / "rank_2").iterdir()], "rank_2: no file where one is expected"),
        (lambda d: [p.unlink() for p in (d / "strategy").iterdir()], r"no ckpt_strategy_rank_N\.ckpt"),
        (
            lambda d: (d / "rank_0/checkpoint_0.safetensors").write_bytes(b"x" * 40),
            r"checkpoint_0\.safetensors: header",
        ),
    ],
)
def test_folders_that_lack_something_are_refused(tmp_path, training, harm, message):
    to_strategy(training, tmp_path / "a", LAYOUT)
    for path in (tmp_path / "a").glob("rank_*/*"):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
    harm(tmp_path / "a")
    with pytest.raises(UserError, match=message):
        strategy.read(tmp_path / "a", config=CONFIG)


def test_a_step_with_missing_or_foreign_pieces_is_refused_or_its_faults_are_found(tmp_path, training):
    to_iteration(training, tmp_path / "a", LAYOUT)
    step = tmp_path / "a/iteration_00000007"
    body = json.loads((step / "metadata.json").read_text())
    body["state_dict_metadata"][Q]["axis_fragmentations"] = [3, 1]
    (step / "metadata.json").write_text(json.dumps(body))
    with pytest.raises(UserError, match=r"q_proj.*its layout makes \[2, 1\] pieces, axis_fragmentations says \[3, 1\]"):
        iteration.read(tmp_path / "a", config=CONFIG)
    body["state_dict_metadata"][Q]["layout"]["device_matrix"] = [2, 3]
    (step / "metadata.json").write_text(json.dumps(body))
    with pytest.raises(UserError, match=r"metadata\.json: parameter .*q_proj.*no 3 equal pieces"):
        iteration.read(tmp_path / "a", config=CONFIG)
    body["state_dict_metadata"][Q]["layout"]["device_matrix"] = [2]
    body["state_dict_metadata"][Q]["layout"]["tensor_map"] = [1, -1]
    (step / "metadata.json").write_text(json.dumps(body))
    with pytest.raises(UserError, match=r"q_proj.*tensor_map \[1, -1\] does not fit device_matrix \[2\]"):
        iteration.read(tmp_path / "a", config=CONFIG)
    body["state_dict_metadata"][Q]["layout"].update(device_matrix=[2, 2], tensor_map=[0, -1])
    body["state_dict_metadata"][Q]["axis_fragmentations"] = [2, 1]
    body["state_dict_metadata"][NORM]["global_shape"] = [17]
    (step / "metadata.json").write_text(json.dumps(body))
    with pytest.raises(UserError, match=r"shape \[17\] in \[1\] pieces, \[16\] expected"):
        iteration.read(tmp_path / "a", config=CONFIG)
    body["state_dict_metadata"][NORM]["global_shape"] = [16]
    (step / "metadata.json").write_text(json.dumps(body))
    change(step / "model-0000000-0000004.safetensors", lambda arrays: (arrays.pop(NORM), arrays.update(x=arrays[Q])))
    assert found(iteration.read(tmp_path / "a", config=CONFIG)) == {("W001", NORM), ("W002", "x")}
    (step / "opt-0000001-0000004.safetensors").unlink()
    with pytest.raises(UserError, match=r"names 'opt-0000001-0000004\.safetensors', which is missing"):
        iteration.read(tmp_path / "a", config=CONFIG)


def test_a_map_that_disagrees_with_the_files_is_refused(tmp_path, training):
    to_mindspore(training, tmp_path / "a", part_bytes=30_000)
    path = tmp_path / "a/param_name_map.json"
    good = json.loads(path.read_text())
    files = sorted(set(good["weight_map"].values()))
    name, file = next(iter(good["weight_map"].items()))
    for changes, message in (
        ({name: next(other for other in files if other != file)}, "places it"),
        ({name: "part77.safetensors"}, "part77.safetensors', which is missing"),
        ({"more": file}, "'more': .*places it here, but it is not"),
    ):
        path.write_text(json.dumps({"weight_map": good["weight_map"] | changes}))
        with pytest.raises(UserError, match=message):
            mindspore.read(tmp_path / "a", config=CONFIG)
    path.write_text(json.dumps(good))
    (tmp_path / "a/stray.safetensors").write_bytes((tmp_path / "a" / file).read_bytes())
    with pytest.raises(UserError, match=r"stray\.safetensors is not in param_name_map\.json"):
        mindspore.read(tmp_path / "a", config=CONFIG)


def test_a_checkpoint_without_a_known_model_is_refused(tmp_path, training):
    to_mindspore(training, tmp_path / "a")
    with pytest.raises(UserError, match=r"no config\.json"):
        mindspore.read(tmp_path / "a")
    (tmp_path / "b").mkdir()
    save_file({"x": np.zeros(3, np.float32)}, tmp_path / "b/x.safetensors")
    with pytest.raises(UserError, match=r"no tensor has a name of the qwen2 family \(found x\)"):
        mindspore.read(tmp_path / "b", config=CONFIG)
    (tmp_path / "x.ckpt").write_bytes(b"x" * 99)
    with pytest.raises(UserError, match=r"x\.ckpt: is no MindSpore checkpoint"):
        ckpt.read(tmp_path / "x.ckpt", config=CONFIG)


@pytest.mark.parametrize(
    ("layout", "spelling", "message"),
    [
        (ParallelLayout(tp=2, dp=4, ep=2), "hf", r"experts\.\d\..* is on some ranks only.*hf_fused"),
        (
            ParallelLayout(tp=4),
            "mindformers",
            r"linear_qkv.*no strategy that makes \[18, 12\] of \[48, 12\] with tp=4.*a spelling that keeps keys",
        ),
    ],
)
def test_layouts_that_mindspore_cannot_express_are_refused(layout, spelling, message):
    from mappings.families import load_family

    family = load_family("qwen3_moe")
    model = {
        "model_type": "qwen3_moe", "vocab_size": 31, "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 6, "num_experts": 4, "moe_intermediate_size": 8,
    }  # fmt: skip
    content = Content(family, model, dict.fromkeys(family.atoms(model), "F32"), spelling)
    with pytest.raises(UserError, match=message):
        stages_for(content, layout)


def test_a_tensor_of_parts_in_several_dtypes_is_refused(training):
    dtypes = dict.fromkeys(training.atoms, "F32") | {"model.layers.0.mlp.up_proj.weight": "BF16"}
    content = Content(training.family, CONFIG, dtypes, "mindformers")
    with pytest.raises(UserError, match=r"linear_fc1\.weight': its parts are .*up_proj\.weight in BF16.*choose one"):
        mindspore.layout(content)


def test_a_number_in_front_of_a_name_is_a_stage_in_merged_files_only(tmp_path):
    cut = tensor_layout(Slices((2,), ((0,), ())))
    whole = tensor_layout(Slices((2,), ((), ())))
    stages = [Strategy(1, (Operator("op", stage),), {"0-a": cut, "b": (whole, cut)[stage]}) for stage in range(2)]
    paths = [tmp_path / f"ckpt_strategy_rank_{stage}.ckpt" for stage in range(2)]
    for path, stage in zip(paths, stages, strict=True):
        path.write_bytes(encode_strategy(stage))
    expected = [dict(stage.layouts) for stage in stages]
    assert read_layouts(paths) == (expected, 2)
    (tmp_path / "merged.ckpt").write_bytes(encode_strategy(merged(stages)))
    assert read_layouts([tmp_path / "merged.ckpt"]) == (expected, 2)


def test_counters_of_every_dtype_are_numbers_or_named(tmp_path, training):
    """In dtypes that MindSpore has no name for they could go nowhere."""
    import torch
    from safetensors.torch import save_file as save

    folder = tmp_path / "full"
    to_mindspore(training, folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    counters = {"loss_scale": torch.tensor([2.5], dtype=torch.bfloat16), "epoch_num": torch.tensor(3).to(torch.uint16)}
    save(counters, folder / "hyper_param.safetensors")
    source = mindspore.read(folder)
    assert errors(source) == [] and common_values(source) == {"loss_scale": 2.5, "epoch_num": 3}
    for name, layout in (("iteration", ParallelLayout(tp=2)), ("ckpt", ParallelLayout())):
        out = tmp_path / name
        assert convert(folder, out, destination=Destination(name, layout)).exit_code == 0
        assert diff(folder, out / "model.ckpt" if name == "ckpt" else out).exit_code == 0
    assert json.loads((tmp_path / "iteration/iteration_00000000/common.json").read_text())["loss_scale"] == 2.5
    save({"loss_scale": torch.tensor([1.0]).to(torch.float8_e5m2)}, folder / "hyper_param.safetensors")
    assert found(mindspore.read(folder)) == {("W004", "loss_scale")}


def test_verify_says_where_a_decoded_source_ends_early(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(bytes(20))
    weight, scale = Part(path, "w", "F8_E4M3", (4, 8), 0, 32), Part(path, "s", "F32", (1, 1), 16, 4)
    stored = Stored("x", "w", "BF16", Arrangement.of("w", (4, 8)))
    with pytest.raises(UserError, match=r"x: ends 12 bytes early"):
        slow_path.stored(SourceTensor(stored, path, 0, BlockFp8(weight, scale, (4, 8))))
