"""MindSpore reads what we write, and we read what it writes, bit for bit: whole, cut, joined and recut by it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from container_runs import elements, errors, to_mindspore, to_strategy, with_states, write
from hf_checkpoints import config, tensors_of, write_model

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights.containers import ckpt, hf, mindspore, strategy
from migrate.weights.containers.content import Content
from migrate.weights.tensors import Checkpoint

MERGED = "strategy/merged_ckpt_strategy.ckpt"


@pytest.fixture(scope="module", params=["F32", "BF16"])
def training(request, tmp_path_factory) -> Checkpoint:
    """Weights, moments and counters of a small model; rows of the vocabulary divide, for MindSpore has no padding."""
    import mindspore as ms

    ms.runtime.launch_blocking()
    folder = tmp_path_factory.mktemp("training")
    write_model(folder / "hf", config("qwen2", vocab_size=40, num_key_value_heads=4), dtype=request.param)
    with_states(hf.read(folder / "hf"), folder / "full", seed=3)
    return mindspore.read(folder / "full")


def raw(parameters) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Shape and bytes of what MindSpore loaded."""
    return {name: (tuple(p.shape), p.data.get_bytes()) for name, p in parameters.items()}


def is_bf16(training: Checkpoint) -> bool:
    return any(tensor.stored.dtype == "BF16" for tensor in training.tensors)


