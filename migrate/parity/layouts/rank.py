"""One rank of the candidate: `python -m migrate.parity.layouts.rank JOB OUT LAYOUT`, under msrun.

Each rank writes a capture of its own pieces into OUT/rank<N>; nothing is judged here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mappings.cutting import cut
from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity import update_mindspore
from migrate.parity.capture_mindspore import load, record
from migrate.parity.job import MASKED, Job
from migrate.parity.layouts.joining import join, micro_batches, own_rows
from migrate.parity.layouts.request import Request
from migrate.parity.modules import CHOICE, LOGITS
from migrate.parity.recording import Recorder
from migrate.parity.updates import UPDATES, gradient

POSITIONS = "positions"
"""Stage of a rank's capture with `positions` and `rows`: which part of the batch its activations are of."""


def main(job_path: Path, out: Path, layout: str) -> None:
    """Computes this rank's part of what the job asks for.

    Raises:
        UserError: the model cannot be built or loaded in this layout.
    """
    request = Request.read(layout)
    if (mesh := join(request)) is None:
        return
    import mindspore

    job = Job.read(job_path)
    folder = out / f"rank{mesh.rank}"
    folder.mkdir()
    writer = CaptureWriter(folder, {"mindspore": mindspore.__version__, "numpy": np.__version__})
    _Rank(job, mesh, partial(load, job, mesh, request.options), writer).run()


class _Rank:
    """The stages on one rank. Every rank goes through the same ones, since they communicate."""

    def __init__(self, job: Job, mesh: Any, make: Callable[[], Any], writer: CaptureWriter) -> None:
        self.job, self.mesh, self.make, self.writer = job, mesh, make, writer
        self.model = make()
        # By name, before a trainer that divides the parameters (ZeRO 3) puts cells of its own around the layers.
        self.cells = self.model.modules()
        batch = job.batch()
        self.rows = own_rows(len(batch["input_ids"]), mesh)
        self.micro_batches = micro_batches(batch, self.rows)
        self.batch = {name: np.concatenate([one[name] for one in self.micro_batches]) for name in self.micro_batches[0]}

    def run(self) -> None:
        """Captures the wanted stages. An exception ends the rank, and so the launch: the others wait for it."""
        stages = self.job.stages
        if "W" in stages:
            with self.stage("W") as tensors:
                tensors.update({one.name: one.asnumpy().copy() for one in self.model.get_parameters()})
                if self.mesh.layout.zero == 3:
                    tensors.update(update_mindspore.weights_of(self.trainer))
        if "F" in stages:
            with self.stage(POSITIONS) as tensors:
                tensors.update(rows=self.rows, positions=self.positions())
            with self.stage("F") as tensors:
                self.forward(tensors)
        if "L" in stages or "G" in stages:
            result, gradients = self.step()
            with self.stage("L") as tensors:
                tensors["loss"] = np.array([result.loss], np.float32)
                tensors["valid_labels"] = np.array([result.tokens], np.float32)
            if "G" in stages:
                with self.stage("G") as tensors:
                    tensors.update(gradients)
        if "U" in stages:
            with self.stage("U") as tensors:
                self.update(tensors)

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, np.ndarray]]:
        """A mapping to fill, as `CaptureWriter.stage`; but the rank ends if that raises, for the others would wait."""
        with self.writer.stage(name) as tensors:
            yield tensors
        if name in self.writer.body["errors"]:
            raise RuntimeError(f"stage {name}: {self.writer.body['errors'][name]}")

    def positions(self) -> np.ndarray:
        """Where this rank's part of every sequence is."""
        length = self.batch["input_ids"].shape[1]
        if self.mesh.layout.cp == 1:
            return np.arange(length)
        return np.asarray(self.model.body.context.positions(length).asnumpy(), np.int64)

    @cached_property
    def trainer(self) -> Any:
        """The runner's, as a run of this layout has it. It leaves the weights as they are: its rate is 0."""
        from ms_models.train.config import OptimizerConfig
        from ms_models.train.step import Trainer

        settings = UPDATES
        config = OptimizerConfig(
            lr=settings.lr, betas=settings.betas, eps=settings.eps, weight_decay=settings.weight_decay,
            clip_norm=settings.clip_norm,
        )  # fmt: skip
        counts = {"count_valid": self.model.count_valid} if self.job.task == MASKED else {}
        return Trainer(self.model, self.mesh, config, jit=False, **counts)

    def forward(self, tensors: dict[str, np.ndarray]) -> None:
        """Outputs of this stage's modules, and on the last one the logits of this rank's positions."""
        cells = self.cells
        recorder = Recorder(lambda value: value.asnumpy().copy(), tensors)
        # A stage builds its own layers only; tables that the last stage shares with the first are not looked up there.
        handles = record(cells, [name for name in self.job.modules if name.removesuffix(CHOICE) in cells], recorder)
        head = self.model.head
        self.model.head = partial(self._logits, head, tensors)
        try:
            self.trainer.evaluate([self.batch])
        finally:
            self.model.head = head
            for handle in handles:
                handle.remove()

    def _logits(self, head: Any, tensors: dict[str, np.ndarray], x: Any) -> Any:
        logits = head(x)
        whole = self.model.gather_vocab(logits)
        tensors[LOGITS] = whole.asnumpy()[..., : self.model.vocab].copy()
        return logits

    def step(self) -> tuple[Any, dict[str, np.ndarray]]:
        """A step of the trainer at a learning rate of 0, one row per micro-batch: result and gradients.

        The gradients are those that the optimizer would get: summed over replicas, divided by the valid positions of
        the global batch.
        """
        trainer = self.trainer
        reduce, reduced = trainer.gradients.reduce, []

        def kept() -> Any:
            reduced.append(reduce())
            return reduced[0]

        trainer.gradients.reduce = kept
        result = trainer.step(self.micro_batches, 0.0)
        if result.outcome != "updated":
            raise RuntimeError(f"the step was not taken: {result.outcome}")
        found = trainer.sharding.whole(reduced[0])
        return result, {name: value for name, value in found.items() if name not in self.job.idle}

    def update(self, tensors: dict[str, np.ndarray]) -> None:
        """Stage U with this rank's pieces of the injected gradients; see `update_mindspore.record`."""
        # A second trainer cannot take the parameters of one that has divided them.
        model = self.make() if self.mesh.layout.zero == 3 else self.model
        update_mindspore.record(model, tensors, self.job.idle, self.injected)

    def injected(self, name: str, step: int, micro_batch: int) -> np.ndarray:
        """This rank's piece of a gradient, times its share.

        The ranks whose gradients belong to one sum get unequal shares: a sum that is not taken, or an average in its
        place, is another gradient.
        """
        held, layout, here = self.model.held[name], self.mesh.layout, self.mesh.coordinates
        replicas, place = layout.dp, here["dp"]
        if held.is_expert:
            replicas, place = layout.dp // layout.ep, here["dp"] // layout.ep
        number, count = place * layout.cp + here["cp"], replicas * layout.cp
        if held.is_at_both_ends:
            number, count = 2 * number + (here["pp"] > 0), 2 * count
        share = 2 * (number + 1) / (count * (count + 1))
        whole = gradient(name, held.whole.shape, step, micro_batch)
        return (cut(whole, held.whole, held.arrangement) * share).astype(np.float32)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    except UserError as error:
        sys.exit(f"UserError: {error}")
