"""Every format gives the same documents, however it is divided, and says where it is bad."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.ipc
import pyarrow.parquet
import pytest

from mappings.errors import UserError
from ms_models.data import documents, reading
from ms_models.data.documents import find_spans
from tests.ms_models.data.data_helpers import random_texts, read_all

TEXTS = [*random_texts(300), "first\nsecond line", "中文 text", "a\r\nb\rc\x85d\u2028e"]
LINES = "\n".join(json.dumps({"id": number, "body": text}) for number, text in enumerate(TEXTS)) + "\n"


def table() -> pa.Table:
    return pa.table({"id": list(range(len(TEXTS))), "body": TEXTS})


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=7)


def write_file(path: Path) -> None:
    with pa.ipc.new_file(path, table().schema) as writer:
        writer.write_table(table(), max_chunksize=50)


def write_categories(path: Path) -> None:
    pa.parquet.write_table(table().set_column(1, "body", table()["body"].dictionary_encode()), path)


def write_zst(path: Path) -> None:
    with pa.output_stream(str(path), compression="zstd") as file:
        file.write(LINES.encode())


FORMATS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "json lines": ("a.jsonl", lambda path: path.write_text(LINES)),
    "json lines without a last line end": ("a.json", lambda path: path.write_text(LINES[:-1])),
    "gz": ("a.jsonl.gz", lambda path: path.write_bytes(gzip.compress(LINES.encode()))),
    "gz of two members": (
        "b.json.gz",
        lambda path: path.write_bytes(gzip.compress(LINES[:999].encode()) + gzip.compress(LINES[999:].encode())),
    ),
    "zst": ("a.jsonl.zst", write_zst),
    "parquet": ("a.parquet", lambda path: pa.parquet.write_table(table(), path, row_group_size=90)),
    "parquet, categories": ("b.parquet", write_categories),
    "arrow stream": ("a.arrow", write_stream),
    "arrow file": ("b.arrow", write_file),
    "feather": ("a.feather", lambda path: pa.feather.write_feather(table(), str(path), chunksize=80)),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("span", [1 << 23, 700])
def test_formats_give_the_same_documents_however_they_are_divided(
    name: str, span: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (documents, reading):
        monkeypatch.setattr(module, "SPAN_BYTES", span)
    file, write = FORMATS[name]
    write(tmp_path / file)
    found = read_all([tmp_path / file], field="body")
    assert sorted(d.text or "" for d in found) == sorted(TEXTS)
    assert len({d.key for d in found}) == len(TEXTS)
    assert all(d.key.startswith(f"0/{file}@") for d in found)
    again = read_all([tmp_path / file], field="body")
    assert again == found


def test_large_files_are_divided_and_the_parts_say_their_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "SPAN_BYTES", 2000)
    for name in ("json lines", "parquet", "arrow stream", "arrow file", "feather"):
        file, write = FORMATS[name]
        write(tmp_path / file)
        spans = find_spans([tmp_path / file], (), 0, field="body")
        assert len(spans) > 8, name
        text = sum(len(text.encode()) for text in TEXTS)
        assert text / 2 < sum(span.size for span in spans) < 3 * text, name


def test_lines_of_a_text_file_are_documents_when_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n\n two \r\nthree\rstill three\n\xff\xfe\nlast")
    (document,) = read_all([tmp_path])
    assert document.text is None and document.problem == "undecodable"
    expected = ["one", " two ", "three\rstill three", None, "last"]
    for span in (1 << 20, 5):
        monkeypatch.setattr(documents, "SPAN_BYTES", span)
        found = read_all([tmp_path], text_unit="line")
        by_place = sorted(found, key=lambda d: int(d.key.rpartition("@")[2]))
        assert [d.text for d in by_place] == expected


def test_texts_that_are_no_unicode_are_told(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"caf\xe9"], pa.binary()).view(pa.string())
    pa.parquet.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": "\\ud800"}\n')
    found = {d.key: (d.text, d.problem) for d in read_all([tmp_path])}
    assert found == {
        "0/a.parquet@0:0": ("good", ""),
        "0/a.parquet@0:1": (None, "undecodable"),
        "0/b.jsonl@0": (None, "undecodable"),
    }


def nulls(path: Path) -> None:
    pa.parquet.write_table(pa.table({"text": ["a", "b", None]}), path, row_group_size=2)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def no_text(path: Path) -> None:
    pa.parquet.write_table(pa.table({"text": [1, 2]}), path)


def damaged_page(path: Path) -> None:
    pa.parquet.write_table(pa.table({"text": random_texts(500)}), path, compression="snappy", use_dictionary=False)
    raw = bytearray(path.read_bytes())
    raw[200:900] = bytes(700)
    path.write_bytes(raw)


BAD: list[tuple[str, Callable[[Path], Any], str]] = [
    ("a.parquet", nulls, "a.parquet: row group 1, row 0: the text under 'text' is null"),
    ("a.parquet", lambda p: pa.parquet.write_table(table(), p), "a.parquet: no column 'text'; it has 'id', 'body'"),
    ("a.parquet", no_text, "a.parquet: column 'text' holds int64, not text"),
    ("a.parquet", lambda p: p.write_bytes(b"PAR1 nothing"), "a.parquet: damaged, or not what its name says"),
    ("a.parquet", lambda p: (nulls(p), cut(p)), "a.parquet: damaged, or not what its name says"),
    ("a.parquet", damaged_page, "a.parquet: row group 0: damaged"),
    ("a.arrow", lambda p: p.write_bytes(b"ARROW1 nothing"), "a.arrow: damaged, or not what its name says"),
    ("a.arrow", lambda p: p.write_bytes(b"nothing at all"), "a.arrow: damaged, or not what its name says"),
    ("a.jsonl", lambda p: p.write_text('{"text": null}\n'), "a.jsonl: line at byte 0: the text under 'text' is null"),
    ("a.json", lambda p: p.write_text('[\n{"text": "a"}\n]'), "not valid JSON (Expecting value); a record a line"),
    ("a.jsonl.gz", lambda p: p.write_bytes(gzip.compress(b"x" * 99)[:-9]), "a.jsonl.gz: damaged, or not compressed"),
    ("a.jsonl.gz", lambda p: p.write_text("{}"), "a.jsonl.gz: damaged, or not compressed as its name says"),
    ("a.jsonl.zst", lambda p: p.write_text("{}{}{}{}{}"), "a.jsonl.zst: "),
    ("a.txt", lambda p: p.write_text(""), "a.txt: is empty"),
]


@pytest.mark.parametrize(("file", "write", "expected"), BAD)
def test_bad_files_are_refused_with_their_place(
    file: str, write: Callable[[Path], Any], expected: str, tmp_path: Path
) -> None:
    write(tmp_path / file)
    with pytest.raises(UserError) as caught:
        read_all([tmp_path / file])
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_null_texts_are_left_out_when_asked_for(tmp_path: Path) -> None:
    nulls(tmp_path / "a.parquet")
    (tmp_path / "b.jsonl").write_text('{"text": null}\n{"text": "c"}\n')
    found = read_all([tmp_path], skip_null=True)
    assert sorted(d.text for d in found if d.text) == ["a", "b", "c"]
    assert [d.problem for d in found if d.text is None] == ["null", "null"]
