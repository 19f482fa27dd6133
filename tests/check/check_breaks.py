"""Ways to break a model directory: fields, tensors and files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

Break = Callable[[Path], None]
CHATML = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def edit(file: str, **changes: Any) -> Break:
    """Sets fields of a JSON file; `...` removes one."""

    def apply(directory: Path) -> None:
        path = directory / file
        body = json.loads(path.read_text()) if path.is_file() else {}
        for name, value in changes.items():
            if value is ...:
                body.pop(name, None)
            else:
                body[name] = value
        path.write_text(json.dumps(body))

    return apply


def rewrite(change: Callable[[dict[str, np.ndarray]], None]) -> Break:
    """Changes the tensors and stores them in one file."""

    def apply(directory: Path) -> None:
        tensors: dict[str, np.ndarray] = {}
        for path in sorted(directory.glob("*.safetensors")):
            tensors.update(load_file(path))
            path.unlink()
        (directory / "model.safetensors.index.json").unlink(missing_ok=True)
        change(tensors)
        save_file(tensors, directory / "model.safetensors")

    return apply


def tokenizer(change: Callable[[dict[str, Any]], None]) -> Break:
    """Changes the content of tokenizer.json."""

    def apply(directory: Path) -> None:
        path = directory / "tokenizer.json"
        body = json.loads(path.read_text())
        change(body)
        path.write_text(json.dumps(body))

    return apply


def changed(name: str, value: Callable[[np.ndarray], np.ndarray]) -> Break:
    return rewrite(lambda tensors: tensors.update({name: np.ascontiguousarray(value(tensors[name]))}))


def remove(name: str) -> Break:
    return rewrite(lambda tensors: tensors.pop(name))


def longer(*names: str) -> Break:
    """Twenty rows more."""

    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors.update({name: np.concatenate((tensors[name], tensors[name][:20])) for name in names})

    return rewrite(change)


def store(file: str, text: str) -> Break:
    def apply(directory: Path) -> None:
        (directory / file).parent.mkdir(exist_ok=True)
        (directory / file).write_text(text)

    return apply


def store_shard(text: str) -> Break:
    return lambda directory: sorted(directory.glob("*.safetensors"))[1].write_text(text) and None


def begin(start: str) -> Break:
    return rewrite(
        lambda tensors: [tensors.update({start + name: tensors.pop(name)}) for name in list(tensors)] and None
    )


def end_of(start: str) -> Break:
    return rewrite(
        lambda tensors: (
            [tensors.update({name.removeprefix(start): tensors.pop(name)}) for name in list(tensors)] and None
        )
    )


def total_size(value: int | str) -> Break:
    def apply(directory: Path) -> None:
        path = directory / "model.safetensors.index.json"
        body = json.loads(path.read_text())
        body["metadata"]["total_size"] = value
        path.write_text(json.dumps(body))

    return apply


def add_token(body: dict[str, Any]) -> None:
    body["added_tokens"].append({**body["added_tokens"][0], "id": 300, "content": "<|tool|>"})


def share_id(body: dict[str, Any]) -> None:
    vocab = body["model"]["vocab"]
    first, second = sorted(vocab, key=vocab.__getitem__)[40:42]
    vocab[second] = vocab[first]


def unmark_eos(body: dict[str, Any]) -> None:
    next(token for token in body["added_tokens"] if token["content"] == "</s>")["special"] = False


def lower_case(body: dict[str, Any]) -> None:
    body["normalizer"] = {"type": "Lowercase"}


def truncate(directory: Path) -> None:
    path = sorted(directory.glob("*.safetensors"))[1]
    path.write_bytes(path.read_bytes()[:-10])


def lose_shard(directory: Path) -> None:
    sorted(directory.glob("*.safetensors"))[1].unlink()


def index_without_file(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b.safetensors"}}')


def swap_q_and_o(tensors: dict[str, np.ndarray]) -> None:
    tensors["model.layers.1.mlp.down_proj.weight"] = np.ascontiguousarray(
        tensors["model.layers.1.mlp.down_proj.weight"].T
    )


def no_eos(directory: Path) -> None:
    edit("config.json", eos_token_id=...)(directory)
    edit("generation_config.json", eos_token_id=...)(directory)
    edit("tokenizer_config.json", eos_token=...)(directory)


def tied_with_other_head(directory: Path) -> None:
    edit("config.json", tie_word_embeddings=True)(directory)


def template(text: str) -> Break:
    return edit("tokenizer_config.json", chat_template=text)


def remote(source: str) -> Break:
    def apply(directory: Path) -> None:
        (directory / "modeling_x.py").write_text(source)
        edit("config.json", auto_map={"AutoModelForCausalLM": "modeling_x.X"})(directory)

    return apply


def rope(**fields: Any) -> Break:
    return edit("config.json", rope_parameters={"rope_theta": 10000.0, "rope_type": "default", **fields})


def inserting(token: str, number: int) -> Break:
    """Texts begin with a token, by this id, in one of several processors, as fine-tuned tokenizers have them."""
    special = {token: {"id": token, "ids": [number], "tokens": [token]}}
    piece = {"Sequence": {"id": "A", "type_id": 0}}
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": token, "type_id": 0}}, piece],
        "pair": [piece, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": special,
    }
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return tokenizer(lambda body: body.update(post_processor={"type": "Sequence", "processors": [level, template]}))


def between(token: str, number: int) -> Break:
    """The separator of BERT's processor has this id."""
    processor = {"type": "BertProcessing", "sep": [token, number], "cls": ["<s>", 0]}
    return tokenizer(lambda body: body.update(post_processor=processor))
