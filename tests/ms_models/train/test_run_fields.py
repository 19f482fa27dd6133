"""Every field of a run configuration is explained, and the page says what the dataclasses say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from migrate.cli import main
from ms_models.train.config.bounds import number
from ms_models.train.config.field_table import REQUIRED, field_rows, markdown

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Entry:
    """An entry."""

    name: str
    """What it is
    called."""


@dataclass(frozen=True)
class Section:
    """A section."""

    rate: float | None = number(None, least=0, below=1)
    """How fast."""
    entries: tuple[Entry, ...] = ()
    """All of them."""
    silent: bool = True


def test_rows_say_what_the_dataclass_says() -> None:
    rows = [(row.path, row.kind, row.default, row.meaning) for row in field_rows(Section, "s")]
    assert rows == [
        ("s.rate", "number or null, at least 0, below 1", "null", "How fast."),
        ("s.entries", "list of mapping (below)", "`[]`", "All of them."),
        ("s.entries[].name", "text", REQUIRED, "What it is called."),
        ("s.silent", "true or false", "`true`", ""),
    ]


def test_every_field_of_a_run_is_explained() -> None:
    rows = list(field_rows())
    assert len(rows) > 100
    assert [row.path for row in rows if not row.meaning] == []
    assert {"train.steps", "layout.tp", "data.blend[].weight", "model.adapter.class_name"} <= {row.path for row in rows}


def test_the_page_of_fields_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "run-fields.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: msmigrate train --fields > docs/run-fields.md"
    assert main(["train", "--fields"]) == 0
    assert capsys.readouterr().out == page


def test_without_a_configuration_there_is_nothing_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train"]) == 2
    assert "train: give a run configuration, or --fields" in capsys.readouterr().err
