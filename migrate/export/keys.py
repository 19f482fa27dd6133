"""`mindformers_keys.yaml`: the keys that MindSpore Transformers knows, and a check against them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TABLE = Path(__file__).with_name("mindformers_keys.yaml")


@cache
def keys() -> dict[str, Any]:
    """The table."""
    body: dict[str, Any] = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    return body


def unknown_keys(body: Mapping[str, Any], raw: Mapping[str, Any]) -> list[str]:
    """Dotted names of keys of a run configuration that are in no list.

    Args:
        body: the configuration.
        raw: `config.json` of its model, whose fields may be in its `model` section.
    """
    table = keys()
    lists: dict[str, list[str]] = {**table["closed"], **table["open"]}
    lists["model"] = [*lists.pop("model_additions"), *raw]
    dataloader = lists.pop("dataloader")
    found = [section for section in body if section not in lists]
    for section, names in lists.items():
        found += [f"{section}.{name}" for name in body.get(section, {}) if name not in names]
    given = body.get("train_dataset", {}).get("dataloader", {})
    return found + [f"train_dataset.dataloader.{name}" for name in given if name not in dataloader]
