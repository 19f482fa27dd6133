"""`PreTrainedModel`: directories exchanged with transformers, tied weights, initial values, reports."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
import transformers
from mindspore import Tensor, nn
from safetensors.torch import load_file, save_file

from ms_models.compat import safetensors_files
from ms_models.compat.generation import GenerationMixin
from ms_models.compat.layers import Embedding, Linear
from ms_models.compat.normalization import LayerNorm
from ms_models.compat.pretrained import PreTrainedModel
from ms_models.compat.random import manual_seed
from ms_models.compat.tied_weights import untie

VOCAB, SIZE = 19, 6


class Config(transformers.PretrainedConfig):
    model_type = "pair"

    def __init__(self, layers: int = 2, vocab_size: int = VOCAB, **kwargs: Any) -> None:
        super().__init__(**{"tie_word_embeddings": True, "eos_token_id": 2, **kwargs})
        self.layers, self.vocab_size, self.initializer_range = layers, vocab_size, 0.3


class TorchBody(transformers.PreTrainedModel):
    config_class, base_model_prefix = Config, "body"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed_tokens = torch.nn.Embedding(config.vocab_size, SIZE, padding_idx=0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(SIZE, SIZE) for _ in range(config.layers)])
        self.norm = torch.nn.LayerNorm(SIZE)
        self.register_buffer("scale", torch.ones(2))
        self.post_init()


class TorchHead(transformers.PreTrainedModel, transformers.GenerationMixin):
    config_class, base_model_prefix = Config, "body"
    _tied_weights_keys = {"lm_head.weight": "body.embed_tokens.weight"}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.body = TorchBody(config)
        self.lm_head = torch.nn.Linear(SIZE, config.vocab_size, bias=False)
        self.post_init()

    def forward(self, input_ids: Any) -> Any:
        return self.lm_head(self.body.embed_tokens(input_ids))


class Body(PreTrainedModel):
    config_class, base_model_prefix = Config, "body"

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.embed_tokens = Embedding(config.vocab_size, SIZE, padding_idx=0)
        self.layers = nn.CellList([Linear(SIZE, SIZE) for _ in range(config.layers)])
        self.norm = LayerNorm(SIZE)
        self.register_buffer("scale", Tensor(np.ones(2, np.float32)))
        self.gradient_checkpointing = False
        self.post_init()


class Head(PreTrainedModel, GenerationMixin):
    config_class, base_model_prefix = Config, "body"
    supports_gradient_checkpointing = True
    _tied_weights_keys: Any = {"lm_head.weight": "body.embed_tokens.weight"}

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.body = Body(config)
        self.lm_head = Linear(SIZE, config.vocab_size, bias=False)
        self.post_init()

    def construct(self, input_ids: Tensor) -> Tensor:
        return self.lm_head(self.body.embed_tokens(input_ids))


class OlderHead(Head):
    _tied_weights_keys = ["lm_head.weight"]


class Annotated(PreTrainedModel):
    config: Config


def same(model: Any, reference: Any, rtol: float = 0.0) -> None:
    have, want = dict(model.state_dict()), reference.state_dict()
    assert sorted(have) == sorted(want)
    for name, value in want.items():
        assert str(have[name].dtype).lower() == str(value.dtype).removeprefix("torch."), name
        np.testing.assert_allclose(have[name].float().asnumpy(), value.detach().float().numpy(), rtol, err_msg=name)


@pytest.fixture
def reference() -> TorchHead:
    torch.manual_seed(4)
    return TorchHead(Config())


@pytest.mark.parametrize("shard", ["50GB", "500B", 300])
def test_directories_of_transformers(shard: Any, reference: TorchHead, tmp_path: Path) -> None:
    size = int(shard.removesuffix("B")) if shard == "500B" else shard
    reference.save_pretrained(tmp_path, max_shard_size=size)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shard != "50GB")
    model, info = Head.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    same(model, reference)
    assert model.lm_head.weight is model.body.embed_tokens.weight
    assert not model.training and isinstance(model.config, Config)
    assert model.generation_config.eos_token_id == 2
    assert model.num_parameters() == reference.num_parameters()
    assert model.num_parameters(exclude_embeddings=True) == reference.num_parameters(exclude_embeddings=True)


@pytest.mark.parametrize("limit", ["1GB", 400])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_transformers_reads_what_is_saved(limit: Any, dtype: str, tmp_path: Path) -> None:
    model = Head(Config(layers=3)).to(getattr(ms, dtype))
    (tmp_path / "model-00001-of-00099.safetensors").write_bytes(b"left from an earlier save")
    model.save_pretrained(tmp_path, max_shard_size=limit)
    assert not (tmp_path / "model-00001-of-00099.safetensors").exists()
    loaded, info = TorchHead.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values())
    same(model, loaded)
    assert loaded.lm_head.weight is loaded.body.embed_tokens.weight
    saved = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert saved["architectures"] == ["Head"] and saved["dtype"] == dtype
    assert json.loads((tmp_path / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == 2
    if limit == 400:
        index = json.loads((tmp_path / "model.safetensors.index.json").read_text(encoding="utf-8"))
        names = [name for path in sorted(tmp_path.glob("*.safetensors")) for name in load_file(path)]
        assert sorted(names) == sorted(index["weight_map"]) and "lm_head.weight" not in names
        assert index["metadata"]["total_size"] == sum(
            value.numel() * value.element_size()
            for path in tmp_path.glob("*.safetensors")
            for value in load_file(path).values()
        )


def test_data_types(reference: TorchHead, tmp_path: Path) -> None:
    """By default that of the configuration, as transformers does; otherwise the one that was asked for."""
    reference.to(torch.bfloat16).save_pretrained(tmp_path)
    same(Head.from_pretrained(tmp_path), TorchHead.from_pretrained(tmp_path))
    for dtype in (ms.float32, "float32"):
        same(Head.from_pretrained(tmp_path, dtype=dtype), TorchHead.from_pretrained(tmp_path, dtype=torch.float32))
    assert Head.from_pretrained(tmp_path, torch_dtype=ms.float16).dtype == ms.float16

    class Kept(Head):
        _keep_in_fp32_modules_strict = ["norm"]

    model = Kept.from_pretrained(tmp_path)
    assert model.body.norm.weight.dtype == ms.float32 and model.lm_head.weight.dtype == ms.bfloat16


def test_bodies_and_heads(reference: TorchHead, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A body is loaded from a file with a head, a head from one without."""
    reference.save_pretrained(tmp_path / "head")
    same(Body.from_pretrained(tmp_path / "head"), reference.body)
    reference.body.save_pretrained(tmp_path / "body")
    assert caplog.records == []
    untied = Config(tie_word_embeddings=False)
    model, info = Head.from_pretrained(tmp_path / "body", config=untied, output_loading_info=True)
    same(model.body, reference.body)
    assert info["missing_keys"] == {"lm_head.weight"} and info["unexpected_keys"] == set()
    assert "lm_head.weight" in caplog.text and "train the model" in caplog.text
    assert model.lm_head.weight is not model.body.embed_tokens.weight


