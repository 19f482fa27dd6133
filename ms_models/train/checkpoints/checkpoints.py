"""`Checkpoints`: what the loop of a run does about its checkpoints."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ms_models.train.checkpoints import checkpoint, states
from ms_models.train.checkpoints.recovery import abandon_later
from ms_models.train.checkpoints.run_directory import point_latest, read_manifest, remove_leftovers
from ms_models.train.checkpoints.saver import Saved, Saver
from ms_models.train.checkpoints.states import Stateful
from ms_models.train.config import RunConfig
from ms_models.train.gradients import agree
from ms_models.train.step import Trainer


class Checkpoints:
    """Restores and saves a run on one rank; every rank calls the same methods in the same order.

    Args:
        config: of the run.
        trainer: model and optimizer.
        stateful: whatever else goes on where it was.
    """

    def __init__(self, config: RunConfig, trainer: Trainer, stateful: Mapping[str, Stateful]) -> None:
        self.config, self.trainer, self.stateful = config, trainer, stateful
        mesh, run = trainer.mesh, Path(config.output.directory)
        self._side = checkpoint.side_files(trainer)
        self._saver = Saver(
            run,
            mesh.rank,
            mesh.layout,
            trainer.model.place.family_name,
            config.checkpoint,
            lambda flag: agree(flag, mesh),
        )
        if mesh.rank == 0:
            remove_leftovers(run)

    def restore(self, directory: Path) -> Mapping[str, Any]:
        """Takes up the state of a checkpoint whose weights the model was loaded with.

        Returns:
            `training` of its manifest: `step`, `tokens` and the state of each stateful.

        Raises:
            UserError: a file is missing, damaged or does not fit.
        """
        manifest = read_manifest(directory)
        checkpoint.load(directory, manifest, self.trainer, self.config.train.seed)
        states.restore(self.stateful, manifest.training, str(directory))
        run = Path(self.config.output.directory)
        if self.trainer.mesh.rank == 0 and directory.absolute().parent == run.absolute():
            # Whoever chose an older one wants a restart to begin there, too.
            point_latest(run, directory.name)
            if directory.name == self.config.checkpoint.resume_from:
                abandon_later(run, manifest.training["step"])
        return manifest.training

    def save(self, step: int, tokens: int) -> list[Saved]:
        """Writes a checkpoint, or begins to; one that is still pending is waited for.

        Returns:
            What was completed meanwhile.

        Raises:
            UserError: one of them could not be written; older checkpoints are untouched.
        """
        since = time.perf_counter()
        saved = self._saver.finish()
        is_asynchronous = self.config.checkpoint.asynchronous
        training = {
            **states.capture(self.stateful),
            "step": step,
            "tokens": tokens,
            "optimizer_step": self.trainer.optimizer.step,
            "config": self.config.to_dict(),
        }
        contents = checkpoint.contents(self.trainer, self._side, copy=is_asynchronous)
        self._saver.begin(step, contents, training, since)
        return saved if is_asynchronous else saved + self._saver.finish()

    def poll(self) -> list[Saved]:
        """After each step: completes the pending save if every rank has written its files. See `save`."""
        return self._saver.poll()

    def finish(self) -> list[Saved]:
        """Waits for the pending save, if there is one. See `save`."""
        return self._saver.finish()
