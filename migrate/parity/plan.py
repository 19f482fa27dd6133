"""`Plan`: what both sides of a comparison are asked for, and what they are expected to answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mappings.families import Family, family_for_config
from mappings.formats.hf_directory import read_config, read_tensors
from mappings.stored import recognise
from migrate.parity import updates
from migrate.parity.inputs import make_batch, unseen
from migrate.parity.job import CAUSAL, MASKED, Job
from migrate.parity.layouts.request import Request
from migrate.parity.layouts.whole_outputs import whole_outputs
from migrate.parity.modules import LOGITS, RENAMED, Expected, expect, is_encoder, memory_spelling

CUT = "modules that are cut over tensor-parallel ranks, by their outputs"


@dataclass(frozen=True)
class Plan:
    """A comparison of a Hugging Face directory."""

    family: Family
    config: Mapping[str, Any]
    expected: Expected
    batch: Mapping[str, np.ndarray]
    job: Job
    """For the PyTorch side; the other one may get another directory."""
    optional: Collection[str] = ()
    """Groups of optional tensors that the directory has."""

    @classmethod
    def make(
        cls, directory: Path, stages: Sequence[str], folder: Path, seed: int = 0, request: Request | None = None
    ) -> Plan:
        """Reads the directory's config and headers, and writes the batch.

        Args:
            directory: Hugging Face model directory.
            stages: which of W, F, L, G, U.
            folder: where the batch is stored.
            seed: of the batch.
            request: layout of the MindSpore side; one process by default.

        Raises:
            UserError: no supported model in `directory`, or it does not fit the layout.
        """
        config = read_config(directory)
        family = family_for_config(config, str(directory / "config.json"))
        entries = read_tensors(directory)
        stored = recognise(family, config, {name: entry.shape for name, entry in entries.items()}, directory)
        expected = expect(family, config, stored.optional)
        task = MASKED if is_encoder(family) else CAUSAL
        if request is None:
            batch = make_batch(config, seed, task)
        else:
            batch = make_batch(config, seed, task, rows=request.rows, parts=request.parts, segments=False)
            length = batch["input_ids"].shape[1]
            request.check(family, config, memory_spelling(family), length, task == MASKED)
            if request.layout.tp > 1:
                whole = tuple(whole_outputs(family, config, expected.modules))
                left_out = {**expected.left_out, CUT: "each rank has some of their outputs, which later ones sum up"}
                expected = replace(expected, modules=whole, left_out=left_out)
        expected = replace(expected, left_out={**expected.left_out, **unseen(config, batch["input_ids"].shape[1])})
        inputs = folder / "inputs.npz"
        np.savez(inputs, **batch)
        spare = {one.name for one in family.spelling(config, stored.spelling) if one.optional}
        in_memory = {one.name for one in family.spelling(config, memory_spelling(family)) if one.optional}
        job = Job(
            directory.absolute(),
            tuple(stages),
            inputs,
            expected.modules,
            task=task,
            idle=expected.idle,
            untrained=tuple(name for name in expected.weights if name not in {*expected.trained, *expected.idle}),
            # transformers names them as it would have put them together.
            not_loaded=(*(name for name in entries if name in spare or family.is_ignored(name, config)), *in_memory),
            kept=tuple(name for name in expected.weights if name in in_memory),
            # Of two names of a tied parameter transformers tells the one it meets first, which may be the head's.
            renamed={**RENAMED.get(family.name, {}), **family.ties(config)},
        )
        return cls(family, config, expected, batch, job, stored.optional)

    def names(self, stage: str) -> list[str]:
        """Names that both captures of a stage must hold, exactly; none for the loss."""
        trained = list(self.expected.trained)
        return {
            "W": list(self.expected.weights),
            "F": [*self.expected.modules, LOGITS],
            "L": [],
            "G": trained,
            "U": updates.names(trained),
        }[stage]
