"""The live line, and plain lines where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from ms_models.train.launch.eta import Eta
from ms_models.train.launch.following import Tail
from ms_models.train.launch.terminal import Terminal

STEP = {"step": 5, "loss": 2.5, "lr": 1e-3, "tokens_per_s": 1234.5}


def shown(*records: dict[str, object]) -> str:
    out = io.StringIO()
    with Terminal(10, Console(file=out, force_terminal=True, width=200, color_system=None)) as terminal:
        terminal.say("step  5/10  loss 2.5000  said by the rank")
        terminal.say("step 5: saved run/step_00000005")
        for record in records:
            terminal.show(record)
    return out.getvalue()


def test_a_terminal_has_one_line_that_moves_and_keeps_the_others() -> None:
    text = shown({**STEP, "step": 4}, {"step": 4, "eval_loss": 2.25}, STEP)
    assert "step 5: saved run/step_00000005" in text
    assert "said by the rank" not in text, "the live line replaces it"
    assert "step 4/10 (40%)  loss 2.5000  lr 1.00e-03  1,234 tokens/s" in text
    assert "eta 0:00:0" in text.split("step 5/10")[1]
    assert text.rstrip().endswith("val 2.2500"), "the last line stays"
    assert "loss skipped" in shown({**STEP, "loss": None})


def test_elsewhere_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with Terminal(10) as terminal:
        terminal.say("step  5/10  loss 2.5000")
        terminal.show(STEP)
    assert capsys.readouterr().out == "step  5/10  loss 2.5000\n"


def test_the_time_left_follows_the_pace_since_the_first_step() -> None:
    now = iter([100.0, 102.0, 112.0, 50.0, 51.0])
    eta = Eta(1000, lambda: next(now))
    assert eta.after(1) == ""
    assert eta.after(2) == "0:33:16"  # 998 steps of 2 s
    assert eta.after(4) == "1:06:24"  # 996 steps of 4 s
    assert eta.after(2) == "", "a run that went back begins anew"
    assert eta.after(3) == "0:16:37"


def test_a_tail_gives_whole_lines_once_and_begins_anew_with_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"old": 1}\n')
    tail = Tail(path, from_end=True)
    assert list(tail.records()) == []
    with path.open("a") as file:
        file.write('{"step": 1}\n{"st')
    assert list(tail.records()) == [{"step": 1}]
    (tmp_path / "new").write_text('{"step": 0}\n')
    (tmp_path / "new").rename(path)
    assert list(tail.records()) == [{"step": 0}]
    assert Tail(tmp_path / "none").lines() == []
