"""The page of runs: what a run wrote appears on it, several stand side by side, nothing is trusted as HTML."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mappings.errors import UserError
from migrate.report.command import report
from migrate.report.run_figures import POINTS, thinned
from tests.trouble.trouble_runs import healthy, restart

EVIL = "<script>alert('x')</script>"


def text_of(page: Path) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8")))


def test_one_run_is_shown_whole(tmp_path: Path) -> None:
    run = healthy()
    run.change("loss", None, 77, 78)
    run.restarts.append(restart(1, 120))
    run.events.insert(1, {"at": 40.0, "step": 77, "event": "skip"})
    for one in run.evaluations:
        one |= {"eval_loss/books": one["eval_loss"] + 1, "eval_loss/code": one["eval_loss"] - 1}
    run.evaluations[-1]["samples"] = [{"prompt": "def", "text": EVIL}]
    page = report([run.write(tmp_path / "mine")], tmp_path / "page.html")
    source, text = page.read_text(encoding="utf-8"), text_of(page)
    assert "<script" not in source and "&lt;script&gt;" in source
    for part in (
        "300 of 300", "2,457,600", "16,0", "T201", "2 of 300 steps were left out: steps 77 and 78", "T801", "Remedy",
        "Validation loss", "Gradient norm", "Learning rate", "Utilisation", "Memory of the fullest rank",
        "rank 1: signal 9; goes on from the beginning", "version of mindspore", "2.10.0", "schedule.warmup_steps",
        "Samples after step 300", "Validation loss by source", "books", "code", "Forward and backward, s",
        "Not looked for: 1",
    ):  # fmt: skip
        assert part in text, part
    # Marks stand where the step was left out and where the run was restarted.
    assert source.count('class="mark"') >= 2 and "skip after step 77" in source
    assert "None of the" not in text


def test_several_runs_stand_side_by_side(tmp_path: Path) -> None:
    first, second = healthy(0), healthy(0)
    second.config["optimizer"]["lr"] = 5e-4
    second.change("loss", lambda one: one["loss"] * 1.01)
    paths = [run.write(tmp_path / name) for name, run in (("a", first), ("b", second))]
    page = report([f"one={paths[0]}", f"two={paths[1]}"], tmp_path / "page.html")
    text = text_of(page)
    differing = text[text.index("What differs") : text.index("All settings")]
    assert "optimizer.lr 0.001 0.0005" in differing and "clip_norm" not in differing
    assert "Relative difference to one" in text
    assert "Equal to one in every digit" in text, "of the validation loss"
    assert text.count("None of the") == 2


def test_two_runs_need_two_names(tmp_path: Path) -> None:
    paths = [healthy().write(tmp_path / parent / "run") for parent in ("a", "b")]
    with pytest.raises(UserError, match="two runs are called run"):
        report(paths, tmp_path / "page.html")


def test_a_long_curve_is_thinned_and_keeps_its_peaks() -> None:
    steps = list(range(1, 100_001))
    values = [1.0] * len(steps)
    values[54_320], values[77_777] = 9.0, -3.0
    x, y = thinned(steps, values)
    assert len(x) <= POINTS and x == sorted(x)
    assert x[y.index(9.0)] == 54_321 and x[y.index(-3.0)] == 77_778
    assert thinned([1, 2], [5.0, 6.0]) == ([1.0, 2.0], [5.0, 6.0])
