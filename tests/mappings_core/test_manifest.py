"""`manifest.json`: what is written is read back; what is inconsistent or leaves the directory is refused."""

from __future__ import annotations

import hashlib
import json

import pytest

from mappings.errors import UserError
from mappings.formats.manifest import NAME, FileRecord, Manifest, damaged_files, hash_file, optimizer_file, weights_file
from mappings.layout import ParallelLayout


@pytest.fixture
def directory(tmp_path):
    layout = ParallelLayout(tp=2, dp=2)
    records = {}
    for rank in (0, 1):
        (tmp_path / weights_file(rank)).write_bytes(b"weights %d" % rank)
        records[weights_file(rank)] = hash_file(tmp_path / weights_file(rank))
    weights = {rank: weights_file(layout.weight_owner(rank)) for rank in range(4)}
    Manifest("qwen2", layout, weights, records, {"msmigrate": "1"}, {"files": {}}, {"step": 3}).write(tmp_path)
    return tmp_path


def change(directory, edit):
    body = json.loads((directory / NAME).read_text())
    edit(body)
    body.pop("digest")  # or every change would be found by it
    (directory / NAME).write_text(json.dumps(body))


def test_round_trip(directory):
    manifest = Manifest.read(directory)
    assert manifest.layout == ParallelLayout(tp=2, dp=2)
    assert manifest.weights == {0: weights_file(0), 1: weights_file(1), 2: weights_file(0), 3: weights_file(1)}
    assert manifest.training == {"step": 3}
    data = (directory / weights_file(1)).read_bytes()
    assert manifest.files[weights_file(1)] == FileRecord(len(data), hashlib.sha256(data).hexdigest())
    assert sorted(path.name for path in directory.iterdir()) == [NAME, weights_file(0), weights_file(1)]
    assert damaged_files(directory, manifest) == []


def test_no_bit_of_a_runs_state_can_change_unseen(directory):
    """A flipped bit of a digit is another step or position, which no hash of another file tells."""
    whole, raw = Manifest.read(directory), (directory / NAME).read_bytes()
    found = 0
    for place in range(len(raw)):
        (directory / NAME).write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            assert Manifest.read(directory) == whole, f"byte {place}"
        except UserError:
            found += 1
    assert found > 0.5 * len(raw)


def test_a_wrong_digit_of_the_state_is_called_damage(directory):
    text = (directory / NAME).read_text()
    assert '"step": 3' in text
    (directory / NAME).write_text(text.replace('"step": 3', '"step": 2'))
    with pytest.raises(UserError, match="damaged"):
        Manifest.read(directory)


def test_file_names_carry_the_rank():
    assert (weights_file(7), optimizer_file(12)) == ("model-rank00007.safetensors", "optimizer-rank00012.safetensors")


def test_damage_is_found(directory):
    (directory / weights_file(0)).write_bytes(b"weightz 0")
    (directory / weights_file(1)).write_bytes(b"weights")
    found = damaged_files(directory, Manifest.read(directory))
    assert [line.split(": ")[1] for line in found] == ["SHA-256 differs", "7 bytes, expected 9"]
    (directory / weights_file(0)).unlink()
    assert "missing" in damaged_files(directory, Manifest.read(directory))[0]


FAULTS = {
    "other format": (lambda b: b.update(format="other"), "format"),
    "no layout": (lambda b: b.pop("layout"), "layout"),
    "unknown axis": (lambda b: b["layout"].update(tpp=1), "did you mean 'tp'"),
    "layout is a list": (lambda b: b.update(layout=[2]), "unknown axis|malformed"),
    "rank is text": (lambda b: b["weights"].update(zero="x"), "malformed"),
    "weights is a list": (lambda b: b.update(weights=[]), "malformed"),
    "a rank is missing": (lambda b: b["weights"].pop("3"), "ranks"),
    "a rank too many": (lambda b: b["weights"].update({"4": weights_file(0)}), "ranks"),
    "unlisted weights": (lambda b: b["weights"].update({"0": "x.safetensors"}), "not among the files"),
    "not the owner's": (lambda b: b["weights"].update({"2": weights_file(1)}), "owner"),
    "file climbs": (lambda b: b["files"].update({"../x": {"bytes": 1, "sha256": "0" * 64}}), "outside"),
    "file absolute": (lambda b: b["files"].update({"/x": {"bytes": 1, "sha256": "0" * 64}}), "outside"),
    "file is the directory": (lambda b: b["files"].update({".": {"bytes": 1, "sha256": "0" * 64}}), "outside"),
    "file with NUL": (lambda b: b["files"].update({"a\0": {"bytes": 1, "sha256": "0" * 64}}), "outside"),
    "size is text": (lambda b: b["files"].update(x={"bytes": "1", "sha256": "0" * 64}), "'x'"),
    "size negative": (lambda b: b["files"].update(x={"bytes": -1, "sha256": "0" * 64}), "'x'"),
    "digest short": (lambda b: b["files"].update(x={"bytes": 1, "sha256": "0"}), "'x'"),
    "digest missing": (lambda b: b["files"].update(x={"bytes": 1}), "malformed"),
    "family is a number": (lambda b: b.update(family=3), "family"),
    "source is a list": (lambda b: b.update(source=[]), "source"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_malformed_manifest_is_refused(case, directory):
    edit, words = FAULTS[case]
    change(directory, edit)
    with pytest.raises(UserError, match=words):
        Manifest.read(directory)


def test_missing_or_broken_manifest(directory):
    with pytest.raises(UserError, match="no such directory"):
        Manifest.read(directory / "none")
    (directory / NAME).write_text("{")
    with pytest.raises(UserError, match="JSON"):
        Manifest.read(directory)
    (directory / NAME).unlink()
    with pytest.raises(UserError, match=r"no complete msmigrate checkpoint$"):
        Manifest.read(directory)
    (directory / "LATEST").write_text("step_00000100\n")
    with pytest.raises(UserError, match=r"it is a run, give one of its checkpoints: step_00000100$"):
        Manifest.read(directory)
