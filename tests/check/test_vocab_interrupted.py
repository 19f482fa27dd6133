"""`vocab` that is killed, or cannot write: the copy is there whole or not at all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from mappings.errors import UserError
from mappings.families import load_family
from migrate.check.vocab import resizing
from migrate.check.vocab.command import vocab
from migrate.cli import main

CONFIG = {
    "model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    parameters = load_family("llama").parameters(CONFIG)
    save_file({p.name: np.full(p.shape, 0.5, np.float32) for p in parameters}, folder / "model.safetensors")
    return folder


def test_killed_half_way_it_leaves_no_copy_and_the_next_run_makes_one(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    # Stops behind the first tensor, with the file open.
    program = (
        "import sys, time; from pathlib import Path; from migrate.check.vocab import resizing\n"
        "from migrate.check.vocab.command import vocab\n"
        "made = resizing.NewRows.make\n"
        "resizing.NewRows.make = lambda *a: (print('half way', flush=True), time.sleep(60), made(*a))[2]\n"
        "vocab(Path(sys.argv[1]), Path(sys.argv[2]), rows=70)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(source), str(out)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"half way\n"
        with pytest.raises(UserError, match="another run is writing it"):
            vocab(source, out, rows=72)
        process.send_signal(signal.SIGKILL)
        process.wait(timeout=20)
    assert not out.exists() and (tmp_path / ".out.partial").is_dir()
    assert vocab(source, out, rows=70).exit_code == 0
    assert not (tmp_path / ".out.partial").exists()
    assert load_file(out / "model.safetensors")["lm_head.weight"].shape == (70, 16)


@pytest.mark.parametrize("failing", ["mkdir", "write"])
def test_a_place_that_cannot_be_written_is_named(
    failing: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if failing == "mkdir":
        (tmp_path / "file").write_text("")
        out = tmp_path / "file" / "out"
        expected = "Not a directory"
    else:

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(resizing.os, "fsync", full)
        expected = "No space left on device"
    assert main(["vocab", str(source), "-o", str(out), "--rows", "70"]) == 2
    assert f"{out}: cannot be written ({expected}); nothing was kept" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_a_copy_that_does_not_verify_is_not_published(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = iter(range(100))
    monkeypatch.setattr(resizing, "_digest", lambda entry, size: str(next(digests)).encode())
    with pytest.raises(UserError, match="has other bytes than before"):
        vocab(source, tmp_path / "out", rows=70)
    assert not (tmp_path / "out").exists()
