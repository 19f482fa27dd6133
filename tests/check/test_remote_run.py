"""Code of a checkpoint is run when it is asked for by name: what fits passes, each fault is found by its code."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from check_breaks import edit
from check_healthy import make

from mappings.errors import UserError
from migrate.check.command import check
from migrate.check.remote import isolation, running
from migrate.check.remote.running import choose
from migrate.check.subject import read_subject
from migrate.cli import main
from migrate.report import Report, Severity, Verdict

CONFIG = """\
from transformers import LlamaConfig


class XConfig(LlamaConfig):
    model_type = "x_llama"
"""
MODEL = """\
from transformers import LlamaForCausalLM

from .configuration_x import XConfig


class X(LlamaForCausalLM):
    config_class = XConfig
"""
AUTO = {"AutoConfig": "configuration_x.XConfig", "AutoModelForCausalLM": "modeling_x.X"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make("llama", tmp_path_factory.mktemp("llama"))
    (folder / "configuration_x.py").write_text(CONFIG)
    (folder / "modeling_x.py").write_text(MODEL)
    edit("config.json", model_type="x_llama", auto_map=AUTO, architectures=["X"])(folder)
    return folder


def broken(template: Path, folder: Path, **texts: str) -> Path:
    shutil.copytree(template, folder)
    for name, text in texts.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def ran(report: Report) -> tuple[list[str], Verdict]:
    """Codes of what running found, and the verdict of the stage."""
    [stage] = [stage for stage in report.stages if stage.name == running.STAGE]
    return sorted(f.code for f in report.findings if "C526" <= f.code <= "C530"), stage.verdict


def test_code_that_fits_its_weights_passes_with_every_tensor_compared(template: Path) -> None:
    before = sorted(path.name for path in template.iterdir())
    report = check(template, remote_code_of=["modeling_x.py", "XConfig"])
    assert ran(report) == ([], Verdict.PASS)
    stage = report.stages[-1]
    assert stage.compared == 30 + 1 and "configuration_x.XConfig, modeling_x.X" in stage.message
    assert "network" in stage.message or "refused" in stage.message
    assert sorted(path.name for path in template.iterdir()) == before


def _more(text: str) -> str:
    return f"{MODEL}\n    def __init__(self, config):\n        super().__init__(config)\n        {text}\n"


def _own(config: str) -> str:
    """A model with a configuration class in the same file."""
    return f"{config}\n\n{MODEL.replace('from .configuration_x import XConfig', '')}"


READS_NO_CONFIG = f"{CONFIG}\n    def __init__(self, **fields):\n        raise ValueError(fields['kind'])\n"
FAULTS: dict[str, tuple[str, str, str]] = {
    "does not import": ("C526", f"{MODEL}\nraise KeyError('flash')\n", "modeling_0.py:9: KeyError"),
    "reads no such config": ("C527", _own(READS_NO_CONFIG), "KeyError: 'kind'"),
    "config of another type": ("C527", _own(CONFIG.replace("x_llama", "y_llama")), "'y_llama', config.json 'x_llama'"),
    "does not build": ("C528", _more("config.no_such_field"), "no_such_field"),
    "has a parameter more": (
        "C529", _more("import torch; self.gate = torch.nn.Linear(3, 2)"),
        "X has gate.bias and 1 more, which is not stored",
    ),
    "has a layer less": ("C529", _more("self.model.layers = self.model.layers[:2]"), "X has no such parameter"),
    "has another shape": (
        "C529", _more("import torch; self.lm_head = torch.nn.Linear(32, 301, bias=False)"),
        "lm_head.weight is stored as [300, 32], X has [301, 32]",
    ),
    "makes values": ("", _more("config.rope = [p.tolist() for p in self.lm_head.parameters()]"), ""),
}  # fmt: skip
KINDS = (
    "AutoModel", "AutoModelForCausalLM", "AutoModelForMaskedLM", "AutoModelForSeq2SeqLM", "AutoModelForCTC",
    "AutoModelForQuestionAnswering", "AutoModelForTokenClassification", "AutoModelForSequenceClassification",
)  # fmt: skip
TRICKS = {
    "opens a connection": "urllib.request.urlopen('http://127.0.0.1:PORT/')",
    "starts a process": "subprocess.run(['touch', 'VICTIM'])",
    "changes": "open('VICTIM', 'w')",
}
TRICKY = "AutoModelForMultipleChoice"


@pytest.fixture(scope="module")
def asked() -> Iterator[tuple[int, list[str]]]:
    """A server, and what it was asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port, paths
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def faulty(template: Path, tmp_path_factory: pytest.TempPathFactory, asked: tuple[int, list[str]]) -> Report:
    """One process runs a class of each fault, and one that does more than it should: importing torch takes seconds."""
    folder = tmp_path_factory.mktemp("faulty") / "model"
    victim = folder.parent / "victim"
    tricks = [trick.replace("PORT", str(asked[0])).replace("VICTIM", str(victim)) for trick in TRICKS.values()]
    attempts = [f"try:\n    {trick}\nexcept Exception:\n    pass" for trick in tricks]
    texts = [text for _, text, _ in FAULTS.values()]
    modules = {f"modeling_{number}": text for number, text in enumerate(texts)}
    modules["modeling_tricky"] = "\n".join(["import subprocess, urllib.request", *attempts, MODEL])
    modules["modeling_unnamed"] = f"open({str(folder.parent / 'unnamed')!r}, 'w')\n{MODEL}"
    broken(template, folder, **modules)
    auto = {kind: f"modeling_{number}.X" for number, kind in enumerate(KINDS[: len(texts)])}
    auto |= {TRICKY: "modeling_tricky.X", "AutoModelForNextSentencePrediction": "modeling_unnamed.X"}
    edit("config.json", auto_map=auto)(folder)
    report = check(folder, remote_code_of=[f"{name}.py" for name in modules if name != "modeling_unnamed"])
    assert not victim.exists() and not (folder.parent / "unnamed").exists()
    return report


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_by_its_code(name: str, faulty: Report) -> None:
    code, _, words = FAULTS[name]
    module = f"modeling_{list(FAULTS).index(name)}.py"
    found = [found for found in faulty.findings if found.file == module and found.code >= "C526"]
    assert [one.code for one in found] == ([code] if code else [])
    assert all(words in one.message and one.severity is Severity.ERROR for one in found), found
    assert ran(faulty)[1] is Verdict.FAIL


