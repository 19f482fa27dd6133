"""The whole journey on real input: convert a PyTorch repository and a checkpoint, prove both, train, resume, export.

    python samples/demo.py [--out DIR]

Runs the commands a user would type, prints each with its output, stops at the first that fails, and ends with one HTML
page. `make demo` calls it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SAMPLES = Path(__file__).parent
MARK = ".msmigrate-demo"
THREADS = "2"  # the machine the figures in README were measured on has two cores


@dataclass(frozen=True)
class Step:
    """One job of the demo: a title and the commands that do it."""

    title: str
    commands: Sequence[Sequence[str | Path]]
    cwd: Path | None = None


def steps(out: Path) -> list[Step]:
    """The journey, in order."""
    hf, sharded, back, trained = out / "hf", out / "sharded", out / "exported", out / "trained_hf"
    torch_run, ms_repo, ms_run = out / "torch_run", out / "torch_gpt_ms", out / "converted_run"
    init, reports = out / "init.pt", out / "reports"

    def tool(*words: str | Path, report: str | None = None) -> list[str | Path]:
        return ["msmigrate", *words, *(["--report", reports / f"{report}.json"] if report else [])]

    def train(layout: str, run: str, *more: str) -> list[str | Path]:
        config = SAMPLES / "runs" / f"{layout}.yaml"
        settings = [f"model.path={hf}", f"output.directory={out / run}", f"data.path={out / 'data'}"]
        return tool("train", config, *(word for s in settings for word in ("--set", s)), *more)

    def curve(reference: str, candidate: str, name: str, *more: str) -> list[str | Path]:
        files = [out / reference / "metrics.jsonl", out / candidate / "metrics.jsonl"]
        return tool("parity", "curve", *files, *more, report=name)

    python = ["python"]
    generate = SAMPLES / "hf_checkpoint" / "generate.py"
    layouts = ["--first-rtol", "1e-6", "--last-rtol", "1e-4"]
    return [
        Step("Check the machine", [tool("doctor", "--collective", report="doctor")]),
        Step(
            "Make a Hugging Face checkpoint: Qwen2, random weights, tokenizer trained on the standard library",
            [[*python, SAMPLES / "hf_checkpoint" / "make.py", "qwen2", hf]],
        ),
        Step("Check its configuration", [tool("check", hf, "--run", SAMPLES / "runs" / "tp2.yaml", report="check")]),
        Step(
            "Cut it for two tensor-parallel ranks, verify, join it again, verify",
            [
                tool("weights", "convert", hf, "-o", sharded, "--tp", "2", report="convert"),
                tool("weights", "verify", sharded, "--source", hf, report="verify_sharded"),
                tool("weights", "export", sharded, "-o", back, report="export"),
                tool("weights", "verify", back, "--source", hf, report="verify_exported"),
                [*python, generate, hf, back],
            ],
        ),
        Step("Is the MindSpore model the PyTorch model?", [tool("parity", "model", hf, report="parity")]),
        Step(
            "Train the PyTorch repository",
            [[*python, SAMPLES / "torch_gpt" / "train.py", "--save-init", init, f"out_dir={torch_run}"]],
        ),
        Step("Convert the repository", [tool("code", SAMPLES / "torch_gpt", "-o", ms_repo, "--verify", report="code")]),
        Step(
            "Train the converted repository from the same weights, compare 20 losses",
            [
                [*python, ms_repo / "train.py", "--init-from", init, f"out_dir={ms_run}"],
                tool(
                    "parity", "curve", torch_run / "losses.jsonl", ms_run / "losses.jsonl", "--steps", "20",
                    "--first-rtol", "1e-6", "--last-rtol", "1e-4", report="curve_converted",
                ),
            ],
        ),  # fmt: skip
        Step(
            "Text to MindRecord",
            [tool("data", "stdlib", "--tokenizer", hf, "-o", out / "data", "--seq-length", "128", "--max-bytes", "2e6")],
        ),
        Step(
            "Train 30 steps on one process, on two tensor-parallel and on two data-parallel ranks; same losses",
            [
                train("one", "run_one"),
                train("tp2", "run_tp2"),
                train("dp2", "run_dp2"),
                curve("run_one", "run_tp2", "curve_tp2", *layouts),
                curve("run_one", "run_dp2", "curve_dp2", *layouts),
            ],
        ),
        Step(
            "Stop a run after 15 steps, resume it: exactly the losses of the run that was never stopped",
            [
                train("tp2", "run_resumed", "--stop-after", "15"),
                train("tp2", "run_resumed", "--resume"),
                curve("run_tp2", "run_resumed", "curve_resumed", "--first-rtol", "0", "--last-rtol", "0"),
            ],
        ),
        Step(
            "Export the trained model; transformers loads it and generates",
            [
                tool("weights", "export", out / "run_tp2" / "step_00000030", "-o", trained, report="export_trained"),
                [*python, generate, trained],
            ],
        ),
        Step(
            "One page of it all",
            [
                tool(
                    "report", *(reports / f"{name}.json" for name in REPORTS),
                    f"PyTorch torch_gpt={torch_run / 'losses.jsonl'}",
                    f"converted torch_gpt={ms_run / 'losses.jsonl'}",
                    f"one process={out / 'run_one' / 'metrics.jsonl'}",
                    f"tp=2={out / 'run_tp2' / 'metrics.jsonl'}",
                    f"dp=2={out / 'run_dp2' / 'metrics.jsonl'}",
                    "-o", out / "report.html", "--title", "msmigrate demo",
                )
            ],
        ),
    ]  # fmt: skip


REPORTS = [
    "check", "convert", "verify_sharded", "export", "verify_exported", "parity", "code", "curve_converted", "curve_tp2",
    "curve_dp2", "curve_resumed", "export_trained", "doctor",
]  # fmt: skip


def run(command: Sequence[str | Path], environment: dict[str, str]) -> int:
    """Runs one command with its output on the terminal; returns its exit code."""
    words = [str(word) for word in command]
    print(f"$ {shlex.join(words)}", flush=True)
    return subprocess.run(words, env=environment).returncode


def prepare(out: Path) -> None:
    """Makes an empty output directory; one that an earlier demo made is replaced, any other is refused."""
    if out.exists() and not (out / MARK).is_file() and (not out.is_dir() or any(out.iterdir())):
        sys.exit(f"{out} exists and was not made by the demo; choose another directory with --out")
    if out.exists():
        shutil.rmtree(out)
    (out / "reports").mkdir(parents=True)
    (out / MARK).touch()


def main() -> int:
    """Command line; 0 when every command did what it promises."""
    parser = argparse.ArgumentParser(description="msmigrate from end to end.")
    parser.add_argument("--out", type=Path, default=Path("demo_out"), help="directory for everything the demo makes")
    out = parser.parse_args().out
    prepare(out)
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", THREADS)}
    began = time.monotonic()
    for number, step in enumerate(steps(out), 1):
        print(f"\n== {number}. {step.title} ({time.monotonic() - began:.0f} s)", flush=True)
        for command in step.commands:
            if code := run(command, environment):
                print(f"\ndemo: the command above ended with exit code {code}; stopping", file=sys.stderr)
                return 1
    print(f"\nAll done in {time.monotonic() - began:.0f} s. Open {(out / 'report.html').resolve()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
