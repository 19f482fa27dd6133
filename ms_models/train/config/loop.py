"""Section `train`: the loop."""

from __future__ import annotations

from dataclasses import dataclass

from ms_models.train.config.bounds import number


@dataclass(frozen=True)
class TrainConfig:
    """The loop."""

    steps: int = number(least=1)
    """Optimizer steps of the whole run; the schedule ends there."""
    micro_batch_size: int = number(1, least=1)
    """Sequences per forward pass of one rank."""
    accumulation: int = number(1, least=1)
    """Forward passes of one rank per step. Global batch: micro_batch_size x accumulation x dp."""
    seed: int = number(0, least=0)
    """Seed of the order of the data and of every random generator."""
    log_every: int = number(1, least=1)
    """Steps between lines on the terminal; metrics.jsonl has every step."""
    eval_every: int = number(0, least=0)
    """Steps between evaluations; 0 evaluates never."""
    eval_sequences: int | None = number(None, least=1)
    """Sequences of the validation split per evaluation; None takes all."""
    jit: bool = True
    """Compile forward, backward and update; false runs them operator by operator."""
    threads: int | None = number(None, least=1)
    """Threads per process (OMP_NUM_THREADS); None shares the cores evenly."""