def stored(folder: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    return {name: (shape, data) for name, (_, shape, data) in tensors_of(folder).items()}


@pytest.mark.parametrize("spelling", ["hf", "mindformers"])
def test_whole_files_load(tmp_path, training, spelling):
    import mindspore as ms

    to_mindspore(training, tmp_path / "full", spelling, part_bytes=20_000)
    parts = sorted((tmp_path / "full").glob("*.safetensors"))
    assert len(parts) > 3
    loaded = {}
    for part in parts:
        loaded |= raw(ms.load_checkpoint(str(part), format="safetensors"))
    assert loaded == stored(tmp_path / "full")
    write(training, ckpt.layout(Content.of(training, spelling)), tmp_path / "one")
    ckpt.finish(tmp_path / "one", crc=True)
    assert raw(ms.load_checkpoint(str(tmp_path / "one/model.ckpt"), crc_check=True)) == loaded


def test_checksums_are_those_of_mindspore(tmp_path, training):
    import mindspore as ms

    if is_bf16(training):  # its CRC fails on BF16 ("cannot include dtype 'E' in a buffer"), so nobody could check it
        with pytest.raises(UserError, match="BF16"):
            to_mindspore(training, tmp_path / "full", crc=True)
        return
    to_mindspore(training, tmp_path / "full", crc=True)
    for part in (tmp_path / "full").glob("*.safetensors"):
        assert raw(ms.load_checkpoint(str(part), format="safetensors", crc_check=True))
        assert not mindspore.damaged(part)
        data = bytearray(part.read_bytes())
        data[-1] ^= 1
        part.write_bytes(data)
        assert mindspore.damaged(part)
        with pytest.raises(ValueError, match="crc check has failed"):
            ms.load_checkpoint(str(part), format="safetensors", crc_check=True)


def test_every_parameter_of_a_net_is_loaded(tmp_path, training):
    import mindspore as ms

    class Net(ms.nn.Cell):
        def __init__(self, shapes) -> None:
            super().__init__()
            kind = {"F32": ms.float32, "BF16": ms.bfloat16, "I32": ms.int32}
            self.all = ms.ParameterTuple(
                [ms.Parameter(ms.ops.zeros(shape, kind[dtype]), name=name) for name, (dtype, shape) in shapes.items()]
            )

    content = Content.of(training, "mindformers")
    files = ckpt.layout(content)
    write(training, files, tmp_path)
    net = Net({t.name: (t.dtype, t.arrangement.shape) for t in files[0].tensors})
    loaded = ms.load_checkpoint(str(tmp_path / "model.ckpt"))
    missing, unexpected = ms.load_param_into_net(net, loaded, strict_load=True)
    assert missing == [] and unexpected == [] and len(files[0].tensors) > 50
    held = {p.name: p.data.get_bytes() for p in net.get_parameters()}
    assert held == {name: data for name, (_, data) in raw(loaded).items()}


LAYOUTS = [
    ParallelLayout(tp=2, dp=2, zero=1), ParallelLayout(tp=2, dp=2, zero=3), ParallelLayout(tp=2, pp=2),
]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_ranks_are_those_that_mindspore_cuts_from_the_full_weights(tmp_path, training, layout):
    _compare_with_mindspore(tmp_path, training, layout)


def test_ranks_of_experts_are_those_that_mindspore_cuts(tmp_path):
    sizes = {"num_experts": 4, "moe_intermediate_size": 8, "head_dim": 4, "vocab_size": 40}
    write_model(tmp_path / "hf", config("qwen3_moe", **sizes))
    # Copies of what only ep cuts are on ranks that do not follow each other.
    _compare_with_mindspore(tmp_path, hf.read(tmp_path / "hf"), ParallelLayout(tp=2, dp=4, ep=2, zero=3))


@pytest.mark.parametrize("zero", [0, 3])
def test_more_ranks_than_key_value_heads(tmp_path, zero):
    """Neighbours hold copies of a head: tp is two axes of the mesh for keys and values, and their biases."""
    write_model(tmp_path / "hf", config("qwen2", vocab_size=40, num_key_value_heads=2))
    source, layout = hf.read(tmp_path / "hf"), ParallelLayout(tp=4, dp=2, zero=zero)
    _compare_with_mindspore(tmp_path, source, layout, "hf")
    keys = [stored(tmp_path / f"ours/rank_{rank}")["model.layers.0.self_attn.k_proj.bias"][1] for rank in range(4)]
    assert len(set(keys)) == (4 if zero else 2) and (zero or keys == [keys[0], keys[0], keys[2], keys[2]])
    assert len(keys[0]) == (1 if zero else 4) * 4
    found = strategy.read(tmp_path / "ours", config=source.config)
    assert errors(found) == [] and elements(found) == elements(source)


def _compare_with_mindspore(tmp_path, training, layout, spelling="mindformers") -> None:
    import mindspore as ms

    to_mindspore(training, tmp_path / "full", spelling)
    to_strategy(training, tmp_path / "ours", layout, spelling, merge=True)
    ms.load_distributed_checkpoint(
        network=None,
        predict_strategy=str(tmp_path / "ours" / MERGED),
        unified_safetensors_dir=str(tmp_path / "full"),
        dst_safetensors_dir=str(tmp_path / "theirs"),
        format="safetensors",
        max_process_num=1,
    )
    for rank in range(layout.world_size):
        ours, theirs = stored(tmp_path / f"ours/rank_{rank}"), stored(tmp_path / f"theirs/rank_{rank}")
        assert {name: ours[name] for name in theirs} == theirs, rank
        assert set(ours) - set(theirs) <= {"global_step", "loss_scale"} and len(theirs) > 20


@pytest.mark.parametrize("remove_redundancy", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS[1:], ids=str)
def test_what_mindspore_unifies_is_read(tmp_path, training, layout, remove_redundancy, monkeypatch):
    import mindspore as ms
    from mindspore.parallel import transform_safetensors

    # It waits for ever on a host whose memory is more than half used.
    monkeypatch.setattr(transform_safetensors.psutil, "virtual_memory", lambda: SimpleNamespace(percent=0.0))
    options = {"remove_redundancy": True} if remove_redundancy else {}
    to_strategy(training, tmp_path / "ranks", layout, "mindformers", merge=True, **options)
    ms.unified_safetensors(
        str(tmp_path / "ranks"),
        str(tmp_path / "ranks" / MERGED),
        str(tmp_path / "full"),
        merge_with_redundancy=not remove_redundancy,
        max_process_num=1,
    )
    found = mindspore.read(tmp_path / "full", config=training.config, spelling="mindformers")
    assert errors(found) == [] and elements(found) == elements(training)


@pytest.mark.parametrize("suffix", ["safetensors", "ckpt"])
def test_what_mindspore_recuts_is_read(tmp_path, training, suffix, monkeypatch):
    import mindspore as ms
    from mindspore.parallel import transform_safetensors

    # It hands views to safetensors 0.8, which writes the memory behind them: columns come out wrong without this.
    save = transform_safetensors.save_file
    monkeypatch.setattr(
        transform_safetensors,
        "save_file",
        lambda tensors, *args, **named: save({n: np.asarray(t, order="C") for n, t in tensors.items()}, *args, **named),
    )
    naming = strategy.Naming(suffix=f".{suffix}")
    to_strategy(training, tmp_path / "four", ParallelLayout(tp=4), "mindformers", naming)
    to_strategy(training, tmp_path / "two", ParallelLayout(tp=2), "mindformers", naming)
    ms.transform_checkpoints(
        str(tmp_path / "four"),
        str(tmp_path / "theirs"),
        "checkpoint_",
        str(tmp_path / "four/strategy/ckpt_strategy_rank_0.ckpt"),
        str(tmp_path / "two/strategy/ckpt_strategy_rank_0.ckpt"),
        process_num=1,
        output_format=suffix,
    )
    ours = strategy.read(tmp_path / "two", config=training.config, spelling="mindformers")
    theirs = strategy.read(
        tmp_path / "theirs", config=training.config, spelling="mindformers", strategy=tmp_path / "two/strategy"
    )
    assert errors(theirs) == [] and len(ours.tensors) == len(theirs.tensors)
    kinds = [{(t.stored.name, t.stored.dtype, t.stored.arrangement.shape) for t in s.tensors} for s in (ours, theirs)]
    assert kinds[0] == kinds[1]
    wanted, found = elements(training), elements(theirs)
    if suffix == "ckpt" and is_bf16(training):  # it goes through fp32 and knows one NaN only
        wanted, found = (
            {n: data if n.startswith("exp_avg") else one_nan(data) for n, data in some.items()}
            for some in (wanted, found)
        )
    assert found == wanted


def one_nan(data: bytes) -> bytes:
    """BF16 with one bit pattern for all NaNs."""
    bits = np.frombuffer(data, "<u2")
    return np.where((bits & 0x7FFF) > 0x7F80, np.uint16(0x7FC0), bits).tobytes()


def test_what_mindspore_saves_is_read(tmp_path, training):
    import mindspore as ms

    to_mindspore(training, tmp_path / "a")
    loaded = {}
    for part in (tmp_path / "a").glob("*.safetensors"):
        loaded |= ms.load_checkpoint(str(part), format="safetensors")
    saved = [{"name": name, "data": parameter} for name, parameter in loaded.items()]
    (tmp_path / "b").mkdir()
    crc = not is_bf16(training)
    ms.save_checkpoint(saved, str(tmp_path / "b/all.safetensors"), format="safetensors", crc_check=crc)
    ms.save_checkpoint(saved, str(tmp_path / "b/all.ckpt"), crc_check=True)
    found = mindspore.read(tmp_path / "b", config=training.config)
    assert errors(found) == [] and elements(found) == elements(training)
    assert not mindspore.damaged(tmp_path / "b/all.safetensors")
    assert elements(ckpt.read(tmp_path / "b/all.ckpt", config=training.config)) == elements(training)
