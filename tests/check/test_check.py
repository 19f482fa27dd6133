"""`check` against directories made healthy and then broken in one way each."""

from __future__ import annotations

import html
import io
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
import yaml
from check_breaks import edit
from check_faults import FAULTS, Fault
from check_healthy import make, make_all
from rich.console import Console
from sarif_schema import check_log

from mappings.errors import UserError
from mappings.families import family_for_config
from migrate.check.cells import PARTIAL_ROPE, ROPE, WINDOWED
from migrate.check.codes import rules
from migrate.check.command import check
from migrate.check.positions import ROPE_TYPES
from migrate.report import Report, Severity, Verdict
from migrate.report.html import render as render_page
from migrate.report.sarif import sarif_log
from migrate.report.terminal import location, render

LLAMA3 = {
    "rope_theta": 500000.0,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
HEALTHY = {
    "llama": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "qwen2 tied": ("qwen2", {"tie_word_embeddings": True}),
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama own head_dim": ("llama", {"head_dim": 12}),
    "llama multi-head": ("llama", {"num_key_value_heads": 4}),
    "llama multi-query": ("llama", {"num_key_value_heads": 1}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3}),
    "qwen2 one file": ("qwen2", {"shard": "1GB"}),
    "qwen2 bfloat16": ("qwen2", {"dtype": torch.bfloat16}),
    "qwen2 odd vocabulary": ("qwen2", {"vocab_size": 307}),
}


@pytest.fixture(scope="session")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A healthy directory per family, to copy and break."""
    return make_all(tmp_path_factory.mktemp("healthy"))


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_directory_is_clean(name: str, tmp_path: Path) -> None:
    family, settings = HEALTHY[name]
    report = check(make(family, tmp_path, **settings))
    # Notes may appear (a head_dim of its own); anything graver is a false alarm.
    assert [f for f in report.findings if f.severity is not Severity.NOTE] == []
    passed = {stage.name for stage in report.stages if stage.verdict is Verdict.PASS}
    assert passed == {"vocabulary", "special ids", "positions", "attention", "arithmetic", "tensors", "round trip"}
    assert report.exit_code == 0


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.code} {fault.name}")
def test_a_fault_is_found_by_its_code_alone(fault: Fault, templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates[fault.family], directory)
    fault.apply(directory)
    run = None
    if fault.run is not None:
        run = tmp_path / "run.yaml"
        run.write_text(yaml.safe_dump(fault.run))
    report = check(directory, run=run)
    rule = rules()[fault.code]
    graver = {f.code for f in report.findings if f.severity is not Severity.NOTE}
    assert graver == {fault.code}, [f.message for f in report.findings]
    found = [f for f in report.findings if f.code == fault.code]
    assert all(f.severity is rule.severity and f.why == rule.why and f.message and f.fix for f in found)
    assert report.exit_code == 1
    every_form_says_it(report, tmp_path)


def every_form_says_it(report: Report, folder: Path) -> None:
    """Code, severity, values, place, reason and advice are in the terminal's text, JSON, SARIF and HTML."""
    report_file, screen = folder / "report.json", io.StringIO()
    report_file.write_text(report.to_json())
    assert Report.from_json(report_file) == report
    run = check_log(sarif_log(report))
    page = html.unescape(render_page([report], folder / "page.html").read_text())
    render(report, Console(file=screen, width=200, color_system=None), per_code=1000)
    for found, result in zip(report.findings, run["results"], strict=True):
        rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
        advice = result.get("properties", {}).get("fix", rule["help"]["text"])
        assert (result["ruleId"], result["level"], result["message"]["text"]) == (
            found.code, found.severity.value, found.message,
        )  # fmt: skip
        assert found.why == rule["fullDescription"]["text"] and found.fix in advice
        assert rule["shortDescription"]["text"] == rules()[found.code].title
        assert ("locations" in result) == bool(location(found))
        words = (found.code, found.severity.value, found.message, location(found), found.why, found.fix)
        text = " ".join(screen.getvalue().split())
        assert [word for word in words if word not in page] == []
        assert [word for word in words if " ".join(word.split()) not in text] == []


