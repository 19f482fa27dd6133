"""Text to MindRecord: what is read, how it is split and packed, that it is deterministic, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mappings.errors import UserError
from ms_models.data import documents
from ms_models.data import prepare as preparing
from ms_models.data.documents import find_spans
from ms_models.data.packing import IGNORED, Concatenation
from ms_models.data.reading import ReadingOptions, Task, read_documents
from ms_models.data.recipe import Recipe
from ms_models.data.records import PreparedData
from tests.ms_models.data.data_helpers import kept_tokens as stream
from tests.ms_models.data.data_helpers import rows, words
from tests.ms_models.train.run_helpers import EOS, PAD, WORDS, write_tokenizer


def prepare(text: list[Any], tokenizer: Path, out: Path, *, processes: int = 1, **settings: Any) -> dict[str, Any]:
    recipe = Recipe(text=tuple(map(str, text)), **settings)
    return preparing.prepare(recipe, tokenizer, out, processes=processes)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    write_tokenizer(directory)
    return directory


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    directory = tmp_path / "corpus"
    (directory / "deep" / "er").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(30):
        text = words(*rng.integers(0, WORDS, rng.integers(1, 40)))
        (directory / ("deep/er" if number % 3 else ".") / f"{number}.txt").write_text(text)
    (directory / "ignored.bin").write_bytes(b"\0")
    (directory / "empty.txt").write_text("")
    (directory / "latin.txt").write_bytes(b"caf\xe9")
    return directory


def split_documents(tokens: list[int]) -> set[tuple[int, ...]]:
    result, current = [], []
    for token in tokens:
        if token == EOS:
            result.append(tuple(current))
            current = []
        else:
            current.append(token)
    assert not current, "the last document has its end"
    assert len(set(result)) == len(result)
    return set(result)


def test_every_document_is_there_once_with_its_end(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    summary = prepare([corpus], tokenizer, out, seq_length=16, validation_fraction=0.3, seed=3)
    expected = set()
    for path in corpus.rglob("*.txt"):
        if path.name not in ("empty.txt", "latin.txt"):
            expected.add(tuple(int(word[1:]) for word in path.read_text().split()))
    train, held_out = (split_documents(stream(rows(out, split))) for split in ("train", "validation"))
    assert train | held_out == expected
    assert not train & held_out
    assert len(held_out) == summary["documents_validation"] > 0
    assert len(train) == summary["documents_train"]
    assert (summary["documents_empty"], summary["documents_undecodable"]) == (1, 1)
    assert summary["documents_longer_than_a_sequence"] == sum(len(document) >= 16 for document in expected)
    assert "latin.txt" in summary["documents_undecodable_examples"][0]
    assert sum(summary["documents_length_histogram"].values()) == 30
    assert summary["train_tokens"] == sum(len(d) + 1 for d in train)
    assert summary["train_sequences"] == len(rows(out, "train")) == -(-summary["train_tokens"] // 16)


def test_padding_stands_at_the_end_of_the_last_row_only(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    prepare([corpus], tokenizer, tmp_path / "out", seq_length=16, validation_fraction=0.3, seed=3)
    found = rows(tmp_path / "out", "train")
    assert all(row["attention_mask"].all() for row in found[:-1])
    last = found[-1]
    kept = int(last["attention_mask"].sum())
    assert 0 < kept < 16, "the corpus of this test must leave a part of a row"
    assert (last["input_ids"][kept:] == PAD).all()
    assert (last["labels"][kept:] == IGNORED).all()
    assert not last["attention_mask"][kept:].any()
    for row in found:
        keep = row["attention_mask"] == 1
        assert (row["labels"][keep] == row["input_ids"][keep]).all()
        assert {array.dtype for array in row.values()} == {np.dtype(np.int32)}


def test_same_bytes_for_any_number_of_processes_and_another_seed_differs(
    corpus: Path, tokenizer: Path, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"seq_length": 16, "validation_fraction": 0.3, "shard_bytes": 16 * 12 * 10}
    one, two, other = tmp_path / "one", tmp_path / "two", tmp_path / "other"
    prepare([corpus], tokenizer, one, seed=3, processes=1, **settings)
    prepare([corpus], tokenizer, two, seed=3, processes=2, **settings)
    prepare([corpus], tokenizer, other, seed=4, processes=1, **settings)
    names = sorted(path.name for path in one.iterdir())
    assert len([name for name in names if name.startswith("train")]) > 2, "several shards"
    assert names == sorted(path.name for path in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)
    assert stream(rows(other, "train")) != stream(rows(one, "train"))


def test_json_lines_are_read_once_whatever_the_spans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.jsonl"
    texts = [f"text {i} " + "x" * (i * 7 % 50) for i in range(60)]
    path.write_text("\n\n".join(json.dumps({"body": text}) for text in texts) + "\n")
    whole = {
        d.key: d.text for span in find_spans([path], (), 0) for d in read_documents(Task(span), ReadingOptions("body"))
    }
    assert sorted(whole.values(), key=str) == sorted(texts)
    monkeypatch.setattr(documents, "SPAN_BYTES", 37)
    spans = find_spans([path], (), 0)
    assert len(spans) > 50
    found = [(d.key, d.text) for span in spans for d in read_documents(Task(span), ReadingOptions("body"))]
    assert len(found) == len(texts)
    assert dict(found) == whole


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "not valid JSON"),
        ("[1]", "must be a JSON object, found list"),
        ('{"t": 1}', "no text under 'text'; the record has 't'"),
    ],
)
def test_bad_json_lines_are_refused_with_their_place(tokenizer: Path, tmp_path: Path, line: str, expected: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": words(1, 2, 3)}) + "\n" + line + "\n")
    with pytest.raises(UserError) as caught:
        prepare([path], tokenizer, tmp_path / "out", seq_length=4, validation_fraction=0)
    assert expected in str(caught.value)
    assert "a.jsonl: line at byte 21" in str(caught.value)
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".out*"))


def test_the_standard_library_is_a_source(tokenizer: Path, tmp_path: Path) -> None:
    summary = prepare(["stdlib"], tokenizer, tmp_path / "out", seq_length=64, validation_fraction=0, max_bytes=60_000)
    assert summary["documents_train"] > 3
    assert summary["validation_sequences"] == 0
    keys = [span.key for span in find_spans(["stdlib"], (".txt",), 0)]
    assert "0/json/decoder.py" in keys
    assert not any("/test/" in key or "site-packages" in key for key in keys)


def test_a_kept_seed_means_a_kept_split_when_the_corpus_grows(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    prepare([corpus], tokenizer, tmp_path / "before", seq_length=16, validation_fraction=0.3, seed=3)
    (corpus / "new.txt").write_text(words(5, 5, 5, 5, 5))
    prepare([corpus], tokenizer, tmp_path / "after", seq_length=16, validation_fraction=0.3, seed=3)
    before, after = (split_documents(stream(rows(tmp_path / name, "validation"))) for name in ("before", "after"))
    assert before <= after | {(5,) * 5}


BAD = [
    ({"seq_length": 1}, "seq_length must be at least 2"),
    ({"validation_fraction": 1.0}, "validation_fraction must be at least 0 and below 1"),
    ({"processes": 0}, "processes must be at least 1"),
    ({"max_bytes": 0}, "max_bytes must be at least 1"),
    ({"max_bytes": 1}, "no row left to train on"),
    ({"suffixes": [".xyz"]}, "holds no file that ends in .xyz"),
    ({"validation_fraction": 0.0001}, "raise validation_fraction, or set it to 0"),
]


@pytest.mark.parametrize(("settings", "expected"), BAD)
def test_bad_settings_are_refused(
    corpus: Path, tokenizer: Path, tmp_path: Path, settings: dict[str, Any], expected: str
) -> None:
    with pytest.raises(UserError) as caught:
        prepare([corpus], tokenizer, tmp_path / "out", **{"seq_length": 16, **settings})
    assert expected in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_bad_places_are_refused(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or directory"):
        prepare([tmp_path / "none"], tokenizer, tmp_path / "out", seq_length=16)
    with pytest.raises(UserError, match="exists and is not empty"):
        prepare([corpus], tokenizer, corpus, seq_length=16)
    (tmp_path / "bare").mkdir()
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        prepare([corpus], tmp_path / "bare", tmp_path / "out", seq_length=16)
    (tokenizer / "tokenizer_config.json").write_text("{}")
    with pytest.raises(UserError, match="names the end-of-text token"):
        prepare([corpus], tokenizer, tmp_path / "out", seq_length=16)
    (tokenizer / "tokenizer_config.json").write_text('{"eos_token": "</s>"}')
    with pytest.raises(UserError, match="which the tokenizer does not know"):
        prepare([corpus], tokenizer, tmp_path / "out", seq_length=16)
    (tokenizer / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="not a tokenizer that can be read"):
        prepare([corpus], tokenizer, tmp_path / "out", seq_length=16)


def test_damaged_shards_are_refused(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare([corpus], tokenizer, out, seq_length=16, validation_fraction=0.3, seed=3)
    shard = out / "train-00000.mindrecord"
    with shard.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"train-00000\.mindrecord: 1000 bytes, expected"):
        PreparedData.read(out)
    shard.unlink()
    with pytest.raises(UserError, match=r"train-00000\.mindrecord: missing"):
        PreparedData.read(out)
    (out / "data.json").unlink()
    with pytest.raises(UserError, match="this is no prepared data"):
        PreparedData.read(out)


def test_packing_by_hand() -> None:
    packer = Concatenation(4, pad=7)
    documents = [[1, 2, 9], [3, 9], [4, 5, 6, 7, 8, 1, 9]]
    full = [row for document in documents for row in packer.add([np.array(document)])]
    assert [row[0].tolist() for row in full] == [[1, 2, 9, 3], [9, 4, 5, 6], [7, 8, 1, 9]]
    assert not len(packer.flush())
    assert not len(packer.add([np.array([1, 9])]))
    (last,) = packer.flush()
    assert last.tolist() == [[1, 9, 7, 7], [1, 1, 0, 0], [1, 9, IGNORED, IGNORED]]
    assert not len(packer.add([np.array([9])]))
    assert not len(packer.flush()), "a lone end token has no target"
