"""Safe fixes: shown as a diff, then made; what has several right answers is left alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from check_breaks import edit
from check_faults import FAULTS, Fault
from check_healthy import make_all
from safetensors.numpy import load_file, save_file

from migrate.check.command import check, fix
from migrate.check.fixes import FIXES
from migrate.cli import main
from migrate.report import Severity


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_all(tmp_path_factory.mktemp("healthy"))


FIXABLE = {
    "vocab_size too small": True,
    "embedding of gpt2 extended": True,
    "embedding and head of gpt_neox extended": True,
    "embedding of gpt_neox extended": False,
    "embedding cut": False,  # the weights are wrong, not the field
    "eos differs in generation config": True,
    "eos lists share nothing": False,
    "pad differs in config": True,
    "special_tokens_map disagrees": True,
    "eos not special": True,
    "truncation of the last call saved": True,
    "another architecture": True,
    "dtype says bfloat16": True,
    "attention of no kind": True,
}


@pytest.mark.parametrize("name", FIXABLE)
def test_what_has_one_right_value_is_fixed_and_nothing_else(
    name: str, templates: dict[str, Path], tmp_path: Path
) -> None:
    fault: Fault = next(fault for fault in FAULTS if fault.name == name)
    directory = tmp_path / "model"
    shutil.copytree(templates[fault.family], directory)
    fault.apply(directory)
    before = {path.name: path.read_bytes() for path in directory.iterdir()}
    shown, codes = fix(directory, write=False)
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
    assert bool(shown) == FIXABLE[name] == bool(codes)
    made, codes = fix(directory, write=True)
    assert made == shown
    graver = [f.code for f in check(directory).findings if f.severity is not Severity.NOTE]
    assert graver == ([] if FIXABLE[name] else [fault.code])
    assert codes == ([fault.code] if FIXABLE[name] else [])
    # One field, so one line of the file, whatever else is in it.
    assert sum(line.startswith("+") and not line.startswith("+++") for line in made.splitlines()) == FIXABLE[name]


def test_every_fix_is_tested() -> None:
    tested = {fault.code for fault in FAULTS if FIXABLE.get(fault.name)}
    assert set(FIXES) - tested == {"C409"}  # a note: the test below


def test_a_base_left_to_the_default_is_written_out(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    edit("config.json", rope_parameters=..., rope_theta=...)(directory)
    assert fix(directory, write=True)[1] == ["C409"]
    assert json.loads((directory / "config.json").read_text())["rope_theta"] == 10000.0


def test_the_command(templates: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    edit("config.json", dtype="bfloat16")(directory)
    assert main(["check", str(directory), "--fix"]) == 0
    assert "C424: would end; --write does it" in capsys.readouterr().out
    page, log = tmp_path / "page.html", tmp_path / "log.sarif"
    assert main(["check", str(directory), "--html", str(page), "--sarif", str(log)]) == 1
    assert "C424" in page.read_text() and json.loads(log.read_text())["runs"][0]["results"][0]["ruleId"] == "C424"
    assert main(["check", str(directory), "--fix", "--write"]) == 0
    capsys.readouterr()
    assert main(["check", str(directory), "--fix"]) == 0
    assert capsys.readouterr().out == "no finding here that an edit would end\n"
    assert main(["check", str(directory)]) == 0
    (directory / "code.py").write_text("AutoConfig.register('llama', C)\n")
    assert main(["check", str(directory), "--repo", str(directory)]) == 1


def test_a_hundred_shards(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    _in_shards(directory, 100)
    report = check(directory)
    assert report.exit_code == 0 and report.facts["files"] == 100


def _in_shards(directory: Path, count: int) -> None:
    tensors: dict[str, np.ndarray] = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors |= load_file(path)
        path.unlink()
    names = sorted(tensors)
    layers = 3
    config = json.loads((directory / "config.json").read_text())
    # As many tensors as shards, and more: the layers again and again.
    for copy in range(1, 6):
        for name in names:
            for layer in range(layers):
                if f"layers.{layer}." in name:
                    tensors[name.replace(f"layers.{layer}.", f"layers.{layer + copy * layers}.")] = tensors[name]
    config["num_hidden_layers"] = 6 * layers
    (directory / "config.json").write_text(json.dumps(config))
    names = sorted(tensors)
    assert len(names) >= count
    files: dict[str, str] = {}
    for index in range(count):
        file = f"model-{index + 1:05d}-of-{count:05d}.safetensors"
        part = names[index::count]
        save_file({name: tensors[name] for name in part}, directory / file)
        files |= dict.fromkeys(part, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
