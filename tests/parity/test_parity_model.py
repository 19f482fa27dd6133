"""`parity model` for real: equal models pass, faulty candidates fail at their stage, nothing else is a success."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import planted_backward
import pytest
from parity_models import make
from safetensors.numpy import load_file, save_file

from mappings.errors import UserError
from mappings.families import load_family
from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.backward import running as backward
from migrate.parity.explain import running
from migrate.parity.inputs import make_batch
from migrate.parity.job import Job
from migrate.parity.stages import ORDER, TITLES, Tolerances, expected_modules
from migrate.report import Report, Verdict

K_PROJ, V_PROJ = (f"model.layers.1.self_attn.{name}_proj.weight" for name in "kv")
# One of each kind: those of other layers are counted with them.
NORMS = ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm")
BIAS = "model.layers.0.self_attn.v_proj.bias"


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("qwen2", tmp_path_factory.mktemp("qwen2"), tie_word_embeddings=True)


@pytest.fixture(scope="module")
def reference(qwen2: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, Path]:
    """The PyTorch side of the default comparison of `qwen2`, captured once for the tests with a faulty candidate."""
    root = tmp_path_factory.mktemp("reference")
    config = json.loads((qwen2 / "config.json").read_text())
    np.savez(root / "inputs.npz", **make_batch(config, 0))
    modules = expected_modules(load_family("qwen2"), config)
    job = Job(qwen2, ORDER, root / "inputs.npz", tuple(modules))
    for dtype in ("float32", "float64"):
        captured = command._capture("PyTorch", replace(job, dtype=dtype), root / dtype, 120)
        assert isinstance(captured, Capture) and set(captured.stages) >= set(ORDER), captured
    return job, root


@pytest.fixture
def cached(reference: tuple[Job, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `command.model` reuse the reference; the MindSpore side runs for real."""
    real = command._capture

    def capture(side: str, job: Job, out: Path, timeout_s: float) -> Capture | str:
        return Capture.read(reference[1] / job.dtype) if side == "PyTorch" else real(side, job, out, timeout_s)

    monkeypatch.setattr(command, "_capture", capture)


@pytest.mark.parametrize(
    ("family", "settings"),
    [("qwen2", {"tie_word_embeddings": True}), ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10})],
)
def test_equal_models_pass_every_stage(family: str, settings: dict[str, object], tmp_path: Path) -> None:
    directory = make(family, tmp_path, **settings)
    report = command.model(directory, timeout_s=120)
    assert report.exit_code == 0, report.findings
    config = json.loads((directory / "config.json").read_text())
    parameters = load_family(family).parameters(config)
    modules = expected_modules(load_family(family), config)
    compared = {stage.name: stage.compared for stage in report.stages}
    count, updates = len(parameters), 2 * (len(parameters) + 2)
    assert compared == dict(zip(TITLES.values(), (count, len(modules) + 1, 2, count, updates), strict=True))
    elements = {stage.name: stage.figures.get("elements") for stage in report.stages}
    assert elements[TITLES["W"]] == elements[TITLES["G"]] == sum(int(np.prod(p.shape)) for p in parameters)
    # Every tensor stands in the facts, and the report survives its file.
    assert len(report.facts["tensors"]) == 2 * len(parameters) + len(modules) + 1 + 1 + updates
    (tmp_path / "report.json").write_text(report.to_json())
    assert Report.from_json(tmp_path / "report.json").exit_code == 0


def edit_config(**changes: object) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return apply


