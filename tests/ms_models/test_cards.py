"""Every family that can be built has a card that names its state, and each measured state a command that exists."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from mappings.families import Family, families
from ms_models import auto, auto_masked_lm

ROOT = Path(__file__).parents[2]
STATES = {"measured", "code-verified", "unverified", "unsupported"}


def registered() -> set[str]:
    """Model types of decoders and encoders."""
    return {*auto.registered(), *auto_masked_lm.registered()}


def card(family: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / "ms_models" / "families" / family / "card.yaml").read_text(encoding="utf-8"))


def built() -> dict[str, Family]:
    """Families with a model; of the others, only checkpoints are converted."""
    return {name: family for name, family in families().items() if set(family.model_types) & registered()}


def test_every_model_has_a_family_and_a_card() -> None:
    assert {kind for family in built().values() for kind in family.model_types} == registered()
    for name, family in built().items():
        assert card(name)["family"] == name
        assert set(card(name)["architectures"]) == set(family.architectures)


@pytest.mark.parametrize("family", built())
def test_states_and_commands_are_real(family: str) -> None:
    body = card(family)
    assert set(body["status"].values()) <= STATES
    assert "measured" in body["status"].values() and body["evidence"]
    for item in body["evidence"]:
        scripts = [word for word in shlex.split(item["command"]) if word.endswith(".py")]
        assert scripts and all((ROOT / script).is_file() for script in scripts)
        assert any(isinstance(value, float | int) for key, value in item.items() if key not in ("command", "what"))
