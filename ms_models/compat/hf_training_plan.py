"""How long a training is: epochs, updates and batches, from the arguments and the length of the data."""

from __future__ import annotations

import math
import sys
from typing import Any

from .hf_trainer_data import has_length


class TrainingPlan:
    """How long a training is: `max_steps` updates in `epochs` passes over the data."""

    def __init__(self, trainer: Any, loader: Any) -> None:
        args = trainer.args
        every = args.gradient_accumulation_steps
        together = args.train_batch_size * every * args.world_size
        self.max_steps = args.max_steps
        if not has_length(loader) or not len(loader):
            if args.max_steps <= 0:
                raise ValueError(f"max_steps must be positive for data without a length, but is {args.max_steps}")
            self.epochs, self.updates_per_epoch = sys.maxsize, args.max_steps
            self.samples: float = args.max_steps * together
            self.batches_per_epoch = args.max_steps * every
            return
        self.batches_per_epoch = len(loader)
        self.updates_per_epoch = -(-len(loader) // every)
        if args.max_steps > 0:
            self.epochs = -(-args.max_steps // self.updates_per_epoch)
            self.samples = args.max_steps * together
        else:
            self.max_steps = math.ceil(args.num_train_epochs * self.updates_per_epoch)
            self.epochs = math.ceil(args.num_train_epochs)
            self.samples = trainer.num_examples(loader) * args.num_train_epochs

    def last_group(self, every: int) -> int:
        """Batches of the last update of an epoch."""
        return self.batches_per_epoch % every or every
