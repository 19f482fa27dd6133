"""Small made-up Hugging Face directories, written with the safetensors library, not with the code under test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from mappings.families import Family, family_for_config

DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "F64": np.dtype("<f8")}
SMALL: dict[str, Any] = {
    "vocab_size": 37,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": False,
}


def config(model_type: str = "qwen2", **changes: Any) -> dict[str, Any]:
    """A small `config.json`."""
    return {"model_type": model_type, **SMALL, **changes}


def random_bytes(shape: tuple[int, ...], itemsize: int, rng: np.random.Generator) -> np.ndarray:
    """Any bit pattern, NaNs of every kind included: bytes must survive, not values."""
    return rng.integers(0, 256, (*shape, itemsize), np.uint8)


def write_tensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """Writes (dtype, bytes with a last axis for the element) by name; BF16 goes through its U16 twin."""
    arrays = {}
    for name, (dtype, raw) in tensors.items():
        kind = DTYPES.get(dtype, np.dtype("<u2"))
        arrays[name] = np.ascontiguousarray(raw).view(kind)[..., 0]
    save_file(arrays, path, metadata={"format": "pt"})
    if any(dtype == "BF16" for dtype, _ in tensors.values()):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + length])
        for name, (dtype, _) in tensors.items():
            header[name]["dtype"] = dtype
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()  # as the library writes it
        text += b" " * (-len(text) % 8)
        path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def write_model(
    directory: Path,
    model_config: dict[str, Any],
    *,
    dtype: str = "F32",
    shards: int = 1,
    tied_copy: bool = False,
    seed: int = 0,
    extra: dict[str, tuple[str, np.ndarray]] | None = None,
    without: tuple[str, ...] = (),
) -> Family:
    """Writes a directory with every parameter of the family, in `shards` files."""
    directory.mkdir(parents=True)
    family = family_for_config(model_config)
    rng = np.random.default_rng(seed)
    size = 2 if dtype in ("BF16", "F16") else 8 if dtype == "F64" else 4
    tensors = {p.name: (dtype, random_bytes(p.shape, size, rng)) for p in family.parameters(model_config)}
    if tied_copy:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    tensors.update(extra or {})
    for name in without:
        del tensors[name]
    names = list(tensors)
    rng.shuffle(names)  # shards need not follow layer order
    if shards == 1:
        write_tensors(directory / "model.safetensors", tensors)
    else:
        weight_map = {}
        for number in range(shards):
            file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
            mine = names[number::shards]
            write_tensors(directory / file, {name: tensors[name] for name in mine})
            weight_map.update(dict.fromkeys(mine, file))
        total = sum(raw.size for _, raw in tensors.values())
        index = {"metadata": {"total_size": total}, "weight_map": weight_map}
        text = json.dumps(index, indent=2, sort_keys=True) + "\n"
        (directory / "model.safetensors.index.json").write_text(text)
    (directory / "config.json").write_text(json.dumps(model_config))
    (directory / "tokenizer.json").write_text('{"version": "1.0"}')
    (directory / "generation_config.json").write_text('{"eos_token_id": 1}\n')
    (directory / "README.md").write_text("not carried over")
    return family


def tensors_of(directory: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """(dtype, shape, bytes) by name of every safetensors file, read without the code under test."""
    result = {}
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        length = int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                result[name] = (entry["dtype"], tuple(entry["shape"]), data[begin:end])
    return result
