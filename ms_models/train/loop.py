"""The training loop of one rank."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ms_models.auto import AutoModelForCausalLM
from ms_models.compat.device import synchronize
from ms_models.data.loader import TrainingLoader, validation_batches
from ms_models.parallel.mesh import Mesh
from ms_models.train import checkpoint, random_state, status
from ms_models.train.config import RunConfig
from ms_models.train.errors import RunError
from ms_models.train.host_thread import wait_quietly
from ms_models.train.metrics import MetricsFile
from ms_models.train.run_directory import LOGS, METRICS, PROGRESS, read_manifest, remove_leftovers
from ms_models.train.schedule import learning_rate
from ms_models.train.step import StepResult, Trainer


def run(config: RunConfig, *, resume: Path | None = None, stop_after: int | None = None) -> None:
    """Trains from the start, or from a checkpoint, to the last step; every rank calls it.

    Args:
        config: checked configuration.
        resume: checkpoint directory to go on from.
        stop_after: save and return after this step.

    Raises:
        UserError: model, data or checkpoint do not fit.
        RunError: loss or gradient norm not finite, under the policy `stop` or too often under `skip`.
    """
    wait_quietly()
    mesh = Mesh.from_environment(config.layout)
    with ExitStack() as stack:
        loop = Loop(config, mesh, resume, stack)
        loop.run(min(config.train.steps, stop_after or config.train.steps))


class Loop:
    """State of a run on one rank."""

    def __init__(self, config: RunConfig, mesh: Mesh, resume: Path | None, stack: ExitStack) -> None:
        self.config, self.mesh = config, mesh
        self.directory = Path(config.output.directory)
        self.logs = self.directory / LOGS
        self.step = self.tokens = self.skips = 0
        random_state.seed_all(config.train.seed, mesh.rank)
        model = AutoModelForCausalLM.from_pretrained(resume or config.model.path, mesh, config.parallel)
        model.set_train()
        self.trainer = Trainer(model, mesh, config.optimizer, jit=config.train.jit)
        position = 0
        if resume is not None:
            manifest = read_manifest(resume)
            checkpoint.load(resume, manifest, self.trainer)
            training = manifest.training
            self.step, self.tokens, self.skips = training["step"], training["tokens"], training["skips"]
            position = training["data"]["position"]
        self.saved_step = self.step
        coordinates = mesh.coordinates
        self.loader = TrainingLoader(
            config.data_directory,
            seed=config.train.seed,
            micro_batch_size=config.train.micro_batch_size,
            accumulation=config.train.accumulation,
            dp=config.layout.dp,
            dp_rank=coordinates["dp"],
            position=position,
        )
        self.is_first = mesh.rank == 0
        self.metrics: MetricsFile | None = None
        if self.is_first:
            remove_leftovers(self.directory)
            self.metrics = stack.enter_context(MetricsFile(self.directory / METRICS, resume_step=self.step))
            self.progress = stack.enter_context((self.logs / PROGRESS).open("a", encoding="utf-8"))

    def run(self, last: int) -> None:
        """Steps up to and including `last`, with evaluations and checkpoints between and a checkpoint at the end."""
        config = self.config
        self._tell(self._headline())
        while self.step < last:
            self._one_step()
            if self._is_due(config.train.eval_every, config.train.steps):
                self._evaluate()
            if self._is_due(config.checkpoint.every, last):
                self._save()
        if self.saved_step != self.step:
            self._save()
        if self.step < config.train.steps:
            self._tell(f"stopped after step {self.step} of {config.train.steps}; go on with --resume")

    def _one_step(self) -> None:
        config, start = self.config, time.perf_counter()
        batches = self.loader.next_step()
        self.step += 1
        lr = learning_rate(self.step, config.train.steps, config.optimizer, config.schedule)
        result = self.trainer.step(batches, lr)
        synchronize()
        elapsed = time.perf_counter() - start
        self._judge(result)
        self.tokens += result.tokens if result.is_finite else 0
        self._record(
            step=self.step,
            loss=result.loss if result.is_finite else None,
            grad_norm=result.grad_norm if result.is_finite else None,
            lr=lr,
            tokens=self.tokens,
            tokens_per_s=result.tokens / elapsed,
            step_time_s=elapsed,
            data_wait=self.loader.wait_s / elapsed,
        )
        if self._is_due(config.train.log_every, config.train.steps):
            self._tell(
                f"step {self.step:>{len(str(config.train.steps))}}/{config.train.steps}  loss {result.loss:.4f}  "
                f"grad norm {result.grad_norm:.3f}  lr {lr:.2e}  {result.tokens / elapsed:,.0f} tokens/s"
            )
        os.utime(self.logs / status.file_name(self.mesh.rank))

    def _judge(self, result: StepResult) -> None:
        if result.is_finite:
            self.skips = 0
            return
        train = self.config.train
        self.skips += 1
        what = f"step {self.step}: loss {result.loss}, gradient norm {result.grad_norm}; nothing was updated"
        if train.non_finite == "stop" or self.skips >= train.max_skips:
            begin = self.loader.position - self.loader.global_batch
            raise RunError(
                f"{what}. The batch is positions {begin}..{self.loader.position - 1} of the stream with train.seed "
                f"{train.seed}; lower optimizer.lr, look at the data, or set train.non_finite to skip"
            )
        self._tell(f"{what}, step skipped ({self.skips} in a row, {train.max_skips} end the run)")

    def _evaluate(self) -> None:
        batches = validation_batches(
            self.config.data_directory,
            micro_batch_size=self.config.train.micro_batch_size,
            dp=self.config.layout.dp,
            dp_rank=self.mesh.coordinates["dp"],
            limit=self.config.train.eval_sequences,
        )
        loss, tokens = self.trainer.evaluate(batches)
        self._record(step=self.step, eval_loss=loss, eval_tokens=tokens)
        self._tell(f"step {self.step}: validation loss {loss:.4f} over {tokens:,} tokens")

    def _save(self) -> None:
        training = {
            "tokens": self.tokens,
            "skips": self.skips,
            "data": self.loader.state(),
            "config": self.config.to_dict(),
        }
        path = checkpoint.save(self.directory, self.step, self.trainer, training, keep=self.config.checkpoint.keep)
        self.saved_step = self.step
        self._tell(f"step {self.step}: saved {path}")

    def _is_due(self, every: int, last: int) -> bool:
        return every > 0 and (self.step % every == 0 or self.step == last)

    def _headline(self) -> str:
        config, layout = self.config, self.config.layout
        start = f"resuming after step {self.step}" if self.step else "starting"
        processes = "1 process" if layout.world_size == 1 else f"{layout.world_size} processes ({layout})"
        batch = f"global batch {config.global_batch} x {self.loader.data.seq_length} tokens"
        compiles = "; the first step compiles" if config.train.jit else ""
        return f"{start}: {processes}, {batch}, {config.train.steps} steps{compiles}"

    def _record(self, **record: Any) -> None:
        if self.metrics is not None:
            self.metrics.write(**record)

    def _tell(self, line: str) -> None:
        if self.is_first:
            self.progress.write(f"{line}\n")
            self.progress.flush()
