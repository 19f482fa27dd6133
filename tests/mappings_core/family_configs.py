"""Reads `family_configs.yaml`: small models of every family."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from mappings.families import load_family


@cache
def _read() -> dict[str, Any]:
    return yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))


def entry(family: str) -> dict[str, Any]:
    """All that the file says about a family."""
    return _read().get(family, {})


def model_config(family: str, **changes: Any) -> dict[str, Any]:
    """A small `config.json` as a person writes it: fields at their defaults are left out."""
    kind, body = load_family(family), entry(family)
    cls = changes.pop("class", body.get("class", kind.architectures[0]))
    return {"model_type": kind.model_types[0], "architectures": [cls], **body["config"], **changes}


def cases() -> list[tuple[str, dict[str, Any]]]:
    """Family and changes to its small model, for every family that transformers has a class of."""
    return [(family, case) for family, body in _read().items() for case in body.get("cases", ())]
