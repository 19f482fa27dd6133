"""Every family file against the names and shapes that the installed transformers saves."""

from __future__ import annotations

import json
import struct
from math import prod
from pathlib import Path
from typing import Any

import pytest
from family_configs import cases, entry, model_config

from mappings.arrangement import Arrangement, Shape
from mappings.families import families, family_for_config, load_family

TRANSFORMERS = [name for name in families() if "cases" in entry(name)]


def spelled(config: dict[str, Any], spelling: str = "hf") -> dict[str, tuple[Shape, str]]:
    """Shape and optional group of every tensor of a spelling."""
    family = family_for_config(config)
    shapes = {atom.name: atom.shape for atom in family.atoms(config).values()}
    result = {}
    for tensor in family.spelling(config, spelling):
        whole = tensor.arrangement(lambda name: Arrangement.of(name, shapes[name]), family.dims(config))
        assert whole is not None
        result[tensor.name] = whole.shape, tensor.optional
    return result


def differences(stored: dict[str, Shape], ours: dict[str, tuple[Shape, str]]) -> list[str]:
    """What a checkpoint has and the family does not, and the other way round. Optional groups may be absent whole."""
    wrong = [name for name, shape in stored.items() if name not in ours or ours[name][0] != shape]
    groups = {group for name, (_, group) in ours.items() if group and name in stored}
    return wrong + [name for name, (_, group) in ours.items() if name not in stored and (not group or group in groups)]


def build(config: dict[str, Any], device: str = "cpu") -> Any:
    """The model of transformers."""
    import torch
    import transformers

    fields = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    with torch.device(device):
        built = transformers.AutoConfig.for_model(config["model_type"], **fields)
        return getattr(transformers, config["architectures"][0])._from_config(built)


def saved(config: dict[str, Any], directory: Path) -> tuple[dict[str, Any], dict[str, Shape]]:
    """`config.json` and the shape of every tensor, as transformers saves them."""
    build(config).save_pretrained(directory)
    with (directory / "model.safetensors").open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    shapes = {name: tuple(facts["shape"]) for name, facts in header.items()}
    return json.loads((directory / "config.json").read_text()), shapes


def test_every_family_has_a_small_model() -> None:
    for name, family in families().items():
        assert ("cases" in entry(name)) != ("published" in entry(name)), name
        assert bool(family.note) == ("published" in entry(name)), name


@pytest.mark.parametrize(("name", "changes"), cases())
def test_names_and_shapes_are_those_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    config = model_config(name, **changes)
    written, stored = saved(config, tmp_path)
    assert family_for_config(written).name == name
    assert written["architectures"][0] in (*load_family(name).architectures, *load_family(name).headless)
    assert not differences(stored, spelled(written))
    assert spelled(config) == spelled(written)
    first = next(iter(stored))
    planted = {key: shape for key, shape in stored.items() if key != first}
    assert differences(planted, spelled(written)) == [first]
    assert differences({**stored, first: (*stored[first], 1)}, spelled(written)) == [first]
    assert differences({**stored, "one.more": (1,)}, spelled(written)) == ["one.more"]


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_defaults_are_those_of_transformers(name: str) -> None:
    family = load_family(name)
    sources = [*family.dimensions.values(), *family.flags.values(), *family.lists.values()]
    fields = {source["field"] for source in sources if "default" in source}
    config = model_config(name)
    in_memory = "hf_fused" if "hf_fused" in family.spellings else "hf"
    for field in fields & set(config):
        left = {key: value for key, value in config.items() if key != field}
        stored = build(left, "meta").state_dict().items()
        shapes = {key: tuple(tensor.shape) for key, tensor in stored if not family.is_ignored(key, left)}
        assert not differences(shapes, spelled(left, in_memory)), field


@pytest.mark.parametrize("name", [name for name, family in families().items() if family.headless])
def test_names_without_heads(name: str) -> None:
    family, config = load_family(name), model_config(name)
    headless = {**config, "architectures": list(family.headless)}
    below = {key: value for key, value in spelled(config).items() if key.startswith(family.prefix)}
    bare = {key.removeprefix(family.prefix): value for key, value in below.items()}
    assert below and spelled(headless, "hf_prefixed") == below
    assert spelled(headless) == spelled(headless, "hf_bare") == bare
    heads = {key: value for key, value in spelled(config).items() if key not in below}
    assert spelled(config, "hf_bare") == bare | heads


@pytest.mark.parametrize("name", [name for name in families() if "published" in entry(name)])
def test_published_models(name: str) -> None:
    for facts in entry(name)["published"]:
        config = {"model_type": load_family(name).model_types[0], **facts["config"]}
        shapes = {key: shape for key, (shape, _) in spelled(config).items()}
        assert sum(map(prod, shapes.values())) == facts["parameters"]
        assert {key: list(shapes[key]) for key in facts["shapes"]} == facts["shapes"]