def edit_weights(change: Callable[[dict[str, np.ndarray]], None]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        path = directory / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


def _nudge(tensors: dict[str, np.ndarray]) -> None:
    tensors[K_PROJ][3, 5] = np.nextafter(tensors[K_PROJ][3, 5], np.float32(9))


def _swap(tensors: dict[str, np.ndarray]) -> None:
    tensors[K_PROJ], tensors[V_PROJ] = tensors[V_PROJ], tensors[K_PROJ]


def _nan(tensors: dict[str, np.ndarray]) -> None:
    tensors[V_PROJ][0, 0] = np.nan


CANDIDATES = {
    "one bit of one weight": (edit_weights(_nudge), "W", {("P101", K_PROJ)}),
    "k and v swapped": (edit_weights(_swap), "W", {("P101", K_PROJ), ("P101", V_PROJ)}),
    "bias zeroed": (edit_weights(lambda t: t.update({BIAS: np.zeros_like(t[BIAS])})), "W", {("P101", BIAS)}),
    "NaN in a weight": (edit_weights(_nan), "W", {("P004", V_PROJ)}),
    "eps": (edit_config(rms_norm_eps=1e-5), "F", {("P201", NORMS[0]), *(("P203", name) for name in NORMS)}),
    "rope theta": (
        edit_config(rope_parameters={"rope_theta": 500000.0, "rope_type": "default"}),
        "F",
        {("P201", "model.layers.0.self_attn.o_proj"), ("P204", "model.layers.0.self_attn")},
    ),
}


@pytest.mark.parametrize("name", CANDIDATES)
def test_a_faulty_candidate_fails_at_its_stage(name: str, qwen2: Path, cached: None, tmp_path: Path) -> None:
    apply, stage, expected = CANDIDATES[name]
    shutil.copytree(qwen2, tmp_path / "candidate")
    apply(tmp_path / "candidate")
    report = command.model(qwen2, candidate=tmp_path / "candidate", timeout_s=120)
    assert {(finding.code, finding.tensor) for finding in report.findings} == expected
    verdicts = [s.verdict for s in report.stages]
    place = ORDER.index(stage)
    assert verdicts == [Verdict.PASS] * place + [Verdict.FAIL] + [Verdict.SKIPPED] * (len(ORDER) - place - 1)
    assert report.exit_code == 1
    if stage == "F":  # both directories have a config, so what differs there comes first
        assert all("of the reference, " in found.fix for found in report.findings if found.code in ("P203", "P204"))
        assert report.facts["modules judged"]["heir"] > 3


def test_modules_can_be_judged_alone_although_all_agree(qwen2: Path, cached: None) -> None:
    report = command.model(qwen2, stages=["F"], force=True, timeout_s=120)
    assert [(stage.name, stage.verdict) for stage in report.stages] == [
        (TITLES["F"], Verdict.PASS),
        ("F alone", Verdict.PASS),
    ]
    assert report.stages[1].compared == report.stages[0].compared
    assert report.exit_code == 0


def test_a_forced_pass_that_was_asked_for_and_did_not_run_is_no_success(
    qwen2: Path, cached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "FORCED", "no_such_program")
    report = command.model(qwen2, stages=["F"], force=True, timeout_s=120)
    assert report.exit_code == 2
    assert "No module named no_such_program" in report.stages[1].message


def test_keep_going_judges_every_stage(qwen2: Path, cached: None, tmp_path: Path) -> None:
    shutil.copytree(qwen2, tmp_path / "candidate")
    edit_config(rms_norm_eps=1e-3)(tmp_path / "candidate")
    report = command.model(qwen2, candidate=tmp_path / "candidate", keep_going=True, timeout_s=120)
    # Injected gradients do not ask what the model computes.
    assert [stage.verdict for stage in report.stages] == [Verdict.PASS, *[Verdict.FAIL] * 3, Verdict.PASS]


def test_a_model_that_does_not_load_could_not_run(qwen2: Path, cached: None, tmp_path: Path) -> None:
    shutil.copytree(qwen2, tmp_path / "candidate")
    edit_weights(lambda tensors: tensors.pop(BIAS))(tmp_path / "candidate")
    report = command.model(qwen2, candidate=tmp_path / "candidate", timeout_s=120)
    assert report.exit_code == 2
    assert report.stages[0].verdict is Verdict.COULD_NOT_RUN
    assert BIAS in report.stages[0].message
    assert {stage.verdict for stage in report.stages[1:]} == {Verdict.SKIPPED}


def test_a_reference_that_loads_in_part_could_not_run(qwen2: Path, tmp_path: Path) -> None:
    shutil.copytree(qwen2, tmp_path / "model")
    edit_weights(lambda tensors: tensors.pop(BIAS))(tmp_path / "model")
    report = command.model(tmp_path / "model", candidate=qwen2, stages=["W"], timeout_s=120)
    assert report.exit_code == 2
    assert "only in part" in report.stages[0].message and BIAS in report.stages[0].message


def test_a_missing_framework_could_not_run(qwen2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "SIDES", dict.fromkeys(command.SIDES, "no_such_framework"))
    report = command.model(qwen2, stages=["F"], timeout_s=120)
    assert report.exit_code == 2
    assert "No module named no_such_framework" in report.stages[0].message


def test_a_timeout_could_not_run(qwen2: Path) -> None:
    report = command.model(qwen2, stages=["L"], timeout_s=0.05)
    assert report.exit_code == 2
    assert "no answer in time" in report.stages[0].message


def test_bad_requests_are_user_errors(qwen2: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="'X'"):
        command.model(qwen2, stages=["W", "X"])
    with pytest.raises(UserError, match="none"):
        command.model(qwen2, stages=[])
    with pytest.raises(UserError, match=r"config\.json: no such file"):
        command.model(tmp_path)


def test_sharp_attention_is_judged_by_its_own_rounding(tmp_path: Path) -> None:
    # Scores in the hundreds amplify fp32 rounding beyond the plain bound; PyTorch in fp64 shows by how much.
    sizes = {"hidden_size": 192, "intermediate_size": 200, "num_hidden_layers": 4}
    directory = make("qwen2", tmp_path / "sharp", scale=0.35, **sizes)
    report = command.model(directory, timeout_s=120)
    assert report.exit_code == 0, report.findings
    plain = {"F": Tolerances().activations, "G": Tolerances().gradients}
    over = [row for row in report.facts["tensors"] if row["relative"] > plain.get(row["stage"], 1.0)]
    assert over and all(row["limit"] > plain[row["stage"]] for row in over)
    assert any(stage.figures.get("limits raised to own rounding") for stage in report.stages)


def test_a_fault_that_only_gradients_have_is_explained(
    qwen2: Path, cached: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them in ms_models: what inherits is called an heir, the rest agrees."""
    for place, name in planted_backward.ENVIRONMENT.items():
        monkeypatch.setenv(place, name)
    monkeypatch.setitem(command.SIDES, "MindSpore", planted_backward.__name__)
    monkeypatch.setattr(backward, "MINDSPORE", planted_backward.__name__)
    report = command.model(qwen2, stages=["F", "G"], timeout_s=120)
    assert [stage.verdict for stage in report.stages] == [Verdict.PASS, Verdict.FAIL]
    assert [(one.code, one.tensor) for one in report.findings] == [
        ("P401", f"{planted_backward.NORM}.weight"),
        ("P402", planted_backward.NORM),
        ("P403", planted_backward.LAYER),
    ]
    norm = next(one for one in report.findings if one.code == "P402")
    assert "its parameters, alone: model.layers.1.post_attention_layernorm.weight 1;" in norm.message
    assert "error of the gradient of its output 1.2e" not in norm.message and "worst element [" in norm.message
    assert "ms_models.layers.norm:43 ScaledRows has a backward pass of its own" in norm.fix
    verdicts = {row["name"]: row["verdict"] for row in report.facts["modules backward"]}
    assert [name for name, verdict in verdicts.items() if verdict == "guilty"] == [
        planted_backward.LAYER,
        planted_backward.NORM,
    ]
    assert {verdicts[name] for name in ("model.norm", "model.layers.1.mlp", "model.layers.1.mlp.up_proj")} == {"agrees"}
    assert {verdicts[name] for name in ("model.layers.1.self_attn.o_proj", "model.embed_tokens")} == {"heir"}
    assert "modules" not in report.facts