def test_the_corpus_is_large_and_meets_most_codes() -> None:
    assert len(FAULTS) >= 60
    graver = {code for code, rule in rules().items() if rule.severity is not Severity.NOTE and code >= "C2"}
    graver -= {code for code in graver if "C501" <= code <= "C514"}  # of `registry`, which has tests of its own
    graver -= {code for code in graver if "C526" <= code <= "C530"}  # of code that is run, which has tests of its own
    # Those about data, and what only the command knows of a run, have tests of their own.
    about_data = {code for code in graver if code >= "C701"} | {"C311", "C312", "C313"}
    assert graver - {fault.code for fault in FAULTS} == about_data | {"C606", "C608"}


def _pairs() -> list[tuple[Fault, Fault]]:
    """Faults in twos, of different codes and files of different topics, so that neither undoes the other."""
    plain = [fault for fault in FAULTS if fault.run is None and fault.family == "llama" and fault.code in PAIRED]
    step = len(plain) // 3
    return [(plain[i], plain[(i + step) % len(plain)]) for i in range(len(plain))]


# Codes whose faults change fields or texts that no other of them changes, and after which the rest can still be judged.
PAIRED = ("C205", "C206", "C302", "C310", "C403", "C415", "C416", "C421", "C423", "C431", "C432", "C316", "C521")


