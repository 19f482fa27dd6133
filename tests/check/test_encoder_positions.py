"""Positions of RoBERTa begin behind its padding token, so that fewer of them can be used."""

from __future__ import annotations

from pathlib import Path

import pytest

from mappings.families.positions import first_position, longest_sequence
from migrate.check.command import check
from tests.ms_models.train.encoder_helpers import write_encoder


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"model_type": "bert", "max_position_embeddings": 512}, (512, "max_position_embeddings")),
        ({"model_type": "roberta", "max_position_embeddings": 514}, (512, "max_position_embeddings")),
        (
            {"model_type": "xlm-roberta", "max_position_embeddings": 514, "pad_token_id": 3},
            (510, "max_position_embeddings"),
        ),
        ({"model_type": "gpt2", "n_positions": 1024}, (1024, "n_positions")),
        ({"model_type": "bloom"}, None),
    ],
)
def test_the_longest_sequence(config: dict[str, object], expected: tuple[int, str] | None) -> None:
    assert longest_sequence(config) == expected


@pytest.mark.parametrize(
    ("kind", "length", "fits"), [("roberta", 18, True), ("roberta", 20, False), ("bert", 20, True)]
)
def test_check_knows_it(kind: str, length: int, fits: bool, tmp_path: Path) -> None:
    model = write_encoder(tmp_path / "model", kind, pad_token_id=1)
    assert first_position({"model_type": kind, "pad_token_id": 1}) == (2 if kind == "roberta" else 0)
    (tmp_path / "run.yaml").write_text(f"data: {{seq_length: {length}}}\n")
    found = [one for one in check(model, run=tmp_path / "run.yaml").findings if one.code == "C402"]
    assert (not found) == fits
    assert all("of which 18 can be used" in one.message for one in found)
