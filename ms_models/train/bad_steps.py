"""`BadSteps`: keeps the batches of steps that were left out, with what went wrong in them, for a person to look at."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from mindspore import Tensor

from ms_models.data.loader import Batch
from ms_models.train.attribution import attribute
from ms_models.train.gradients import agree
from ms_models.train.step import StepResult, Trainer

NAME = "bad_steps"
REPORT = "report.json"
LAYER = re.compile(r"\.(\d+)\.")
SHOWN = 3
HISTORY = 20
"""Updates before the step whose losses and gradient norms are kept beside it."""


class BadSteps:
    """Writes `<run>/bad_steps/step_NNNNNNNN`: `rank_R.npz` and `rank_R.json` of every rank, and `report.json` of all.

    Args:
        run: directory of the run, which all ranks see.
        keep: how many steps are kept in all; directories that are there count.
        trainer: of this rank.
    """

    def __init__(self, run: Path, keep: int, trainer: Trainer) -> None:
        self.directory, self.keep, self.trainer = run / NAME, keep, trainer
        self.count = len(list(self.directory.glob("step_*"))) if self.directory.is_dir() else 0

    def take(self, step: int, result: StepResult, batches: Sequence[Batch], positions: np.ndarray) -> str:
        """Keeps a step that was left out, right after it; every rank calls it.

        Args:
            step: its number.
            result: what became of it.
            batches: its micro-batches.
            positions: `[accumulation, micro_batch_size]`, where their rows are in the training stream.

        Returns:
            What was found out and where it is, in a sentence; empty where nothing is kept or to be told.
        """
        if result.outcome not in ("non_finite", "spike") or self.count >= self.keep:
            return ""
        self.count += 1
        rank, folder = self.trainer.mesh.rank, self.directory / f"step_{step:08d}"
        inputs = [tuple(Tensor(batch[n]) for n in ("input_ids", "attention_mask", "labels")) for batch in batches]
        found = attribute(self.trainer, inputs, result.loss_scale)
        facts = {
            "step": step,
            "rank": rank,
            "coordinates": self.trainer.mesh.coordinates,
            "outcome": result.outcome,
            "reason": result.reason,
            "loss": repr(result.loss),
            "grad_norm": repr(result.grad_norm),
            "loss_scale": result.loss_scale,
            "losses_before": list(self.trainer.spikes.losses)[-HISTORY:],
            "grad_norms_before": list(self.trainer.spikes.norms)[-HISTORY:],
            **asdict(found),
        }
        failure = ""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            arrays = {name: np.stack([batch[name] for batch in batches]) for name in batches[0]}
            np.savez(folder / f"rank_{rank}.npz", positions=positions, **arrays)
            _write(folder / f"rank_{rank}.json", {**facts, "losses": [repr(loss) for loss in found.losses]})
        except OSError as error:
            failure = f"{error.strerror or error} ({error.filename})"
        if agree(bool(failure), self.trainer.mesh):
            return f"Its batch could not be kept in {folder}: {failure or 'another rank failed'}"
        ranks = [
            json.loads((folder / f"rank_{n}.json").read_text()) for n in range(self.trainer.mesh.layout.world_size)
        ]
        report = self._merged(ranks)
        kept = f"kept in {folder}"
        if rank == 0:
            try:
                _write(folder / REPORT, {key: facts[key] for key in facts if key not in asdict(found)} | report)
            except OSError as error:  # the files of the ranks have it all
                kept += f", but not {REPORT}: {error.strerror or error}"
        return f"{_sentence(report, result)}; {kept}"

    def _merged(self, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """What all ranks found: gradients in the order of the model, the layer that comes first."""
        gradients: dict[str, dict[str, Any]] = {}
        for one in ranks:
            for name, entry in one["gradients"].items():
                whole = gradients.setdefault(name, {"bad": 0, "size": 0, "norm": 0.0})
                whole["bad"] += entry["bad"]
                whole["size"] += entry["size"]
                whole["norm"] = float(np.hypot(whole["norm"], entry["norm"]))
        order = sorted(gradients, key=self._depth)
        seen = [one for one in ranks if one["activation"] is not None]
        # A layer that made them comes before one that was given them.
        seen.sort(
            key=lambda one: (
                not one["activation"]["is_origin"],
                one["activation"]["micro_batch"],
                one["coordinates"]["pp"],
                one["rank"],
            )
        )
        first = {"rank": seen[0]["rank"], **seen[0]["activation"]} if seen else None
        weights = {name: bad for one in ranks for name, bad in one["weights"].items()}
        return {"gradients": {name: gradients[name] for name in order}, "weights": weights, "activation": first}

    def _depth(self, name: str) -> tuple[float, bool]:
        """Where a parameter is on the way through the model: before, in and behind the numbered layers."""
        number = LAYER.search(name)
        if number is not None:
            return int(number[1]), False
        held = self.trainer.model.held.get(name)
        kind = None if held is None else held.layer_class
        return -1 if kind == "embedding" else float("inf"), kind == "lm_head"


def _sentence(report: Mapping[str, Any], result: StepResult) -> str:
    gradients, activation, weights = report["gradients"], report["activation"], report["weights"]
    if weights:
        return f"Weights are not finite: {_some(list(weights))}"
    if activation is not None:
        return (
            f"The first layer that is not finite is {activation['layer']} on rank {activation['rank']}, micro-batch "
            f"{activation['micro_batch']} ({activation['bad']} of {activation['size']} elements)"
        )
    bad = [name for name, entry in gradients.items() if entry["bad"]]
    if bad:
        # The backward pass comes from the end of the model.
        return (
            f"Activations are finite; of the gradients, the first that is not is that of {bad[-1]} ({len(bad)} in all)"
        )
    largest = sorted(gradients, key=lambda name: -gradients[name]["norm"])[:SHOWN]
    parts = ", ".join(f"{name} {gradients[name]['norm']:.3g}" for name in largest)
    return f"Gradient norm {result.grad_norm:.4g}, largest in {parts}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {more} more" if more > 0 else "")


def _write(path: Path, values: Mapping[str, Any]) -> None:
    staging = path.with_name(f"{path.name}.tmp")
    with staging.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    staging.replace(path)
