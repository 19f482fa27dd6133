"""Comparisons under layouts in two launches: one process of PyTorch for all references, one launch for all ranks.

`python layout_launch.py JOBS`: JOBS is a JSON list of [job, folder]; captures each in PyTorch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from migrate.captures.store import Capture
from migrate.parity import command
from migrate.parity.layouts.disagreeing import disagreeing
from migrate.parity.layouts.launching import collect, start_ranks
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.parity.stages import ORDER, Judgement, Tolerances, judge
from migrate.processes import run
from migrate.report import Verdict

RANKS = 2


@dataclass(frozen=True)
class Launch:
    """Plans and references by (model, layout), and by case the folder with what its ranks left behind."""

    plans: dict[tuple[str, str], Plan]
    references: dict[tuple[str, str], Capture]
    folders: dict[str, Path]

    def judged(self, name: str, case: tuple[str, str], in_fp64: bool = False) -> list[tuple[str, Judgement]]:
        """Stages of a case with their verdicts, up to the first that does not pass.

        Args:
            name: of the case.
            case: its model and layout.
            in_fp64: whether PyTorch's rounding may widen a bound, as the command has it.
        """
        plan, reference = self.plans[case], self.references[case]
        captured, disagreements = collect(plan, plan.job, Request.read(case[1]), self.folders[name], None)
        assert isinstance(captured, Capture), captured
        found = []
        for stage in ORDER:
            result = judge(stage, reference, captured, plan.batch, plan.names(stage), Tolerances())
            if in_fp64 and stage in command.ROUNDED and result.stage.verdict is Verdict.FAIL:
                exact = command._Noise(plan.job, self.folders[name] / f"exact {stage}", 120).capture()
                result = judge(stage, reference, captured, plan.batch, plan.names(stage), Tolerances(), exact)
            found.append((stage, disagreeing(result, stage, disagreements)))
            if found[-1][1].stage.verdict is not Verdict.PASS:
                break
        return found

    def first_wrong(self, name: str, case: tuple[str, str]) -> tuple[str | None, str | None]:
        """(first stage that does not pass, the tensor it names first)."""
        stage, result = self.judged(name, case)[-1]
        if result.stage.verdict is Verdict.PASS:
            return None, None
        print(name, stage, result.stage.message)
        return stage, result.findings[0].tensor


def asked_for(request: Any, cases: Mapping[str, tuple[str, str]]) -> dict[str, tuple[str, str]]:
    """Those of the cases that tests of this session have as their parameter `name` (`-k llama`).

    Args:
        request: of a fixture.
        cases: of its file.
    """
    items = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    names = {item.callspec.params.get("name") for item in items}
    return {name: case for name, case in cases.items() if name in names}


def launch(cases: Mapping[str, tuple[str, str]], models: Mapping[str, Path], root: Path, timeout_s: float) -> Launch:
    """Runs all cases.

    Args:
        cases: model and layout of two ranks, by the name of a fault of `plants_layouts`, or any other name for none.
        models: directories by name.
        root: empty; takes everything.
        timeout_s: for each side.
    """
    plans: dict[tuple[str, str], Plan] = {}
    references, ranks, folders = {}, [], {}
    for number, (name, case) in enumerate(cases.items()):
        if case not in plans:
            folder = root / f"reference{number}"
            folder.mkdir()
            plans[case] = Plan.make(models[case[0]], ORDER, folder, request=Request.read(case[1]))
            plans[case].job.write(folder / "job.json")
            references[case] = folder / "torch"
            references[case].mkdir()
        folders[name] = root / f"ranks{number}"
        folders[name].mkdir()
        plans[case].job.write(folders[name] / "job.json")
        ranks.append((name, case[1], str(folders[name] / "job.json"), str(folders[name])))
    (root / "references.json").write_text(
        json.dumps([(str(f.parent / "job.json"), str(f)) for f in references.values()])
    )
    outcome = run([sys.executable, __file__, str(root / "references.json")], timeout_s)
    assert outcome.returncode == 0, outcome.reason()
    captures = {case: Capture.read(folder) for case, folder in references.items()}
    assert all(set(one.stages) >= set(ORDER) for one in captures.values()), [one.errors for one in captures.values()]
    (root / "jobs.json").write_text(json.dumps(ranks))
    before = {name: os.environ.get(name) for name in ("PYTHONPATH",)}
    tests = Path(__file__).parent
    os.environ["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent / "shared"), before["PYTHONPATH"] or ""])
    try:
        outcome = start_ranks("plants_layouts", [str(root / "jobs.json")], RANKS, root / "logs", timeout_s)
    finally:
        del os.environ["PYTHONPATH"]
        os.environ.update({name: value for name, value in before.items() if value is not None})
    logs = [path.read_text(errors="replace")[-2000:] for path in (root / "logs").glob("worker_*.log")]
    assert outcome.returncode == 0, "\n".join([outcome.reason(), *logs])
    return Launch(plans, captures, folders)


def main(jobs: Path) -> None:
    """Captures every job in PyTorch."""
    from migrate.parity.capture_torch import main as capture

    for job, folder in json.loads(jobs.read_text()):
        capture(Path(job), Path(folder))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
