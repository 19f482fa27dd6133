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

SAMPLES = Path(os.path.relpath(Path(__file__).parent))  # short, as a user would type it
GENERATE = SAMPLES / "hf_checkpoint" / "generate.py"
MARK = ".msmigrate-demo"
THREADS = "2"  # the machine the figures in README were measured on has two cores
CLOSE = ("--first-rtol", "1e-6", "--last-rtol", "1e-4")  # fp32: another order of summation, amplified by training
EXACT = ("--first-rtol", "0", "--last-rtol", "0")
RUNS = {"one process": "run_one", "tp=2": "run_tp2", "dp=2": "run_dp2", "resumed": "run_resumed"}
REPORTS = (
    "check", "convert", "verify_sharded", "export", "verify_exported", "parity", "code", "curve_converted", "curve_tp2",
    "curve_dp2", "curve_resumed", "trained", "doctor",
)  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One job of the demo: a title and the commands that do it."""

    title: str
    commands: Sequence[Sequence[str | Path]]


def steps(out: Path) -> list[Step]:
    """The journey, in order."""
    return [*checkpoint_steps(out), *code_steps(out), *training_steps(out), report_step(out)]


def tool(out: Path, *words: str | Path, report: str | None = None) -> list[str | Path]:
    """A `msmigrate` command, its report kept for the page at the end."""
    return ["msmigrate", *words, *(["--report", out / "reports" / f"{report}.json"] if report else [])]


def checkpoint_steps(out: Path) -> list[Step]:
    """A Hugging Face checkpoint: made, checked, cut, joined, and compared with its MindSpore model."""
    hf, sharded, back = out / "hf", out / "sharded", out / "exported"
    return [
        Step("Check the machine", [tool(out, "doctor", "--collective", report="doctor")]),
        Step(
            "Make a Hugging Face checkpoint: Qwen2, random weights, tokenizer trained on the standard library",
            [["python", SAMPLES / "hf_checkpoint" / "make.py", "qwen2", hf]],
        ),
        Step("Check its configuration", [tool(out, "check", hf, report="check")]),
        Step(
            "Cut it for two tensor-parallel ranks, verify, join it again, verify",
            [
                tool(out, "weights", "convert", hf, "-o", sharded, "--tp", "2", report="convert"),
                tool(out, "weights", "verify", sharded, "--source", hf, report="verify_sharded"),
                tool(out, "weights", "export", sharded, "-o", back, report="export"),
                tool(out, "weights", "verify", back, "--source", hf, report="verify_exported"),
                ["python", GENERATE, hf, back],
            ],
        ),
        Step("Is the MindSpore model the PyTorch model?", [tool(out, "parity", "model", hf, report="parity")]),
    ]


def code_steps(out: Path) -> list[Step]:
    """A PyTorch repository: trained, converted, trained again from the same weights."""
    original, converted, init = SAMPLES / "torch_gpt", out / "torch_gpt_ms", out / "init.pt"
    losses = [out / "torch_run" / "losses.jsonl", out / "converted_run" / "losses.jsonl"]
    return [
        Step(
            "Train the PyTorch repository",
            [["python", original / "train.py", "--save-init", init, f"out_dir={losses[0].parent}"]],
        ),
        Step("Convert the repository", [tool(out, "code", original, "-o", converted, "--verify", report="code")]),
        Step(
            "Train the converted repository from the same weights, compare 20 losses",
            [
                ["python", converted / "train.py", "--init-from", init, f"out_dir={losses[1].parent}"],
                tool(out, "parity", "curve", *losses, "--steps", "20", *CLOSE, report="curve_converted"),
            ],
        ),
    ]


def training_steps(out: Path) -> list[Step]:
    """The checkpoint, trained in three layouts, stopped, resumed, exported."""

    def train(layout: str, run: str, *more: str) -> list[str | Path]:
        places = {"model.path": out / "hf", "data.path": out / "data", "output.directory": out / run}
        settings = [word for key, path in places.items() for word in ("--set", f"{key}={path}")]
        return tool(out, "train", SAMPLES / "runs" / f"{layout}.yaml", *settings, *more)

    def curve(reference: str, candidate: str, *tolerance: str, report: str) -> list[str | Path]:
        files = [out / run / "metrics.jsonl" for run in (reference, candidate)]
        return tool(out, "parity", "curve", *files, *tolerance, report=report)

    text = ["stdlib", "--tokenizer", out / "hf", "--seq-length", "128", "--max-bytes", "2000000"]
    trained = out / "trained_hf"
    return [
        Step("Text to MindRecord", [tool(out, "data", *text, "-o", out / "data")]),
        Step(
            "Train 30 steps on one process, on two tensor-parallel and on two data-parallel ranks; same losses",
            [
                train("tp2", "run_tp2", "--dry-run"),
                train("one", "run_one"),
                train("tp2", "run_tp2"),
                train("dp2", "run_dp2"),
                curve("run_one", "run_tp2", *CLOSE, report="curve_tp2"),
                curve("run_one", "run_dp2", *CLOSE, report="curve_dp2"),
            ],
        ),
        Step(
            "Stop a run after 15 steps, resume it: exactly the losses of the run that was never stopped",
            [
                train("tp2", "run_resumed", "--stop-after", "15"),
                train("tp2", "run_resumed", "--resume"),
                curve("run_tp2", "run_resumed", *EXACT, report="curve_resumed"),
            ],
        ),
        Step(
            "Export the trained model; transformers loads it and generates",
            [
                tool(out, "weights", "export", out / "run_tp2" / "step_00000030", "-o", trained, report="trained"),
                ["python", GENERATE, trained],
            ],
        ),
    ]


def report_step(out: Path) -> Step:
    """Everything on one page."""
    reports = [out / "reports" / f"{name}.json" for name in REPORTS]
    curves = [
        f"loss of torch_gpt:PyTorch={out / 'torch_run' / 'losses.jsonl'}",
        f"loss of torch_gpt:converted to MindSpore={out / 'converted_run' / 'losses.jsonl'}",
        *(f"loss of the checkpoint in training:{name}={out / run / 'metrics.jsonl'}" for name, run in RUNS.items()),
    ]
    page = ["-o", out / "report.html", "--title", "msmigrate demo"]
    return Step("One page of it all", [tool(out, "report", *reports, *curves, *page)])


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
