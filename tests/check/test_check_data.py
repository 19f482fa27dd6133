"""Data against model and run: what its description says, what its rows hold, and text before it is prepared."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from check_healthy import make

from mappings.errors import UserError
from mappings.formats.manifest import hash_file
from migrate.check.command import check
from migrate.check.data.data_sets import Document, Readers
from migrate.cli import main
from migrate.report import Report, Severity, Verdict

LENGTH, EOS, PAD = 16, 1, 2


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("llama"))


def description(model: Path, **changes: Any) -> dict[str, Any]:
    """`data.json` of healthy data, changed."""
    facts = {"sha256": hash_file(model / "tokenizer.json").sha256, "eos": EOS, "pad": PAD, "largest_id": 299}
    splits = {
        "train": {"rows": 40, "tokens": 40 * LENGTH, "files": {}},
        "validation": {"rows": 2, "tokens": 2 * LENGTH, "files": {}},
    }
    tokenizer = {**facts, **changes.pop("tokenizer", {})}
    return {
        "seq_length": LENGTH, "splits": {**splits, **changes.pop("splits", {})}, "tokenizer": tokenizer,
        "documents": {"train": 100}, "packing": "concatenate", "isolates": False, **changes,
    }  # fmt: skip


def healthy_rows() -> dict[str, np.ndarray]:
    ids = np.random.default_rng(0).integers(3, 300, (8, LENGTH)).astype(np.int32)
    ids[:, 9] = EOS
    mask, labels = np.ones_like(ids), ids.copy()
    ids[-1, 12:], mask[-1, 12:], labels[-1, 12:] = PAD, 0, -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def write(folder: Path, body: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / "data.json").write_text(json.dumps(body))
    return folder


def readers(rows: dict[str, np.ndarray] | None = None, documents: list[Document] | None = None) -> Readers:
    return Readers(lambda path, count: rows or healthy_rows(), lambda path, count: iter(documents or []))


def codes(report: Report) -> list[str]:
    return sorted({found.code for found in report.findings})


@dataclass(frozen=True)
class Case:
    """What a run says, what one or several data sets say of themselves, and the code of what is wrong."""

    code: str
    run: dict[str, Any] = field(default_factory=dict)
    parts: tuple[dict[str, Any], ...] = ({},)
    words: str = ""


STEPS = {"steps": 10, "micro_batch_size": 2, "accumulation": 2}
BLENDED = {"data": {"blend": [{"path": "0", "weight": 3}, {"path": "1", "weight": 1}]}}
EMPTY = {"rows": 0, "tokens": 0, "files": {}}
CASES: dict[str, Case] = {
    "as long as its data": Case("", {"train": STEPS}, words=""),
    "all of a blend fits": Case("", {**BLENDED, "train": STEPS}, ({}, {})),
    "a shard is missing": Case(
        "C701", parts=({"splits": {"train": {"rows": 40, "files": {"a.mindrecord": {"bytes": 3}}}}},),
        words="0/a.mindrecord is missing",
    ),
    "another tokenizer": Case("C312", parts=({"tokenizer": {"sha256": "0" * 64}},), words="SHA-256 000000000000"),
    "another tokenizer in the second part": Case("C312", BLENDED, ({}, {"tokenizer": {"sha256": "0" * 64}})),
    "another eos": Case("C311", parts=({"tokenizer": {"eos": 7}},), words="eos: data.json says 7, config.json says 1"),
    "another pad": Case("C311", parts=({"tokenizer": {"pad": 7}},), words="pad: data.json says 7, config.json says 2"),
    "ids behind the vocabulary": Case("C313", parts=({"tokenizer": {"largest_id": 300}},), words="id 300"),
    "rows longer than the positions": Case("C402", parts=({"seq_length": 128},), words="rows of 128 tokens"),
    "rows of another length than the run's": Case("C703", {"data": {"path": "0", "seq_length": 8}}, words="is 8"),
    "parts of two lengths": Case("C703", BLENDED, ({}, {"seq_length": 8}), words="sequences of 8, 0 has 16"),
    "one part isolates": Case("C703", BLENDED, ({}, {"isolates": True}), words="separated documents True"),
    "a weight of nothing": Case(
        "C702", {"data": {"blend": [{"path": "0", "weight": 0}]}}, words="data.blend[0].weight must be a number above 0"
    ),
    "a part without path": Case("C605", {"data": {"blend": [{"weight": 2}]}}, words="data.blend[0]"),
    "no rows": Case("C704", {"train": STEPS}, ({"splits": {"train": EMPTY}},), words="no rows to train on"),
    "more than max_epochs": Case(
        "C704", {"train": STEPS, "layout": {"dp": 2}, "data": {"path": "0", "max_epochs": 1}},
        words="10 steps of 8 rows read 40 rows 2.00 times, data.max_epochs is 1",
    ),
    "read again": Case("C705", {"train": {**STEPS, "steps": 11}}, words="1.10 times"),
    "one part of a blend is read again": Case(
        "C705", {**BLENDED, "train": {**STEPS, "steps": 17}}, ({}, {}), "read 40 rows 1.27 times"
    ),
    "nothing to evaluate on": Case(
        "C706", {"train": {**STEPS, "eval_every": 5}}, ({"splits": {"validation": EMPTY}},), words="eval_every is 5"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_descriptions(name: str, model: Path, tmp_path: Path) -> None:
    case = CASES[name]
    for number, part in enumerate(case.parts):
        write(tmp_path / str(number), description(model, **json.loads(json.dumps(part))))
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"data": {"path": "0"}, **case.run}))
    report = check(model, run=run)
    assert codes(report) == ([case.code] if case.code else []), report.findings
    assert case.words in "".join(found.message for found in report.findings)
    [stage] = [stage for stage in report.stages if stage.name == "data"]
    assert (stage.verdict is Verdict.PASS) == bool(stage.compared) or stage.verdict is Verdict.FAIL


Change = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def _shift(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> None:
    labels[:, :-1], labels[:, -1] = np.where(mask[:, 1:] == 1, ids[:, 1:], -100), -100


def _no_eos(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> None:
    ids[:, 9] = labels[:, 9] = 7


def _set(which: int, place: tuple[int, int], value: int) -> Change:
    return lambda *arrays: arrays[which].__setitem__(place, value)


def _both(place: tuple[int, int], value: int) -> Change:
    def change(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> None:
        ids[place] = labels[place] = value

    return change


def _pad_first(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> None:
    mask[0, 0], labels[0, 0] = 0, -100


def _no_label(ids: np.ndarray, mask: np.ndarray, labels: np.ndarray) -> None:
    labels[3] = -100


ROWS: dict[str, tuple[str, Change, str]] = {
    "healthy": ("", lambda *arrays: None, ""),
    "an id too large": ("C313", _both((2, 5), 300), "1 of 128 positions in 8 rows; the first is row 2 of the sample"),
    "a negative id": ("C313", _both((0, 0), -1), "id -1, the model has 0 to 299"),
    "a label at padding": ("C711", _set(2, (7, 13), PAD), "position 13: label 2 at padding"),
    "shifted labels": ("C712", _shift, "is the next token: shifted already"),
    "a label of its own": ("C712", _set(2, (1, 1), 5), "row 1 of the sample, position 1: label 5, token"),
    "padding at the beginning": ("C713", _pad_first, "position 1: a token behind padding"),
    "a row without labels": ("C714", _no_label, "1 of 8 rows have no label"),
    "the padding token in the text": ("C715", _both((4, 4), PAD), "position 4: the padding token 2"),
    "no ends": ("C716", _no_eos, "8 rows of 16 tokens hold no end-of-text token (1); a document has 6 tokens"),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows(name: str, model: Path, tmp_path: Path) -> None:
    code, change, words = ROWS[name]
    rows = healthy_rows()
    change(*rows.values())
    data = write(tmp_path / "data", description(model))
    report = check(model, data=[data], readers=readers(rows))
    assert codes(report) == ([code] if code else []), report.findings
    assert words in "".join(found.message for found in report.findings)
    stage = report.stages[-1]
    assert stage.name == "data rows" and (stage.compared == 128 or stage.verdict is Verdict.FAIL)


def test_a_shard_that_cannot_be_read(model: Path, tmp_path: Path) -> None:
    def refuse(path: Path, count: int) -> Any:
        raise UserError(f"{path}: a shard is damaged")

    data = write(tmp_path / "data", description(model))
    report = check(model, data=[data], readers=Readers(refuse, lambda path, count: []))
    assert codes(report) == ["C701"] and report.stages[-1].verdict is Verdict.FAIL


def test_shards_without_description(model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.mindrecord").write_bytes(b"x")
    report = check(model, data=[tmp_path], readers=readers())
    assert codes(report) == ["C701"] and "no data.json" in report.findings[0].message


TEXTS: dict[str, tuple[str, list[Document], str]] = {
    "healthy": ("", [("a", "def add(a, b)", ""), ("b", "the model", "")], ""),
    "no text": ("C722", [("a", "x y", ""), ("b", None, "undecodable")], "1 of 2 documents have no text, e.g. b (undec"),
    "empty": ("C722", [("a", "x y", ""), ("b", " \n", "")], "e.g. b (empty)"),
    "spelled out": ("C723", [("a", "x </s> y", "")], "1 of 1 documents spell out a special token, e.g. a has '</s>'"),
    "long": ("C725", [("a", "xyz " * 99, "")], "1 of 1 documents have more than 64 tokens, a has"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name: str, model: Path, tmp_path: Path) -> None:
    code, documents, words = TEXTS[name]
    report = check(model, data=[tmp_path], readers=readers(documents=documents))
    assert codes(report) == ([code] if code else []), report.findings
    assert words in "".join(found.message for found in report.findings)
    assert report.stages[-1].compared == len(documents)


def test_text_the_tokenizer_does_not_know(model: Path, tmp_path: Path) -> None:
    words = {"<unk>": 0, "</s>": 1, "<pad>": 2, "model": 3}
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    body = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(body))
    report = check(folder, data=[tmp_path], readers=readers(documents=[("a", "model xyz model model", "")]))
    [found] = [found for found in report.findings if found.code == "C724"]
    assert "1 of 4 tokens (25.0%) are unknown to the tokenizer (id 0)" in found.message


def _files(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    record = json.dumps({"text": "x </s> y"}) + "\n"
    (folder / "a.txt").write_text("x </s> y")
    (folder / "b.jsonl").write_text(record)
    with gzip.open(folder / "c.jsonl.gz", "wt") as file:
        file.write(record)
    pa = pytest.importorskip("pyarrow")
    pa.parquet = pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table({"text": ["x </s> y"]}), folder / "d.parquet")
    yield from sorted(folder.iterdir())


def test_every_kind_of_file_by_the_command(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = list(_files(tmp_path / "text"))
    options = [word for file in files for word in ("--data", str(file))]
    assert main(["check", str(model), *options, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [(f["code"], f["file"]) for f in report["findings"]] == [("C723", str(file)) for file in files]
    assert main(["check", str(model), "--data", str(files[1]), "--text-field", "body"]) == 1
    assert "no text under 'body'; the record has 'text'" in " ".join(capsys.readouterr().out.split())


def test_data_prepared_by_the_command_is_clean_and_a_changed_model_is_not(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").mkdir()
    for number in range(60):
        (tmp_path / "text" / f"{number}.txt").write_text("the model and the data, the data and the model\n" * 3)
    data = tmp_path / "data"
    options = ["--tokenizer", str(model), "--seq-length", "32", "--processes", "1", "-o", str(data)]
    assert main(["data", str(tmp_path / "text"), *options, "--validation-fraction", "0.1"]) == 0
    assert main(["check", str(model), "--data", str(data)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "data rows pass 2,048" in text  # 64 rows of 32
    other = tmp_path / "other"
    shutil.copytree(model, other)
    body = json.loads((other / "tokenizer.json").read_text())
    (other / "tokenizer.json").write_text(json.dumps(body, indent=1))
    assert main(["check", str(other), "--data", str(data)]) == 1
    assert "error C312" in capsys.readouterr().out


def test_notes_do_not_fail(model: Path, tmp_path: Path) -> None:
    report = check(model, data=[tmp_path], readers=readers(documents=TEXTS["long"][1]))
    assert report.exit_code == 0 and report.findings[0].severity is Severity.NOTE
