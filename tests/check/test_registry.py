"""Clashes of model types: read from source, reproduced with transformers, ended by the tool's own suggestion."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.check.registry import command, dynamic
from migrate.check.registry.installed import library, read_names
from migrate.check.registry.source_scan import Scan
from migrate.report import Report, Severity

CONFIG = """\
from transformers import AutoConfig, PretrainedConfig


class Aimv2Config(PretrainedConfig):
    model_type = "aimv2"  # the name in the paper


AutoConfig.register("aimv2", Aimv2Config)
LABEL = "aimv2"
"""


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path = path.with_suffix(".py") if not path.suffix else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def codes(report: Report) -> list[str]:
    return sorted(found.code for found in report.findings)


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "cache"))


def test_the_installed_names_are_those_that_transformers_has() -> None:
    code = "import json; from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES as m; "
    out = subprocess.run(
        [sys.executable, "-c", code + "print(json.dumps(dict(m)))"], capture_output=True, text=True, check=True
    )
    installed = library()
    assert installed is not None
    assert {name: config for name, (config, _) in installed.names.items()} == json.loads(out.stdout.splitlines()[-1])


def test_tables_of_both_spellings_are_read() -> None:
    source = 'CONFIG_MAPPING_NAMES = OrderedDict([("a", "AConfig")], **{"b": "BConfig"})\n'
    source += 'CONFIG_MAPPING_NAMES.update({"c": "C"})'
    assert read_names(source, "f.py") == {"a": ("AConfig", "f.py:1"), "b": ("BConfig", "f.py:1"), "c": ("C", "f.py:2")}


def test_the_clash_is_found_reproduced_and_ended(tmp_path: Path) -> None:
    repo = write(tmp_path / "repo", configuration=CONFIG)
    (repo / "config.json").write_text(json.dumps({"model_type": "aimv2", "hidden_size": 8}, indent=2))
    report = command.registry(repo, modules=["configuration"])
    assert codes(report) == ["C501", "C501"]
    read, happened = report.findings
    assert (read.file, read.line, read.severity) == ("configuration.py", 8, Severity.ERROR)
    assert "Aimv2Config" in read.message and "--rename aimv2=aimv2_custom" in read.fix
    assert "configuration.py:8" in happened.message and "pick another name" in happened.message
    assert "transformers itself" in happened.message
    diff, count = command.rename(repo, "aimv2=aimv2_custom", write=False)
    assert count == 2 and (repo / "configuration.py").read_text() == CONFIG
    assert '-    model_type = "aimv2"  # the name' in diff and '+  "model_type": "aimv2_custom"' in diff
    command.rename(repo, "aimv2=aimv2_custom", write=True)
    assert 'LABEL = "aimv2"\n' in (repo / "configuration.py").read_text(), "other texts stay"
    assert json.loads((repo / "config.json").read_text()) == {"model_type": "aimv2_custom", "hidden_size": 8}
    after = command.registry(repo, modules=["configuration"])
    assert codes(after) == [] and after.exit_code == 0
    assert [event["name"] for event in after.facts["registrations"]] == ["aimv2_custom"]


def test_taking_a_name_over_is_a_warning_read_and_seen(tmp_path: Path) -> None:
    repo = write(tmp_path, configuration=CONFIG.replace("Aimv2Config)\nL", "Aimv2Config, exist_ok=True)\nL"))
    assert codes(command.registry(repo, modules=["configuration"])) == ["C502", "C502"]


def test_the_later_of_two_registrations_wins_silently_in_transformers_but_not_here(tmp_path: Path) -> None:
    text = CONFIG.replace("aimv2", "mine")
    other = text.replace("Aimv2Config", "OtherConfig")
    repo = write(tmp_path, first=text, second=other, both="import first\nimport second\n")
    report = command.registry(repo, modules=["both"])
    assert codes(report) == ["C503", "C503"]
    assert "first.py:8" in report.findings[0].message and "second.py:8" in report.findings[0].message
    assert "first was first.py:8" in report.findings[1].message


SPELLINGS = {
    "alias": "from transformers import AutoConfig as A\nA.register('llama', C)",
    "attribute": "import transformers\ntransformers.AutoConfig.register('llama', C)",
    "assigned": "from transformers import AutoConfig\nauto = AutoConfig\nauto.register('llama', C)",
    "keywords": "from transformers import AutoConfig\nAutoConfig.register(config=C, model_type='llama')",
    "class attribute": "class C:\n    model_type: str = 'llama'\nAutoConfig.register(C.model_type, C)",
    "mapping": "from transformers import CONFIG_MAPPING\nCONFIG_MAPPING.register('llama', C)",
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_registrations_are_found_in_every_spelling(spelling: str, tmp_path: Path) -> None:
    repo = write(tmp_path, module=SPELLINGS[spelling])
    [found] = [found for found in Scan(repo).sightings if found.kind == "config"]
    assert (found.name, found.class_name, found.exist_ok) == ("llama", "C", False)
    assert "C501" in codes(command.registry(repo))


@pytest.mark.parametrize("text", ["CONFIG_MAPPING_NAMES['llama'] = 'C'", "CONFIG_MAPPING_NAMES.update({'llama': 'C'})"])
def test_writing_into_the_table_takes_a_name_over(text: str, tmp_path: Path) -> None:
    assert codes(command.registry(write(tmp_path, module=text))) == ["C502"]


OTHER = {
    "C504": "class C:\n    model_type = 'mine'\nAutoConfig.register('yours', C)",
    "C508": "AutoConfig.register(name(), C)",
    "C510": "class MyConfig:\n    model_type = 'llama'",
    "C514": "model_type = (",
}


@pytest.mark.parametrize("code", OTHER)
def test_other_faults(code: str, tmp_path: Path) -> None:
    assert code in codes(command.registry(write(tmp_path, module=OTHER[code])))


def test_a_name_of_a_family_of_ours(tmp_path: Path) -> None:
    assert "C507" in codes(command.registry(write(tmp_path, module="class C:\n    model_type = 'internlm2'")))


CONFIGS = {
    "C505": {"model_type": "llama", "auto_map": {"AutoConfig": "configuration.LlamaConfig"}},
    "C511": {"hidden_size": 8},
    "C512": {"model_type": "lama"},
}


@pytest.mark.parametrize("code", CONFIGS)
def test_configurations(code: str, tmp_path: Path) -> None:
    repo = write(tmp_path / "repo", module="x = 1")
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(CONFIGS[code]))
    assert code in codes(command.registry(repo, models=[model]))


def test_cached_code_of_the_name_is_named(tmp_path: Path) -> None:
    repo = write(tmp_path / "repo", module="class C:\n    model_type = 'mine'")
    write(tmp_path / "cache/transformers_modules/org/name", configuration_mine="model_type = 'mine'")
    [found] = command.registry(repo).findings
    assert found.code == "C506" and "transformers_modules/org/name" in found.message


def test_packages_that_the_repository_imports_are_read_and_the_repository_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = write(tmp_path / "site", addon__registering=CONFIG.replace("aimv2", "mine"))
    (site / "addon/__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(site))
    text = CONFIG.replace("aimv2", "mine").replace("Aimv2", "My")
    repo = write(tmp_path / "repo", module=f"import addon\n{text}raise SystemExit('was run')\n")
    report = command.registry(repo)
    assert codes(report) == ["C503"]
    assert "addon: registering.py:8" in report.findings[0].message
    assert report.facts["packages"] == ["addon"]


def test_a_failing_import_is_named_with_its_line(tmp_path: Path) -> None:
    repo = write(tmp_path, module="def f():\n    return {}['x']\nf()\n")
    recording = dynamic.record(repo, ["module"])
    [found] = dynamic.judge_recording(recording)
    assert found.code == "C513" and "module.py:2: KeyError" in found.message
    assert codes(command.registry(repo, modules=["module"])) == ["C513"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("aimv2", "must have the form old=new"),
        ("other=x", "nothing in"),
        ("aimv2=llama", "is LlamaConfig of transformers"),
        ("aimv2=a b", "is no name"),
    ],
)
def test_renames_that_cannot_be_made(change: str, expected: str, tmp_path: Path) -> None:
    repo = write(tmp_path, configuration=CONFIG)
    with pytest.raises(UserError, match=expected):
        command.rename(repo, change, write=True)
    assert (repo / "configuration.py").read_text() == CONFIG


def test_healthy_repositories_have_no_findings(tmp_path: Path) -> None:
    text = CONFIG.replace("aimv2", "mine") + "AutoModel.register(Aimv2Config, M)\n"
    assert codes(command.registry(write(tmp_path, module=text), modules=[])) == []