def test_report_of_names(reference: TorchHead, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["more"] = torch.ones(2)
    weights["body.norm.bias"] = torch.ones(SIZE + 1)
    del weights["body.layers.1.bias"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(RuntimeError, match=r"body\.norm\.bias \(7,\) instead of \(6,\)"),
    ):
        Head.from_pretrained(tmp_path)
    _, info = Head.from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    _, want = TorchHead.from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    for kind in ("missing_keys", "unexpected_keys"):
        assert set(info[kind]) == set(want[kind]) != set()
    assert {name for name, *_ in info["mismatched_keys"]} == {name for name, *_ in want["mismatched_keys"]}

    class Calm(Head):
        _keys_to_ignore_on_load_missing = [r"layers\.1"]
        _keys_to_ignore_on_load_unexpected = ["^more$"]

    _, info = Calm.from_pretrained(tmp_path, ignore_mismatched_sizes=True, output_loading_info=True)
    assert info["missing_keys"] == info["unexpected_keys"] == set()


def test_names_with_different_values_are_not_tied(reference: TorchHead, tmp_path: Path) -> None:
    reference.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    weights["lm_head.weight"] = weights["body.embed_tokens.weight"] + 1
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    model = Head.from_pretrained(tmp_path)
    same(model, TorchHead.from_pretrained(tmp_path))
    assert model.lm_head.weight is not model.body.embed_tokens.weight


@pytest.mark.parametrize("kind", [Head, OlderHead])
def test_ties(kind: Any, tmp_path: Path) -> None:
    model = kind(Config())
    assert model.lm_head.weight is model.body.embed_tokens.weight
    assert len(list(model.parameters())) == len(list(model.named_parameters(remove_duplicate=False))) - 1
    assert kind(Config(tie_word_embeddings=False)).lm_head.weight is not model.body.embed_tokens.weight
    untie(model, "lm_head.weight")
    assert model.lm_head.weight is not model.body.embed_tokens.weight
    model.tie_weights()
    assert model.lm_head.weight is model.body.embed_tokens.weight
    model.body.layers[1].weight = model.body.layers[0].weight
    with pytest.raises(RuntimeError, match="are one parameter"):
        model.save_pretrained(tmp_path)


def test_initial_values() -> None:
    manual_seed(7)
    model = Head(Config(vocab_size=4000))
    weight = model.body.embed_tokens.weight.asnumpy()
    assert (weight[0] == 0).all()
    # 24000 draws: the standard deviation is within 2 % with overwhelming probability.
    np.testing.assert_allclose([weight[1:].std(), abs(weight.mean()) + 1], [0.3, 1], 0.02)
    for layer in model.body.layers:
        assert (layer.bias.asnumpy() == 0).all() and 0.1 < layer.weight.asnumpy().std() < 0.6
    assert (model.body.norm.weight.asnumpy() == 1).all()

    class Own(Head):
        def _init_weights(self, module: Any) -> None:
            order.append(type(module).__name__)

    order: list[str] = []
    Own(Config(layers=1))
    # Children first; the body, a model of its own, had its turn when it was made.
    assert order == ["Linear", "Own"]


def test_parts_and_switches() -> None:
    model = Head(Config())
    assert model.get_input_embeddings() is model.body.embed_tokens and model.base_model is model.body
    assert model.get_output_embeddings() is model.lm_head
    assert model.device.type == "cpu" and model.dtype == ms.float32
    assert Annotated.config_class is Config and Head.can_generate() and not Body.can_generate()
    assert model.loss_function.__name__ == "ForCausalLMLoss"
    model.loss_function = len
    assert model.loss_function is len
    model.gradient_checkpointing_enable()
    assert model.is_gradient_checkpointing and model.body.gradient_checkpointing
    assert model.body._gradient_checkpointing_func(lambda x, y: x - y, 3, y=1) == 2
    model.gradient_checkpointing_disable()
    assert not model.is_gradient_checkpointing
    with pytest.raises(ValueError, match="does not support"):
        model.body.gradient_checkpointing_enable()


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("options", [{"new_num_tokens": 24}, {"new_num_tokens": 11}, {"pad_to_multiple_of": 8}, {}])
def test_more_or_fewer_tokens(tied: bool, options: dict[str, int], tmp_path: Path) -> None:
    """The new rows are random, next to the mean of the old ones, in transformers too."""
    model = Head(Config(tie_word_embeddings=tied))
    model.save_pretrained(tmp_path / "before")
    reference = TorchHead.from_pretrained(tmp_path / "before")
    given = model.resize_token_embeddings(**options)
    want = reference.resize_token_embeddings(**options)
    assert given is model.get_input_embeddings() and given.num_embeddings == want.num_embeddings
    assert (
        model.lm_head.weight is given.weight
    ) == tied and model.lm_head.out_features == reference.lm_head.out_features
    assert model.config.vocab_size == reference.config.vocab_size
    have = dict(model.state_dict())
    for name, value in reference.state_dict().items():
        # The square root of 1e-9 times a spread of 0.3, a few standard deviations of both sides.
        np.testing.assert_allclose(have[name].asnumpy(), value.numpy(), 0, 1e-4, err_msg=name)
    model.save_pretrained(tmp_path / "after")
    same(model, TorchHead.from_pretrained(tmp_path / "after"))


def test_new_tokens_drawn_as_weights_are() -> None:
    model = Head(Config(vocab_size=4))
    old = model.lm_head.weight.asnumpy().copy()
    model.resize_token_embeddings(4000, mean_resizing=False)
    new = model.lm_head.weight.asnumpy()
    np.testing.assert_array_equal(new[:4], old)
    np.testing.assert_allclose(new[4:].std(), 0.3, 0.02)
    assert model.body.embed_tokens.padding_idx == 0 and model(Tensor([[3999]])).shape == (1, 1, 4000)


def test_faults_are_named(tmp_path: Path) -> None:
    for match, path in (("not a directory", tmp_path / "absent"), ("neither model.safetensors", tmp_path)):
        with pytest.raises(OSError, match=match):
            Head.from_pretrained(path)
    with pytest.raises(ValueError, match="load_in_8bit"):
        Head.from_pretrained(tmp_path, load_in_8bit=True)
    with pytest.raises(ValueError, match="flash"):
        Head(Config(attn_implementation="flash_attention_2"))
    with pytest.raises(TypeError, match="takes a configuration"):
        Head({"layers": 1})
    model = Head(Config())
    with pytest.raises(ValueError, match="push_to_hub"):
        model.save_pretrained(tmp_path, push_to_hub=True)
    with pytest.raises(ValueError, match="max_shard_size"):
        model.save_pretrained(tmp_path, max_shard_size="5 gigs")
    model.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(ValueError, match="copy it again"):
        Head.from_pretrained(tmp_path)


def test_every_data_type_of_a_file(tmp_path: Path) -> None:
    kinds = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
    values = {kind: torch.tensor([[0, 1, 1], [1, 0, 0]]).to(getattr(torch, kind)) for kind in kinds}
    values |= {"empty": torch.ones(0, 3), "number": torch.tensor(2.5)}
    save_file(values, tmp_path / "in.safetensors", {"format": "pt"})
    read = safetensors_files.SafetensorsFile(tmp_path / "in.safetensors")
    assert read.metadata == {"format": "pt"}
    tensors = {name: read.tensor(name) for name in values if name != "empty"}
    safetensors_files.save_safetensors(tmp_path / "out.safetensors", tensors, {"format": "pt"})
    back = load_file(tmp_path / "out.safetensors")
    for name in tensors:
        assert back[name].dtype == values[name].dtype and torch.equal(back[name], values[name]), name
