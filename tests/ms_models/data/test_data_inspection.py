"""Looking at prepared data: hashes, decoded rows, the histogram; through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mappings.errors import UserError
from migrate.cli import app
from ms_models.data import inspection
from tests.ms_models.data.data_helpers import random_texts, words
from tests.ms_models.train.run_helpers import write_tokenizer


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer").mkdir()
    write_tokenizer(tmp_path / "tokenizer")
    texts = [words(1, 2, 3), words(4, 5), words(*range(6, 20)), *random_texts(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["data", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def prepare(packing: str) -> str:
    return run("a.jsonl", "--tokenizer", "tokenizer", "-o", packing, "--seq-length", "8", "--processes", "1",
               "--validation-fraction", "0", "--packing", packing)  # fmt: skip


def test_what_is_shown_of_rows(home: Path) -> None:
    output = prepare("concatenate")
    assert "documents_train: 43" in output and "########" in output and "longest documents:" in output
    shown = run("--show", "concatenate", "--rows", "2")
    assert shown.splitlines() == [
        "row 0: 3 documents, 0 positions of padding",
        "      0..3         4 labels  'w1 w2 w3 <eos>'",
        "      4..6         3 labels  'w4 w5 <eos>'",
        "      7..7         1 labels  'w6'",
        "row 1: 1 documents, 0 positions of padding",
        "      0..7         8 labels  'w7 w8 w9 w10 w11 w12 w13 w14'",
    ]
    prepare("document")
    rows = json.loads(run("--show", "document", "--rows", "1", "--json"))
    assert [(p["start"], p["labelled"]) for p in rows[0]["passages"]] == [(0, 4), (4, 2), (7, 0)]
    prepare("pad")
    (row,) = inspection.show(home / "pad", 1)
    assert (row.padding, [p.text for p in row.passages]) == (4, ["w1 w2 w3 <eos>"])


def test_verify_names_a_changed_file(home: Path) -> None:
    prepare("fit")
    assert "changed: 0" in run("--verify", "fit")
    shard = home / "fit" / "train-00000.mindrecord"
    raw = bytearray(shard.read_bytes())
    raw[-20] ^= 1
    shard.write_bytes(raw)
    output = run("--verify", "fit", code=1)
    assert "changed: 1" in output
    assert "fit/train-00000.mindrecord: its bytes have changed; prepare the data again" in output


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_the_histogram_is_a_file(suffix: str, home: Path) -> None:
    pytest.importorskip("matplotlib", reason="extra viz is not installed")
    prepare("fit")
    run("--show", "fit", "--rows", "1", "--histogram", f"h.{suffix}")
    raw = (home / f"h.{suffix}").read_bytes()
    assert raw.startswith(b"\x89PNG" if suffix == "png" else b"<?xml")
    with pytest.raises(UserError, match=r"must be \.png, \.svg or \.pdf"):
        CliRunner().invoke(app, ["data", "--show", "fit", "--histogram", "h.txt"], catch_exceptions=False)


def test_a_tokenizer_that_is_another_one_is_refused(home: Path) -> None:
    prepare("fit")
    path = home / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match=r"is not the tokenizer that .* was prepared with"):
        list(inspection.show(Path("fit"), 1))
    path.unlink()
    with pytest.raises(UserError, match=r"no tokenizer\.json there"):
        list(inspection.show(Path("fit"), 1))
    with pytest.raises(UserError, match="has no split 'test'"):
        list(inspection.show(Path("fit"), 1, split="test"))


def test_options_that_do_not_go_together_are_refused(home: Path) -> None:
    for arguments in (["data"], ["data", "a.jsonl", "-o", "x"], ["data", "a.jsonl", "--show", "tokenizer"]):
        with pytest.raises(UserError):
            CliRunner().invoke(app, arguments, catch_exceptions=False)


def test_data_of_the_first_format_is_still_read(home: Path) -> None:
    prepare("concatenate")
    path = home / "concatenate" / "data.json"
    body = json.loads(path.read_text())
    for name in ("packing", "isolates", "sources"):
        del body[name]
    del body["documents"]["lengths"]
    body["format"] = "msmigrate-data-1"
    path.write_text(json.dumps(body))
    (row,) = inspection.show(Path("concatenate"), 1)
    assert len(row.passages) == 3
    path.write_text(json.dumps({**body, "format": "msmigrate-data-9"}))
    with pytest.raises(UserError, match="format is 'msmigrate-data-9', not msmigrate-data-2 or msmigrate-data-1"):
        list(inspection.show(Path("concatenate"), 1))