@pytest.mark.parametrize(("one", "two"), _pairs(), ids=lambda fault: f"{fault.code} {fault.name}")
def test_two_faults_are_both_found(one: Fault, two: Fault, templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    one.apply(directory)
    two.apply(directory)
    graver = {f.code for f in check(directory).findings if f.severity is not Severity.NOTE}
    assert graver == {one.code, two.code}


def test_a_template_may_mark_what_the_assistant_says(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    text = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    edit("tokenizer_config.json", chat_template=text)(directory)
    assert check(directory).findings == []


def test_notes_leave_the_report_clean(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    edit("config.json", pad_token_id=1, eos_token_id=[1, 4])(directory)
    edit("generation_config.json", pad_token_id=1)(directory)
    edit("tokenizer_config.json", pad_token="</s>")(directory)
    for shard in directory.glob("*.safetensors"):
        shard.unlink()
    (directory / "model.safetensors.index.json").unlink()
    report = check(directory)
    assert {f.code for f in report.findings} == {"C303", "C305", "C428"}
    assert report.exit_code == 0
    assert {s.name: s.verdict for s in report.stages}["tensors"] is Verdict.SKIPPED


def test_missing_tokenizer_and_pad_are_notes(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    (directory / "tokenizer.json").unlink()
    edit("config.json", pad_token_id=...)(directory)
    edit("generation_config.json", pad_token_id=...)(directory)
    assert {f.code for f in check(directory).findings} == {"C207", "C304"}


def test_a_run_that_fits_is_clean_and_reports_padding(templates: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"data": {"seq_length": 64}, "layout": {"tp": 2, "vocab_multiple": 8}}))
    report = check(templates["llama"], run=run)
    assert {f.code for f in report.findings} == {"C603"}
    assert "304" in report.findings[0].message  # 300 rows to a multiple of 8 x 2
    assert {s.name: s.verdict for s in report.stages}["layout"] is Verdict.PASS
    assert report.exit_code == 0


@pytest.mark.parametrize(
    ("summary", "code"),
    [
        ({"seq_length": 64, "tokenizer": {"eos": 7, "pad": 2}}, "C311"),
        ({"seq_length": 64, "tokenizer": {"sha256": "0" * 64}}, "C312"),
        ({"seq_length": 64, "tokenizer": {"eos": 1, "largest_id": 300}}, "C313"),
        ({"seq_length": 128}, "C402"),
    ],
)
def test_prepared_data_must_fit(
    summary: dict[str, object], code: str, templates: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "data.json").write_text(json.dumps(summary))
    run = tmp_path / "run.yaml"
    run.write_text(yaml.safe_dump({"data": {"path": "data"}}))  # relative to the run configuration
    assert {f.code for f in check(templates["llama"], run=run).findings} == {code}


def test_tensors_are_grouped_by_pattern(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    edit("config.json", intermediate_size=64)(directory)
    messages = [f.message for f in check(directory).findings]
    assert len(messages) == 3  # gate, up and down, not 9 tensors
    assert any("layers.{layer}.mlp.gate_proj" in text and "[56, 32] in layers 0-2" in text for text in messages)


def test_values_and_places_are_named(templates: dict[str, Path], tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(templates["llama"], directory)
    edit("generation_config.json", eos_token_id=0)(directory)
    (found,) = check(directory).findings
    assert found.file == "generation_config.json"
    assert found.field == "eos_token_id"
    assert found.message == "eos: config.json says 1, generation_config.json says 0"


def test_no_model_directory_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such directory"):
        check(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        check(tmp_path)


@pytest.mark.parametrize("text", ["a: [", "- 1\n", ""])
def test_an_unreadable_run_is_a_user_error(text: str, templates: dict[str, Path], tmp_path: Path) -> None:
    run = tmp_path / "run.yaml"
    run.write_text(text)
    with pytest.raises(UserError, match=r"run\.yaml"):
        check(templates["llama"], run=run)


def test_supported_rope_is_what_the_models_compute() -> None:
    from ms_models.layers.rotary import RopeConfig

    fields = dict.fromkeys(("rope_theta", "factor", "low_freq_factor", "high_freq_factor"), 2.0)
    accepted = []
    for kind in ROPE_TYPES:
        lists = {"short_factor": [2.0], "long_factor": [2.0]}
        config = {"rope_parameters": {"rope_type": kind, "original_max_position_embeddings": 32, **lists, **fields}}
        try:
            RopeConfig.from_json(config)
        except UserError:
            continue
        accepted.append(kind)
    assert tuple(accepted) == ROPE


def published(**changes: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """transformers' own configuration of every model type that can be built, changed."""
    from ms_models import auto

    for kind in auto.registered():
        if kind in transformers.CONFIG_MAPPING:
            yield kind, {**transformers.AutoConfig.for_model(kind).to_dict(), **changes}


def test_where_a_part_of_a_head_can_be_rotated_is_what_the_models_do() -> None:
    from ms_models import auto

    accepted = []
    for kind, config in published():
        if "rope_parameters" not in config:
            continue
        for rope in (config["rope_parameters"], *config["rope_parameters"].values()):
            if isinstance(rope, dict):
                rope["partial_rotary_factor"] = 0.25
        try:
            auto._models.find(Path("config.json"), {"model_type": kind}).read_config(config, family_for_config(config))
        except UserError as error:
            assert "partial_rotary_factor" in str(error), (kind, error)
            continue
        accepted.append(kind)
    assert tuple(accepted) == PARTIAL_ROPE


def test_where_windows_are_computed_is_what_the_models_do() -> None:
    from ms_models import auto

    found = []
    for kind, config in published(sliding_window=16, use_sliding_window=True):
        try:
            settings = auto._models.find(Path("config.json"), {"model_type": kind}).read_config(
                config, family_for_config(config)
            )
        except UserError as error:
            assert "sliding" in str(error), (kind, error)
            continue
        found += [kind] * any(getattr(settings, "windows", ()))
    assert tuple(found) == WINDOWED


def test_neither_torch_nor_mindspore_is_imported(templates: dict[str, Path]) -> None:
    program = (
        "import sys, pathlib; from migrate.check.command import check; check(pathlib.Path(sys.argv[1]));"
        "bad = {'torch', 'mindspore', 'transformers'} & set(sys.modules); sys.exit(f'imported {bad}' if bad else 0)"
    )
    outcome = subprocess.run([sys.executable, "-c", program, str(templates["llama"])], capture_output=True, text=True)
    assert outcome.returncode == 0, outcome.stderr


def test_round_trip_says_why_it_is_skipped(templates: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("migrate.check.round_trip.available", lambda: False)
    stages = {stage.name: stage for stage in check(templates["llama"]).stages}
    assert stages["round trip"].verdict is Verdict.SKIPPED
    assert "tokenizers library" in stages["round trip"].message
