"""Taking the place of the output: locks, leftovers, and failures at the very end."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from hf_checkpoints import config, write_model

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights import conversion, staging
from migrate.weights.command import convert, verify
from migrate.weights.engine import journal

TP2 = ParallelLayout(tp=2)


@pytest.fixture
def replaced(tmp_path, monkeypatch):
    """A directory whose old output could not be deleted when a new one took its place."""
    write_model(tmp_path / "hf", config("llama"))
    write_model(tmp_path / "new", config("llama"), seed=1)
    convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    real = shutil.rmtree

    def rmtree(path, *arguments, **options):
        if path.name.endswith(".old"):
            raise PermissionError(13, "Permission denied")
        real(path, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(staging.shutil, "rmtree", rmtree)
        with pytest.raises(UserError, match=r"is complete, but tidying up failed \(Permission denied\)"):
            convert(tmp_path / "new", tmp_path / "out", layout=TP2, force=True)
    return tmp_path


def test_an_old_output_that_cannot_be_deleted_does_not_spoil_the_new_one(replaced):
    assert verify(replaced / "out", source=replaced / "new").exit_code == 0
    assert sorted(path.name for path in replaced.iterdir()) == [".out.old", "hf", "new", "out"]


def test_such_an_old_output_is_named_before_the_next_work(replaced, monkeypatch):
    monkeypatch.setattr(conversion, "execute", None)  # nothing is copied
    with pytest.raises(UserError, match=r"\.out\.old: is an old output that could not be deleted; delete it first"):
        convert(replaced / "new", replaced / "out", layout=TP2, force=True)
    assert sorted(path.name for path in replaced.iterdir()) == [".out.old", "hf", "new", "out"]


def test_a_stray_journal_does_not_let_resume_work_for_nothing(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config("llama"))
    convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    (tmp_path / ".out.journal").write_text("")
    monkeypatch.setattr(conversion, "execute", None)
    with pytest.raises(UserError, match="not empty"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
def test_the_old_output_comes_back_when_the_new_one_cannot_take_its_place(tmp_path, monkeypatch, error):
    write_model(tmp_path / "hf", config("llama"))
    write_model(tmp_path / "new", config("llama"), seed=1)
    convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    real = os.rename

    def rename(source, target):
        if str(source).endswith(".partial"):
            raise error
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises((UserError, KeyboardInterrupt)):
        convert(tmp_path / "new", tmp_path / "out", layout=TP2, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.journal", ".out.partial", "hf", "new", "out"]
    assert verify(tmp_path / "out", source=tmp_path / "hf").exit_code == 0
    monkeypatch.undo()
    report = convert(tmp_path / "new", tmp_path / "out", layout=TP2, force=True, resume=True)
    assert report.facts["bytes_moved"] == 0 and verify(tmp_path / "out", source=tmp_path / "new").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "new", "out"]


def test_a_lock_on_a_journal_that_its_owner_deleted_is_none(tmp_path, monkeypatch):
    first = journal.Journal(tmp_path / "journal")
    real, calls = journal.fcntl.flock, []

    def flock(fd, how):
        if not calls:  # the owner ends after the second one has opened the file, and before it is locked
            first.remove()
        calls.append(fd)
        real(fd, how)

    monkeypatch.setattr(journal.fcntl, "flock", flock)
    second = journal.Journal(tmp_path / "journal")
    monkeypatch.undo()
    assert len(calls) == 2
    with pytest.raises(UserError, match="is running"):
        journal.Journal(tmp_path / "journal")
    second.remove()
    second.close()


def test_a_source_that_is_a_link_into_the_output_is_not_destroyed(tmp_path):
    write_model(tmp_path / "out", config("llama"))
    (tmp_path / "hf").mkdir()
    shutil.copy(tmp_path / "out/config.json", tmp_path / "hf")
    (tmp_path / "hf/model.safetensors").symlink_to(tmp_path / "out/model.safetensors")
    with pytest.raises(UserError, match=r"hf/model\.safetensors: is a link into .*out, which would be replaced"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2, force=True)
    assert (tmp_path / "hf/model.safetensors").stat().st_size > 0
    assert convert(tmp_path / "hf", tmp_path / "other", layout=TP2).exit_code == 0


def test_a_source_that_changes_while_copies_are_compared_is_noticed(tmp_path, monkeypatch):
    write_model(tmp_path / "hf", config("llama"))
    monkeypatch.setattr(conversion, "_replicas", lambda *arguments: os.utime(tmp_path / "hf/model.safetensors"))
    with pytest.raises(UserError, match="a file changed while it was copied"):
        convert(tmp_path / "hf", tmp_path / "out", layout=TP2)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


@pytest.mark.parametrize("force", [False, True])
def test_the_output_may_be_the_current_directory(tmp_path, monkeypatch, force):
    write_model(tmp_path / "hf", config("llama"))
    (tmp_path / "out").mkdir()
    if force:
        convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout())
    monkeypatch.chdir(tmp_path / "out")
    assert convert(tmp_path / "hf", Path(), layout=TP2, force=force).exit_code == 0
    assert verify(tmp_path / "out", source=tmp_path / "hf").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]