@pytest.mark.parametrize("what", TRICKS)
def test_what_more_than_computing_it_does_is_refused_and_named(
    what: str, faulty: Report, asked: tuple[int, list[str]]
) -> None:
    found = [found for found in faulty.findings if found.code == "C530"]
    assert len(found) == len(TRICKS) and asked[1] == []
    line = 4 * list(TRICKS).index(what) + 3
    assert any(one.message.startswith(f"modeling_tricky.py:{line} {what}") for one in found), found


def test_one_that_ends_its_process(template: Path, tmp_path: Path) -> None:
    folder = broken(template, tmp_path / "model", modeling_x="import os\nos._exit(3)\n")
    found, stage = running.run_remote_code(read_subject(folder), ["X", "XConfig"])
    assert [(one.code, one.file) for one in found] == [("C526", "modeling_x.py")] and "exit 3" in found[0].message
    assert stage.verdict is Verdict.FAIL and stage.compared == 1


def test_without_a_network_of_its_own_connections_are_refused_all_the_same(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolation, "has_own_network", lambda: False)
    text = f"import socket\nsocket.create_connection(('127.0.0.1', 9))\n{CONFIG}"
    report = check(broken(template, tmp_path / "model", configuration_x=text), remote_code_of=["XConfig"])
    assert ran(report) == (["C526", "C530"], Verdict.FAIL)
    assert "connections are refused" in report.stages[-1].message


def test_one_that_hangs_is_ended(template: Path) -> None:
    found, stage = running.run_remote_code(read_subject(template), ["X"], timeout_s=0.5)
    assert [one.code for one in found] == ["C526"] and "no answer in time" in found[0].message
    assert stage.verdict is Verdict.FAIL


UNKNOWN: dict[str, tuple[str, str]] = {
    "near": ("modelling_x.X", "did you mean modeling_x.X?"),
    "far": ("zzzzzzz", "it has configuration_x.XConfig, modeling_x.X"),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_names_are_errors(name: str, template: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked, words = UNKNOWN[name]
    assert main(["check", str(template), "--run-remote-code", asked]) == 2
    assert words in capsys.readouterr().err


def test_code_of_another_repository_is_an_error(template: Path, tmp_path: Path) -> None:
    folder = broken(template, tmp_path / "model")
    edit("config.json", auto_map={"AutoModel": "org/name--m.X"})(folder)
    with pytest.raises(UserError, match="code of another repository, org/name"):
        choose(read_subject(folder), ["X"])


def test_without_transformers_it_could_not_run(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers.py").write_text("raise ImportError('no transformers here')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    report = check(template, remote_code_of=["X"])
    assert report.stages[-1].verdict is Verdict.COULD_NOT_RUN and report.exit_code == 2
    assert "no transformers here" in report.stages[-1].message
