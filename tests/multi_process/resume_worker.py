"""Runs of a few steps that are saved, resumed in the same layout, and resumed in another one.

Argument: folder with a configuration for each case. Every rank reports its trajectories; nothing is judged here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import report
from resume_cases import CASES, FAULTS, PAIRS, SAVED, STEPS
from trajectory import record

from ms_models.data.loader import TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train import subject
from ms_models.train.checkpoints import random_state
from ms_models.train.checkpoints.run_directory import step_name
from ms_models.train.config import RunConfig, load
from ms_models.train.host_thread import wait_quietly
from ms_models.train.loop import Loop
from ms_models.train.optimizer import AdamW
from ms_models.train.services.chosen import Services

ALIVE: list[Loop] = []
"""Compiled functions are remembered by the address of their objects."""


def loop_of(config: RunConfig, output: Path, resume: Path | None = None) -> Loop:
    """A run that writes to `output`."""
    output.mkdir(parents=True, exist_ok=True)
    config = replace(config, output=replace(config.output, directory=str(output)))
    if resume is not None:
        config = replace(config, checkpoint=replace(config.checkpoint, resume=True, reshard=True))
    loop = Loop(config, Mesh.from_environment(config.layout), resume)
    ALIVE.append(loop)
    return loop


def trajectory(loop: Loop) -> list[dict[str, Any]]:
    """The run to its end."""
    records = record(loop.trainer)
    loop.run(STEPS, Services([]))
    return records


@contextmanager
def planted(fault: str) -> Iterator[None]:
    """A resume that leaves something out."""
    owner, name, other = {
        "random": (random_state, "restore", lambda state: None),
        "moments": (AdamW, "load_state", lambda self, state, step, where: setattr(self, "step", step)),
        "position": (TrainingLoader, "load_state", lambda self, state: None),
        "weights": (subject, "build", lambda config, mesh, resume: build(config, mesh, None)),
    }[fault]
    build, before = subject.build, getattr(owner, name)
    from ms_models.train import loop as module

    setattr(owner, name, other)
    if fault == "weights":
        module.build = other  # type: ignore[assignment]
    try:
        yield
    finally:
        setattr(owner, name, before)
        module.build = build


def main(folder: Path) -> dict[str, Any]:
    """Everything of a launch."""
    wait_quietly()
    ranks = int(os.environ["MS_WORKER_NUM"])
    configs = {name: load(folder / f"{name}.yaml") for name in CASES[ranks]}
    result: dict[str, Any] = {"whole": {}, "resumed": {}, "faults": {}, "pairs": {}}
    for name, config in configs.items():
        result["whole"][name] = trajectory(loop_of(config, folder / name))
        start = folder / name / step_name(SAVED)
        result["resumed"][name] = trajectory(loop_of(config, folder / f"{name}-resumed", start))
    first = next(iter(configs))
    for fault in FAULTS:
        with planted(fault):
            loop = loop_of(configs[first], folder / f"without-{fault}", folder / first / step_name(SAVED))
        result["faults"][fault] = trajectory(loop)
    for before, now in PAIRS[ranks]:
        pair = f"{before}-as-{now}"
        loop = loop_of(configs[now], folder / pair, folder / before / step_name(SAVED))
        loop.checkpoints.save(loop.step, loop.tokens)
        loop.checkpoints.finish()
        result["pairs"][pair] = trajectory(loop)
    return result


if __name__ == "__main__":
    report(lambda: main(Path(sys.argv[1])))
