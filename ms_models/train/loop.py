"""The training loop of one rank."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from ms_models.compat.device import synchronize
from ms_models.data.loader import TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train.bad_steps import BadSteps
from ms_models.train.batches import positions_of_last, prepared_step
from ms_models.train.checkpoints import random_state
from ms_models.train.checkpoints.checkpoints import Checkpoints
from ms_models.train.checkpoints.saver import Saved
from ms_models.train.checkpoints.states import Stateful
from ms_models.train.config import RunConfig
from ms_models.train.errors import RunError
from ms_models.train.guard import Guard
from ms_models.train.host_thread import wait_quietly
from ms_models.train.phases import enter
from ms_models.train.schedule import learning_rate
from ms_models.train.services.chosen import Services, services_of
from ms_models.train.services.meter import Meter
from ms_models.train.services.progress import STOPPED
from ms_models.train.services.useful_flops import step_flops
from ms_models.train.step import Trainer
from ms_models.train.subject import build
from ms_models.train.validation import Validation


def run(config: RunConfig, *, resume: Path | None = None, stop_after: int | None = None) -> None:
    """Trains from the start, or from a checkpoint, to the last step; every rank calls it.

    Args:
        config: checked configuration.
        resume: checkpoint directory to go on from.
        stop_after: save and return after this step.

    Raises:
        UserError: model, data or checkpoint do not fit.
        RunError: a step went wrong, and the policy of `guard` is to end the run.
    """
    wait_quietly()
    mesh = Mesh.from_environment(config.layout)
    loop = Loop(config, mesh, resume)
    with services_of(config, mesh, loop.step) as services:
        loop.run(min(config.train.steps, stop_after or config.train.steps), services)


class Loop:
    """State of a run on one rank."""

    def __init__(self, config: RunConfig, mesh: Mesh, resume: Path | None) -> None:
        self.config, self.mesh = config, mesh
        self.step = self.tokens = 0
        random_state.seed_all(config.train.seed, mesh.rank)
        self.subject = build(config, mesh, resume)
        self.trainer = Trainer(
            self.subject.model,
            mesh,
            config.optimizer,
            jit=config.train.jit,
            count_valid=self.subject.count_valid,
            precision=config.precision,
            guard=config.guard,
        )
        self.guard = Guard(config.guard)
        self.loader: Any = self.subject.loader or TrainingLoader(
            config.data_parts,
            prefetch=config.data.prefetch,
            seed=config.train.seed,
            micro_batch_size=config.train.micro_batch_size,
            accumulation=config.train.accumulation,
            dp=config.layout.dp,
            dp_rank=mesh.coordinates["dp"],
        )
        states: dict[str, Stateful] = {"data": self.loader, "guard": self.guard, **self.trainer.states()}
        self.checkpoints = Checkpoints(config, self.trainer, states)
        if resume is not None:
            training = self.checkpoints.restore(resume)
            self.step, self.tokens = training["step"], training["tokens"]
        self.saved_step = self.step
        self.bad_steps = BadSteps(Path(config.output.directory), config.guard.keep_batches, self.trainer)
        self.validation = Validation(config, mesh, self.subject, self.trainer.evaluate)
        self.meter = Meter(config, mesh, step_flops(config, self.loader.data.seq_length), self.step)

    def run(self, last: int, services: Services) -> None:
        """Steps up to and including `last`, with evaluations and checkpoints between and a checkpoint at the end."""
        config = self.config
        services.tell(self._headline())
        if self.validation.refusal is not None:
            services.tell(self.validation.refusal)
        try:
            while self.step < last:
                self._one_step(services)
                self._saved(self.checkpoints.poll(), services)
                if self._is_due(config.train.eval_every, config.train.steps):
                    self._evaluate(services)
                if self._is_due(config.checkpoint.every, last):
                    self._save(services)
        except RunError:
            # Every rank is here, so that the checkpoint that is being written can be completed.
            try:
                self._saved(self.checkpoints.finish(), services)
            except UserError as failure:
                services.tell(str(failure))
            raise
        if self.saved_step != self.step:
            self._save(services)
        self._saved(self.checkpoints.finish(), services)
        if self.step < config.train.steps:
            services.tell(f"{STOPPED} {self.step} of {config.train.steps}; go on with --resume")

    def _one_step(self, services: Services) -> None:
        config, start = self.config, time.perf_counter()
        services.before_step(self.step + 1)
        batches = prepared_step(self.subject, self.loader)
        self.step += 1
        lr = learning_rate(self.step, config.train.steps, config.optimizer, config.schedule)
        result = self.trainer.step(batches, lr)
        synchronize()
        elapsed = time.perf_counter() - start
        evidence = self.bad_steps.take(self.step, result, batches, positions_of_last(self.loader))
        if line := self.guard.judge(self.step, result, self._batch(), evidence):
            services.tell(line)
        self.tokens += result.tokens if result.is_updated else 0
        record = self.meter.complete(
            {
                "step": self.step,
                **result.record(),
                "lr": lr,
                "tokens": self.tokens,
                "tokens_per_s": result.tokens / elapsed,
                "step_time_s": elapsed,
                "data_wait": self.loader.wait_s / elapsed,
            }
        )
        services.after_step(record)

    def _batch(self) -> str:
        begin = self.loader.position - self.loader.global_batch
        end, seed = self.loader.position - 1, self.config.train.seed
        return f"positions {begin}..{end} of the stream with train.seed {seed}"

    def _evaluate(self, services: Services) -> None:
        enter("evaluate")
        services.after_evaluation(self.validation.record(self.step))

    def _save(self, services: Services) -> None:
        enter("save")
        self._saved(self.checkpoints.save(self.step, self.tokens), services)
        self.saved_step = self.step

    def _saved(self, checkpoints: Sequence[Saved], services: Services) -> None:
        for saved in checkpoints:
            services.after_save(saved.step, saved.directory, saved.record())

    def _is_due(self, every: int, last: int) -> bool:
        return every > 0 and (self.step % every == 0 or self.step == last)

    def _headline(self) -> str:
        config, layout = self.config, self.config.layout
        start = f"resuming after step {self.step}" if self.step else "starting"
        processes = "1 process" if layout.world_size == 1 else f"{layout.world_size} processes ({layout})"
        batch = f"global batch {config.global_batch} x {self.loader.data.seq_length} tokens"
        compiles = "; the first step compiles" if config.train.jit else ""
        how = self.trainer.describe(config.train.accumulation)
        return f"{start}: {processes}, {batch}, {config.train.steps} steps, {how}{compiles}"
