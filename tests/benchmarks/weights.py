"""The weight converter against MindSpore's own tools, `safetensors.torch` and a plain copy, in one run.

    python tests/benchmarks/weights.py [--rounds 3] [--limit 600] [--only dense|experts|plan] [--folder DIR]

Ours and the rival take turns, each in a process of its own, and both are timed twice: the whole process, which is what
a user waits for, and the work in it, without the start of Python and imports (of ours: the copy and its digests; of a
rival: the call). Ratios are of medians. Memory is the peak of what the processes of a job have for themselves (unique
set size), which leaves the page cache out. Outputs are compared tensor by tensor.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil
from weights_checkpoints import DEEPSEEK_671B, MANY_EXPERTS, QWEN3_06B, make

from mappings.formats.safetensors import read_bytes, read_header

HERE = Path(__file__).parent
POLL = 0.05
WORK = {"ours": r"\bseconds ([0-9.]+)", "theirs": r'\{"seconds": ([0-9.e-]+)\}'}


@dataclass
class Result:
    """Of one job of one side."""

    seconds: list[float] = field(default_factory=list)
    """Of the whole process."""
    work: list[float] = field(default_factory=list)
    """Without the start of Python, imports and, of ours, planning."""
    mib: float = 0.0
    over: bool = False
    """Whether it was stopped at the limit."""

    def text(self) -> str:
        """Seconds and MiB for the table."""
        work = f" ({median(self.work):.2f} work)" if self.work else ""
        return f"{'> ' if self.over else ''}{median(self.seconds):.2f} s{work}, {self.mib:.0f} MiB"


def run(command: Sequence[str], limit: float) -> tuple[float, float, bool, str]:
    """Seconds, peak MiB of the process tree, whether the limit ended it, and what it printed.

    Raises:
        SystemExit: the command failed.
    """
    start = time.perf_counter()
    with tempfile.TemporaryFile("w+") as output:
        # As on a user's machine, where Python keeps what it compiled.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=environment
        )
        peak = 0.0
        while process.poll() is None and time.perf_counter() - start < limit:
            peak = max(peak, _mib(process.pid))
            time.sleep(POLL)
        seconds = time.perf_counter() - start
        over = process.poll() is None
        if over:
            for child in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
                child.kill()
            process.wait()
        output.seek(0)
        text = output.read()
    if process.returncode and not over:
        raise SystemExit(f"{' '.join(command)}: ended with code {process.returncode}\n{text[-2000:]}")
    return seconds, peak, over, text


def _mib(pid: int) -> float:
    total = 0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().uss
    except psutil.Error:  # it ended meanwhile
        pass
    return total / 2**20


class Table:
    """Runs jobs in turn and prints a line for each."""

    def __init__(self, folder: Path, rounds: int, limit: float) -> None:
        self.folder, self.rounds, self.limit = folder, rounds, limit
        print(
            "| job | ours | rival | rival's | ratio | of the work | outputs |\n|---|---|---|---|---|---|---|",
            flush=True,
        )

    def compare(
        self,
        job: str,
        ours: Sequence[str],
        rival: str,
        arguments: Sequence[str],
        same: Callable[[Path, Path], str] | None,
    ) -> None:
        """One line. `{out}` in arguments is the output of the side."""
        results = {"ours": Result(), "theirs": Result()}
        outs = {side: self.folder / f"out_{side}" for side in results}
        for _ in range(self.rounds):
            for side, result in results.items():
                if result.over:
                    continue
                shutil.rmtree(outs[side], ignore_errors=True)
                command = self._ours(ours) if side == "ours" else self._theirs(rival, arguments)
                if side == "theirs":
                    outs[side].mkdir()
                filled = [part.replace("{out}", str(outs[side])) for part in command]
                seconds, mib, result.over, text = run(filled, self.limit)
                if not result.over:
                    pattern = WORK[side]
                    result.work.append(float(re.findall(pattern, text)[-1]))  # beside what MindSpore prints
                result.seconds.append(seconds)
                result.mib = max(result.mib, mib)
        ratios = [median(results["theirs"].seconds) / median(results["ours"].seconds)]
        ratios += [median(results["theirs"].work or [float("nan")]) / median(results["ours"].work)]
        equal = "not compared" if same is None or results["theirs"].over else same(*outs.values())
        print(
            f"| {job} | {results['ours'].text()} | {rival} | {results['theirs'].text()} | "
            f"{'> ' if results['theirs'].over else ''}{ratios[0]:.2f} | {ratios[1]:.2f} | {equal} |",
            flush=True,
        )
        for out in outs.values():
            shutil.rmtree(out, ignore_errors=True)

    def alone(self, job: str, ours: Sequence[str]) -> None:
        """A line without a rival."""
        result = Result()
        for _ in range(self.rounds):
            shutil.rmtree(self.folder / "out_ours", ignore_errors=True)
            command = [part.replace("{out}", str(self.folder / "out_ours")) for part in self._ours(ours)]
            seconds, mib, _, _ = run(command, self.limit)
            result.seconds.append(seconds)
            result.mib = max(result.mib, mib)
        print(f"| {job} | {result.text()} | | | | | |", flush=True)

    def _ours(self, arguments: Sequence[str]) -> list[str]:
        return [str(Path(sys.executable).with_name("msmigrate")), "weights", *arguments]

    def _theirs(self, job: str, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, str(HERE / "weights_rivals.py"), job, *arguments]


def tensors_by_place(directory: Path) -> dict[tuple[str, str], bytes]:
    """Digest-sized contents of every tensor, by the rank folder it is in and its name."""
    import hashlib

    found = {}
    for path in sorted(directory.rglob("*.safetensors")):
        place = path.parent.name if path.parent != directory else ""
        for entry in read_header(path)[0]:
            shape = ",".join(map(str, entry.shape))
            found[place, entry.name] = hashlib.sha256(f"{entry.dtype} {shape}".encode() + read_bytes(entry)).digest()
    return found


def same_tensors(ours: Path, theirs: Path, direct: Path | None = None) -> str:
    """Whether two directories hold the same tensors in the same rank folders, whatever their files are called.

    `direct` is what ours makes from the original in one step: if outputs differ, it says whose is right.
    """
    left, right = tensors_by_place(ours), tensors_by_place(theirs)
    if left == right:
        return "equal"
    wrong = sum(left[key] != right.get(key) for key in left)
    if direct is None:
        return f"DIFFER in {wrong} of {len(left)} tensors"
    whose = "ours" if left == tensors_by_place(direct) else "neither"
    return f"{wrong} of {len(left)} tensors differ; cut from the original: {whose}"


def same_ckpts(ours: Path, theirs: Path) -> str:
    """Whether the `.ckpt` files of two directories, taken in order of their folders, hold the same tensors."""
    from mappings.formats.mindspore_ckpt_reader import read_ckpt

    contents: list[list[dict[str, object]]] = [[], []]
    for side, directory in zip(contents, (ours, theirs), strict=True):
        for path in sorted(path for path in directory.rglob("*.ckpt") if path.parent.name != "strategy"):
            data = path.read_bytes()
            side.append(
                {
                    t.name: (t.dtype, t.shape, b"".join(data[a : a + n] for a, n in t.spans))
                    for t in read_ckpt(path).tensors
                }
            )
    return "equal" if contents[0] == contents[1] and contents[0] else "DIFFER"


def prepared(source: Path, folder: Path) -> dict[str, Path]:
    """What the rivals need: full MindSpore weights, ranks and strategies of two layouts; all made by ours."""
    paths = {}
    ranks = ["--to", "strategy", "--tp"]
    for name, options in {
        "full": ["--to", "mindspore"],
        "tp4dp2": [*ranks, "4", "--dp", "2"],
        "tp4": [*ranks, "4"],
        "tp2": [*ranks, "2"],
        "tp4_ckpt": [*ranks, "4", "--as-ckpt"],
    }.items():
        paths[name] = folder / name
        command = [str(Path(sys.executable).with_name("msmigrate")), "weights", "convert", str(source)]
        run([*command, "-o", str(paths[name]), *options], 3600)
    return paths


def strategy(path: Path) -> str:
    """The strategy file of the first rank, which is that of all."""
    return str(path / "strategy" / "ckpt_strategy_rank_0.ckpt")


def dense(table: Table, source: Path, paths: dict[str, Path]) -> None:
    """Qwen3-0.6B in BF16."""
    given = str(source)
    sliced = ["convert", given, "-o", "{out}", "--to", "strategy", "--tp", "4", "--dp", "2"]
    table.compare("0.6B: slice to 8 ranks", sliced, "plain_copy", [given, "{out}"], None)
    full = str(paths["full"])
    table.compare(
        "0.6B: slice to 8 ranks", sliced, "load_distributed", [full, strategy(paths["tp4dp2"]), "{out}"], same_tensors
    )
    join = ["convert", str(paths["tp4dp2"]), "-o", "{out}", "--to", "mindspore"]
    table.compare(
        "0.6B: join 8 ranks", join, "unify", [str(paths["tp4dp2"]), strategy(paths["tp4dp2"]), "{out}"], same_tensors
    )
    turn = ["convert", str(paths["tp4"]), "-o", "{out}", "--to", "strategy", "--tp", "2"]
    table.compare(
        "0.6B: tp4 to tp2",
        turn,
        "transform",
        [str(paths["tp4"]), strategy(paths["tp4"]), strategy(paths["tp2"]), "{out}", "safetensors"],
        lambda ours, theirs: same_tensors(ours, theirs, paths["tp2"]),
    )
    table.compare(
        "0.6B: tp4 to tp2, .ckpt",
        ["convert", str(paths["tp4_ckpt"]), "-o", "{out}", "--to", "strategy", "--tp", "2", "--as-ckpt"],
        "transform",
        [str(paths["tp4_ckpt"]), strategy(paths["tp4"]), strategy(paths["tp2"]), "{out}", "ckpt"],
        same_ckpts,
    )
    table.compare("0.6B: tp4 to tp2", turn, "plain_copy", [given, "{out}"], None)
    (part,) = paths["full"].glob("part*.safetensors")
    as_ckpt = ["convert", full, "-o", "{out}", "--to", "ckpt"]
    table.compare("0.6B: to .ckpt", as_ckpt, "to_ckpt", [str(part), "{out}"], same_ckpts)
    again = ["export", given, "-o", "{out}"]
    table.compare("0.6B: Hugging Face to Hugging Face", again, "torch_copy", [given, "{out}"], same_tensors)


def experts(table: Table, source: Path, paths: dict[str, Path]) -> None:
    """Over 20,000 tensors."""
    given = str(source)
    sliced = ["convert", given, "-o", "{out}", "--to", "strategy", "--tp", "4", "--dp", "2"]
    table.compare("experts: slice to 8 ranks", sliced, "plain_copy", [given, "{out}"], None)
    rival = [str(paths["full"]), strategy(paths["tp4dp2"]), "{out}"]
    table.compare("experts: slice to 8 ranks", sliced, "load_distributed", rival, same_tensors)
    table.compare(
        "experts: Hugging Face to Hugging Face",
        ["export", given, "-o", "{out}"],
        "torch_copy",
        [given, "{out}"],
        same_tensors,
    )
    table.alone("experts: fused by expert, for MindSpore Transformers", [*sliced[:6], "--spelling", "mindformers"])


def plans(table: Table, folder: Path) -> None:
    """Planning alone, on sparse files: it must be linear in the number of tensors."""
    for layers in (12, 50, 260):
        config = {**MANY_EXPERTS, "num_hidden_layers": layers}
        source = make(folder / f"layers{layers}", config, sparse=True)
        count = layers * (128 * 3 + 9) + 3
        table.alone(f"plan of {count:,} tensors", ["convert", str(source), "-o", "{out}", "--tp", "2", "--dry-run"])
    source = make(folder / "deepseek", DEEPSEEK_671B, sparse=True, shard=8 << 30)
    wide = ["--tp", "8", "--ep", "32", "--dp", "32", "--dry-run"]
    table.alone("plan of 671B to tp8 ep32", ["convert", str(source), "-o", "{out}", *wide])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a job is stopped")
    parser.add_argument("--only", choices=("dense", "experts", "plan"))
    parser.add_argument("--folder", type=Path, help="where to work; needs 10 GB")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        table = Table(folder, options.rounds, options.limit)
        for job, config in (("dense", QWEN3_06B), ("experts", MANY_EXPERTS)):
            if options.only in (None, job):
                source = make(folder / job, config)
                {"dense": dense, "experts": experts}[job](table, source, prepared(source, folder / f"{job}_made"))
                shutil.rmtree(folder / f"{job}_made")
        if options.only in (None, "plan"):
            plans(table, folder)


if __name__ == "__main__":
    main()
