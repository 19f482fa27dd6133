"""`parity model --layout`: every layout of two ranks equals PyTorch, and what only ranks get wrong is found."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import plants_layouts
import pytest
from parity_models import make

from mappings.errors import UserError
from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.layouts.disagreeing import disagreeing
from migrate.parity.layouts.launching import collect, start_ranks
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.stages import ORDER, Tolerances, judge
from migrate.report import Verdict

MODELS = dict.fromkeys([one[0] for one in (*plants_layouts.PLANTS.values(), *plants_layouts.BENIGN.values())])


@dataclass(frozen=True)
class Launch:
    """References by model and layout, and the folder with what the ranks left behind."""

    plans: dict[tuple[str, str], Plan]
    references: dict[tuple[str, str], Capture]
    out: Path
    folders: dict[str, Path]


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    root = tmp_path_factory.mktemp("layouts")
    own = {plants_layouts.TIED: {"tie_word_embeddings": True}, plants_layouts.SPARSE: {"num_experts": 6}}
    models = {name: make(name, root / name, **own.get(name, {})) for name in MODELS}
    cases = {name: case[:2] for name, case in (*plants_layouts.PLANTS.items(), *plants_layouts.BENIGN.items())}
    plans: dict[tuple[str, str], Plan] = {}
    references: dict[tuple[str, str], Capture] = {}
    jobs, folders = [], {}
    for number, (fault, case) in enumerate(cases.items()):
        model, layout = case
        if case not in plans:
            folder = root / f"reference{number}"
            folder.mkdir()
            plans[case] = Plan.make(models[model], ORDER, folder, request=Request.read(layout))
            captured = command._capture("PyTorch", plans[case].job, folder / "torch", 120)
            assert isinstance(captured, Capture) and set(captured.stages) >= set(ORDER)
            references[case] = captured
        folders[fault] = root / f"ranks{number}"
        folders[fault].mkdir()
        plans[case].job.write(folders[fault] / "job.json")
        jobs.append((fault, layout, str(folders[fault] / "job.json"), str(folders[fault])))
    (root / "jobs.json").write_text(json.dumps(jobs))
    tests = Path(__file__).parent
    paths = [str(tests), str(tests.parent / "shared"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        outcome = start_ranks("plants_layouts", [str(root / "jobs.json")], 2, root / "logs", 1200)
    logs = [path.read_text(errors="replace")[-2000:] for path in (root / "logs").glob("worker_*.log")]
    assert outcome.returncode == 0, "\n".join([outcome.reason(), *logs])
    return Launch(plans, references, root, folders)


def first_wrong(name: str, case: tuple[str, str], launch: Launch) -> tuple[str | None, str | None]:
    """(first stage that does not pass, the tensor it names first)."""
    plan, reference = launch.plans[case], launch.references[case]
    captured, disagreements = collect(plan, plan.job, Request.read(case[1]), launch.folders[name], None)
    assert isinstance(captured, Capture), captured
    for stage in ORDER:
        result = judge(stage, reference, captured, plan.batch, plan.names(stage), Tolerances())
        result = disagreeing(result, stage, disagreements)
        if result.stage.verdict is not Verdict.PASS:
            print(name, stage, result.stage.message)
            return stage, result.findings[0].tensor
    return None, None


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", plants_layouts.PLANTS)
def test_a_fault_of_several_ranks_is_found_and_located(name: str, launch: Launch) -> None:
    model, layout, stage, place = plants_layouts.PLANTS[name]
    assert first_wrong(name, (model, layout), launch) == (stage, place)


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", plants_layouts.BENIGN)
def test_a_layout_gives_no_alarm(name: str, launch: Launch) -> None:
    assert first_wrong(name, plants_layouts.BENIGN[name], launch) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=2,sequence_paralel=true", "is no NAME=VALUE of a layout; did you mean 'sequence_parallel'"),
        ("tp", "'tp' is no NAME=VALUE"),
        ("tp=two", "tp must be a whole number"),
        ("tp=5", "tp"),
        ("sequence_parallel=true", "sequence_parallel divides sequences over tp, which is 1"),
        ("dp=2,pp=2,zero=3", "take zero=2"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_anything_starts(text: str, words: str, tmp_path: Path) -> None:
    directory = make("llama", tmp_path / "model")
    with pytest.raises(UserError, match=words):
        command.model(directory, layout=text, timeout_s=1)


def test_a_request_survives_its_text() -> None:
    for text in ("tp=2,pp=2,sequence_parallel=true", "dp=4,ep=2,zero=1", "cp=2,context=ulysses", "pp=2,schedule=gpipe"):
        request = Request.read(text)
        assert Request.read(request.text) == request
    assert str(Request.read("tp=2,sequence_parallel=true")) == "tp=2 sequence_parallel=True"
