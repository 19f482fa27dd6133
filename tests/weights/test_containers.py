"""Every family through every container and back: the files of Hugging Face come out byte for byte."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from container_runs import (
    elements,
    errors,
    to_hf,
    to_iteration,
    to_mindspore,
    to_sharded,
    to_strategy,
    with_states,
    write,
)
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.families import load_family
from mappings.formats.manifest import hash_file
from mappings.formats.strategy import encode_strategy, read_strategy, strategy_json
from mappings.formats.strategy_slices import Slices
from mappings.layout import ParallelLayout
from migrate.weights.containers import ckpt, hf, iteration, mindspore, sharded, strategy
from migrate.weights.containers.content import Content
from migrate.weights.containers.rank_folders import Naming
from migrate.weights.containers.stages import Stages
from migrate.weights.containers.strategy_layouts import stages_of, strategies_of
from migrate.weights.engine.plan import plan
from migrate.weights.tensors import Checkpoint

CONFIGS = yaml.safe_load((Path(__file__).parents[1] / "mappings_core/family_configs.yaml").read_text(encoding="utf-8"))
LAYOUTS = [
    {"tp": 4, "pp": 2, "dp": 2, "zero": 3}, {"tp": 2, "pp": 2, "dp": 3, "zero": 1}, {"tp": 2, "dp": 3, "ep": 3},
    {"tp": 2, "cp": 2, "vocab_multiple": 5}, {"pp": 2, "dp": 6, "ep": 3, "zero": 3}, {"pp": 2, "dp": 2, "zero": 3},
    {"dp": 2},
]  # fmt: skip


def family_config(name: str) -> dict:
    kind = load_family(name)
    cls = CONFIGS[name].get("class", kind.architectures[0])
    return {"model_type": kind.model_types[0], "architectures": [cls], **CONFIGS[name]["config"]}


def hop(source: Checkpoint, out: Path, kind: str, rng: random.Random) -> Checkpoint:
    """Converts to a container in some spelling and layout that fits, and reads the result."""
    model = source.config
    spellings = ["hf", *(s for s in source.family.spellings if "mxfp4" not in s)]
    choices = [(spelling, values) for spelling in spellings for values in LAYOUTS]
    rng.shuffle(choices)
    for number, (spelling, values) in enumerate(choices):
        target = out / f"{kind}{number}"
        layout = ParallelLayout(**values)
        try:
            if kind == "sharded":
                to_sharded(source, target, layout)
                return sharded.read(target)
            if kind == "strategy":
                naming = Naming(suffix=rng.choice([".safetensors", ".ckpt"]))
                to_strategy(source, target, layout, spelling, naming)
                return strategy.read(target, config=model, spelling=spelling)
            if kind == "iteration":
                to_iteration(source, target, layout, spelling)
                return iteration.read(target, config=model)
        except UserError as error:
            assert "layout" in str(error) or "MindSpore" in str(error) or "equal pieces" in str(error), error
            continue
        if kind == "mindspore":
            to_mindspore(source, target, spelling, part_bytes=2000)
            return mindspore.read(target, config=model)
        write(source, ckpt.layout(Content.of(source, spelling)), target)
        return ckpt.read(target / ckpt.FILE, config=model, spelling=spelling)
    raise AssertionError("no layout fits")


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_two_containers_in_a_row_and_back_give_the_files_of_the_source(tmp_path, name):
    rng = random.Random(name)
    model = family_config(name)
    write_model(tmp_path / "hf", model, dtype=rng.choice(["F32", "BF16", "F16"]), shards=rng.choice([1, 3]))
    first = source = hf.read(tmp_path / "hf")
    for kind in rng.sample(["sharded", "strategy", "iteration", "mindspore", "ckpt"], 2):
        source = hop(source, tmp_path, kind, rng)
        assert errors(source) == [], kind
    to_hf(source, tmp_path / "back", first.extra["record"])
    written = {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()}
    assert written == {name: (tmp_path / "hf" / name).read_bytes() for name in written}
    assert len(written) == len(list((tmp_path / "hf").glob("model*")))


@pytest.fixture(scope="module")
def training(tmp_path_factory) -> Checkpoint:
    """Weights, moments and counters of a small model."""
    folder = tmp_path_factory.mktemp("training")
    write_model(folder / "hf", config("llama", num_key_value_heads=2), dtype="BF16")
    with_states(hf.read(folder / "hf"), folder / "full")
    return mindspore.read(folder / "full")


def test_a_training_checkpoint_is_read_with_its_states_and_counters(training):
    assert errors(training) == []
    assert training.extra["states"] == ("exp_avg", "exp_avg_sq")
    assert sorted(training.extra["counters"]) == ["global_step", "loss_scale"]
    assert len(training.atoms) == 3 * 21 + 2


@pytest.mark.parametrize("spelling", ["hf", "mindformers", "mindformers_contiguous"])
@pytest.mark.parametrize("zero", [0, 1, 3])
def test_states_go_along_cut_like_their_parameters(tmp_path, training, spelling, zero):
    wanted = elements(training)
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2, pp=2, dp=2, zero=zero), spelling)
    found = strategy.read(tmp_path / "a", config=training.config)
    assert errors(found) == [] and elements(found) == wanted
    # Rank 4 is the first of stage 1: tp cuts axis 1 of 24; the parallel optimizer axis 0 of 16, if it does.
    down = "model.layers.1.mlp.down_proj.weight" if spelling == "hf" else "decoder.layers.1.mlp.linear_fc2.weight"
    moment = "exp_avg." if spelling == "hf" else "adam_m."
    shapes = {t.stored.name: t.stored.arrangement.shape for t in found.tensors if t.stored.file.startswith("rank_4/")}
    assert shapes[down] == (8 if zero == 3 else 16, 12)
    assert shapes[moment + down] == (8 if zero else 16, 12)
    if zero == 0:
        to_iteration(found, tmp_path / "b", ParallelLayout(tp=2, dp=3), spelling)
        found = iteration.read(tmp_path / "b", config=training.config)
        assert errors(found) == [] and elements(found) == wanted


def test_redundancy_is_removed_and_put_back(tmp_path, training):
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2, dp=4), "mindformers", remove_redundancy=True)
    files = sorted((tmp_path / "a").glob("rank_*/*.safetensors"))
    found = strategy.read(tmp_path / "a", config=training.config)
    held = [sum(t.path == path for t in found.tensors) for path in files]
    assert len(held) == 8 and all(6 <= count <= 14 for count in held), held  # 45 tensors over four copies
    assert errors(found) == [] and elements(found) == elements(training)
    files[3].unlink()
    with pytest.raises(UserError, match="rank_3: no file where one is expected"):
        strategy.read(tmp_path / "a", config=training.config)


def test_ranks_with_equal_contents_share_one_file(tmp_path, training):
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2, dp=3))
    inodes = [(tmp_path / f"a/rank_{rank}/checkpoint_{rank}.safetensors").stat().st_ino for rank in range(6)]
    assert inodes == [inodes[0], inodes[1]] * 3 and inodes[0] != inodes[1]


def test_files_of_mindformers_are_named_and_chosen_by_epoch_and_step(tmp_path, training):
    old, new = (Naming.mindformers("qwen", 1, step) for step in (100, 200))
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2), naming=old)
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2), naming=new)
    assert (tmp_path / "a/checkpoint/rank_1/qwen_rank_1-1_200.safetensors").is_file()
    meta = json.loads((tmp_path / "a/checkpoint/rank_1/meta.json").read_text())
    assert meta == {"last_epoch": 1, "last_step": 200, "last_ckpt_file": "qwen_rank_1-1_200.safetensors"}
    for ending in (None, "-1_100"):
        found = strategy.read(tmp_path / "a", config=training.config, ending=ending)
        assert elements(found) == elements(training)
        assert {t.path.stem[-3:] for t in found.tensors} == {"100" if ending else "200"}
    for path in (tmp_path / "a").rglob("meta.json"):
        path.unlink()
    with pytest.raises(UserError, match=r"2 files \(qwen_rank_0-1_100"):
        strategy.read(tmp_path / "a", config=training.config)


@pytest.mark.parametrize("form", ["merged", "json", "folder"])
def test_strategies_may_be_merged_json_or_lie_elsewhere(tmp_path, training, form):
    to_strategy(training, tmp_path / "a", ParallelLayout(tp=2, pp=2, dp=2), merge=True)
    folder = tmp_path / "a/strategy"
    given = folder / "merged_ckpt_strategy.ckpt"
    if form == "json":
        given, text = tmp_path / "merged.json", strategy_json(read_strategy(given))
        given.write_text(text)
    if form == "folder":
        given = tmp_path / "elsewhere"
        folder.rename(given)
        with pytest.raises(UserError, match=r"no ckpt_strategy_rank_N\.ckpt"):
            strategy.read(tmp_path / "a", config=training.config)
    found = strategy.read(tmp_path / "a", config=training.config, strategy=given)
    assert errors(found) == [] and elements(found) == elements(training)


def test_a_target_is_cut_as_its_strategy_files_say(tmp_path, training):
    """Several mesh axes on one axis of a tensor, the parallel optimizer within them, and a padded vocabulary."""
    content = Content.of(training)
    mesh = (2, 2, 3)
    cuts = {}
    for name, expected in content.whole.items():
        cut: list = [() for _ in expected.arrangement.shape]
        if len(cut) == 2:
            cut = [(0, 2) if name.startswith(("model.embed", "lm_head")) else (1, 0), ()]
        for state in ("", "exp_avg.", "exp_avg_sq."):
            cuts[state + name] = Slices(mesh, tuple(cut), 2 if state and len(cut) == 2 and "embed" in name else 1)
    asked = Stages(12, (cuts,))
    for rank, one in enumerate(strategies_of(asked) * 2):
        (tmp_path / f"ckpt_strategy_rank_{rank}.ckpt").write_bytes(encode_strategy(one))
    stages = stages_of(sorted(tmp_path.glob("*.ckpt")), content)
    assert stages.cuts == asked.cuts and stages.ranks == 12
    files = strategy.layout(content, stages)
    write(training, files, tmp_path / "a")
    strategy.finish(tmp_path / "a", content, stages)
    found = strategy.read(tmp_path / "a", config=training.config)
    shapes = {t.stored.name: t.stored.arrangement.shape for t in found.tensors}
    assert shapes["model.embed_tokens.weight"] == (8, 16)  # 37 rows padded to 48: 6 pieces, and 12 of its moments
    assert shapes["exp_avg.model.embed_tokens.weight"] == (4, 16) and shapes["lm_head.weight"] == (7, 16)
    assert errors(found) == [] and elements(found) == elements(training)
    assert {f.code for f in found.findings} == {"W021"}


def test_padding_of_a_foreign_checkpoint_is_noted(tmp_path):
    from safetensors.numpy import load_file, save_file

    write_model(tmp_path / "hf", config("llama"), dtype="F32")
    source = hf.read(tmp_path / "hf")
    to_mindspore(source, tmp_path / "b")
    path = tmp_path / "b/part0.safetensors"
    arrays = load_file(path)
    head = arrays["lm_head.weight"]
    arrays["lm_head.weight"] = np.concatenate([head, np.zeros((3, 16), np.float32)])
    save_file(arrays, path)
    found = mindspore.read(tmp_path / "b", config=source.config)
    assert [(f.code, f.tensor) for f in found.findings] == [("W021", "lm_head.weight")]
    assert elements(found) == elements(source)


def test_several_spellings_that_fit_are_never_guessed(tmp_path, training):
    to_mindspore(training, tmp_path / "a", "mindformers_contiguous")
    for path in (tmp_path / "a").glob("*.safetensors"):
        path.write_bytes(path.read_bytes().replace(b"msmigrate.spelling", b"msmigrate.spellinX"))
    with pytest.raises(UserError, match=r"linear_fc1\.weight is stored as mindformers or as mindformers_contiguous"):
        mindspore.read(tmp_path / "a", config=training.config)
    found = mindspore.read(tmp_path / "a", config=training.config, spelling="mindformers_contiguous")
    assert elements(found) == elements(training)
    assert elements(mindspore.read(tmp_path / "a", config=training.config, spelling="mindformers")) != elements(
        training
    )


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_a_run_is_cut_anew_with_its_optimizer_state(tmp_path, training, zero):
    wanted = {name: data for name, data in elements(training).items() if name not in training.extra["counters"]}
    source, dropped = training, list(training.extra["counters"])
    for number, layout in enumerate(
        (ParallelLayout(tp=2, dp=2, zero=zero), ParallelLayout(tp=4, pp=2, vocab_multiple=3))
    ):
        content = replace(Content.of(source), counters={})
        write(source, sharded.layout(content, layout), out := tmp_path / str(number), dropped)
        (out / "config.json").write_text(json.dumps(source.config))
        records = {path.name: hash_file(path) for path in out.iterdir()}
        training_state = {"step": 7}
        sharded.finish(out, content, layout, files=records, versions={}, source={}, training=training_state)
        source, dropped = sharded.read(out), []
        assert errors(source) == [] and elements(source) == wanted
        assert source.extra["manifest"].training == {"step": 7}
    with pytest.raises(UserError, match="no place for counters"):
        sharded.layout(Content.of(training), ParallelLayout())
    with pytest.raises(UserError, match="no place for optimizer state"):
        hf.layout(Content.of(training))


def test_master_weights_go_along(tmp_path):
    write_model(tmp_path / "hf", config("llama"), dtype="BF16")
    with_states(hf.read(tmp_path / "hf"), tmp_path / "full", prefixes=("adam_m.", "adam_v.", "master."))
    source = mindspore.read(tmp_path / "full")
    assert errors(source) == [] and source.extra["states"] == ("exp_avg", "exp_avg_sq", "master")
    content = replace(Content.of(source), counters={})
    files = sharded.layout(content, ParallelLayout(tp=2, dp=2, zero=1))
    assert [file.name for file in files if file.name.startswith("model")] == [
        "model-rank00000.safetensors", "model-rank00001.safetensors",
    ]  # fmt: skip
    kinds = {t.name: (t.dtype, t.arrangement.shape) for file in files for t in file.tensors}
    name = "model.layers.0.mlp.down_proj.weight"
    assert kinds[name] == ("BF16", (16, 12)) and kinds["master." + name] == ("F32", (8, 12))
    assert {name.split(".")[0] for name in kinds} == {"model", "lm_head", "exp_avg", "exp_avg_sq", "master"}
    to_iteration(source, tmp_path / "steps", ParallelLayout(tp=2, dp=2), "mindformers")
    again = iteration.read(tmp_path / "steps", config=source.config)
    assert errors(again) == [] and elements(again) == elements(source)
    assert {t.stored.name.split(".")[0] for t in again.tensors if "opt-" in t.stored.file} == {
        "adam_m", "adam_v", "master", "global_step", "loss_scale",
    }  # fmt: skip


OPTIONAL = [
    name for name in sorted(CONFIGS)
    if any(s.optional for s in load_family(name).spelling(family_config(name)))
]  # fmt: skip


@pytest.mark.parametrize("name", OPTIONAL)
def test_what_a_model_may_go_without_is_all_there_or_not_at_all(tmp_path, name):
    model = family_config(name)
    groups: dict[str, list[str]] = {}
    for spelled in load_family(name).spelling(model):
        groups.setdefault(spelled.optional, []).append(spelled.name)
    del groups[""]
    gone = next(iter(groups.values()))
    write_model(tmp_path / "hf", model, without=tuple(gone))
    source = hf.read(tmp_path / "hf")
    assert errors(source) == [] and not set(source.atoms) & set(gone)
    to_strategy(source, tmp_path / "ranks", ParallelLayout(pp=2, dp=2, zero=3))
    ranks = strategy.read(tmp_path / "ranks", config=model)
    to_sharded(ranks, tmp_path / "sharded", ParallelLayout(dp=2, zero=3))
    to_hf(sharded.read(tmp_path / "sharded"), tmp_path / "back", source.extra["record"])
    assert (tmp_path / "back/model.safetensors").read_bytes() == (tmp_path / "hf/model.safetensors").read_bytes()
    if len(gone) > 1:
        write_model(tmp_path / "half", model, without=(gone[0],))
        assert [(code, tensor) for code, tensor, _ in errors(hf.read(tmp_path / "half"))] == [("W001", gone[0])]


def test_a_step_saved_with_all_its_copies_is_read(tmp_path, training):
    """MindSpore Transformers without remove_redundancy: every rank has a file, and each piece several holders."""
    to_iteration(training, tmp_path / "a", ParallelLayout(tp=2, dp=2), "mindformers")
    step = tmp_path / "a/iteration_00000007"
    body = json.loads((step / "metadata.json").read_text())
    for held in body["storage_data"].values():
        (first,) = held
        for rank in first["rank_group"][1:]:
            old, name = first["file_name"], first["file_name"].replace("-0000000-", f"-{rank:07d}-")
            name = name.replace("-0000001-", f"-{rank:07d}-")
            if not (step / name).exists():
                (step / name).write_bytes((step / old).read_bytes())
            held.append({"file_name": name, "storage_rank": rank, "rank_group": first["rank_group"]})
    replicated = {name for name, held in body["storage_data"].items() if len(held) > 1}
    assert len(replicated) > 40
    # A norm is on all four ranks, but only the files of ranks 0 and 2 were copied from one that has it.
    for held in body["storage_data"].values():
        held[:] = [h for h in held if h["storage_rank"] % 2 == held[0]["storage_rank"] % 2]
    (step / "metadata.json").write_text(json.dumps(body))
    found = iteration.read(tmp_path / "a", config=training.config)
    assert errors(found) == [] and elements(found) == elements(training)
    assert len(list(step.glob("*.safetensors"))) == 8
    assert plan(found, mindspore.layout(Content.of(found))).comparisons


def test_a_step_without_metadata_holds_whole_tensors(tmp_path, training):
    to_mindspore(training, tmp_path / "a")
    found = iteration.read(tmp_path / "a", config=training.config)
    assert errors(found) == [] and elements(found) == elements(training)


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_the_parallel_optimizer_in_metadata_is_one_more_cut(tmp_path, zero):
    """Its layouts are what MindSpore makes of them, and give each rank the rows that its file holds."""
    from mindspore.parallel import Layout
    from safetensors.numpy import load_file

    write_model(tmp_path / "hf", config("qwen2", num_key_value_heads=2))
    with_states(hf.read(tmp_path / "hf"), tmp_path / "full", seed=3)
    source = mindspore.read(tmp_path / "full")
    layout = ParallelLayout(tp=4, dp=2, pp=2, zero=zero)  # and copies of keys and values along half of tp
    to_iteration(source, tmp_path / "steps", layout)
    found = iteration.read(tmp_path / "steps", config=source.config)
    assert errors(found) == [] and elements(found) == elements(source)
    step = tmp_path / "steps/iteration_00000007"
    body = json.loads((step / "metadata.json").read_text())
    whole = {}
    for part in (tmp_path / "full").glob("*.safetensors"):
        whole |= load_file(part)
    files = {path.name: load_file(path) for path in step.glob("*.safetensors")}
    nested = 0
    for name, entry in body["state_dict_metadata"].items():
        if entry["layout"] is None or name in source.extra["counters"]:
            continue
        matrix, tensor_map, interleaved, alias, ranks = entry["layout"].values()
        spoken = [
            [len(alias) - 1 - a for a in (one if isinstance(one, list) else [one]) if a >= 0] for one in tensor_map
        ]
        names = [tuple(alias[a] for a in one) if len(one) > 1 else alias[one[0]] if one else "None" for one in spoken]
        theirs = Layout(tuple(matrix), tuple(alias), ranks)(*names).to_dict()
        listed = [list(one) if isinstance(one, tuple) else one for one in theirs["tensor_map"]]
        assert listed == tensor_map and not interleaved and [*theirs["rank_list"]] == ranks
        nested += any(isinstance(one, list) for one in tensor_map)
        shape = np.array(entry["global_shape"])
        tensor = whole[name]
        if list(tensor.shape) != entry["global_shape"]:
            tensor = np.pad(tensor, [(0, more) for more in shape - tensor.shape])
        for key, holders in body["storage_data"].items():
            if not key.startswith(f"('{name}',"):
                continue
            for rank in holders[0]["rank_group"]:
                place = np.unravel_index(ranks.index(rank), matrix)
                box = []
                for size, axes in zip(shape, spoken, strict=True):
                    index, count = 0, 1
                    for axis in axes:  # outermost first
                        index, count = index * matrix[axis] + place[axis], count * matrix[axis]
                    box.append(slice(index * size // count, (index + 1) * size // count))
                held = files[holders[0]["file_name"]][name]
                assert held.tobytes() == tensor[tuple(box)].tobytes(), (name, key, rank)
    assert (nested > 0) is (zero > 0)
