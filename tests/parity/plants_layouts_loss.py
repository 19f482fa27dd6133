"""Faults of several ranks in what a loss is divided by, and over whom: scales and means. See `plants_layouts`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

DENSE, TIED = "llama", "qwen2"
LAST, TIED_LAST = "lm_head.weight", "model.norm.weight"
"""Nearest to the loss, without and with a tied table."""
PLANTS: dict[str, tuple[str, str, str, str]] = {
    "loss divided by the micro-batches once more over pp": (TIED, "pp=2", "G", TIED_LAST),
    "loss not divided over pp": (TIED, "pp=2", "G", TIED_LAST),
    "mean of means over micro-batches in a pipeline": (TIED, "pp=2", "G", TIED_LAST),
    "loss known to the last stage only": (TIED, "pp=2", "L", "loss"),
    "mean of means over micro-batches": (DENSE, "dp=2", "G", LAST),
    "mean of means over dp in the gradients": (DENSE, "dp=2", "G", LAST),
    "divided by the tokens of this replica": (DENSE, "dp=2", "L", "loss"),
    "loss not divided over dp": (DENSE, "dp=2,zero=2", "G", LAST),
    "loss of this rank's positions": (DENSE, "cp=2", "L", "loss"),
}


def replacements() -> dict[str, tuple[Any, str, Any]]:
    """(where, attribute, replacement) of every fault."""
    import mindspore as ms
    from mindspore import Tensor

    from ms_models.parallel.pipeline import Pipeline, _Chunk
    from ms_models.train.backward import Backward
    from ms_models.train.step import Trainer, count_valid

    through_stages, backward, passes = Pipeline.accumulate, _Chunk.backward, Backward.accumulate

    def valid(batch: Sequence[Tensor]) -> int:
        return count_valid(batch[2].asnumpy())

    def divided_again(self: Any, batches: Any, scale: Tensor) -> Any:
        return through_stages(self, batches, scale / len(batches))

    def undivided(of: Any) -> Any:
        return lambda self, batches, scale: of(self, batches, Tensor(1.0, ms.float32))

    def own_mean(self: Any, x: Any, batch: Any, seed: Tensor) -> Any:
        return backward(self, x, batch, Tensor(0.5 / valid(batch), ms.float32) if self.is_last else seed)

    def means(self: Any, batches: Any, scale: Tensor) -> Any:
        parts = 2 * len(batches)  # of two replicas
        scales = [Tensor(1 / (parts * valid(batch)), ms.float32) for batch in batches]
        return [passes(self, [batch], one)[0] for batch, one in zip(batches, scales, strict=True)]

    def replica_means(self: Any, batches: Any, scale: Tensor) -> Any:
        return passes(self, batches, Tensor(0.5 / sum(map(valid, batches)), ms.float32))

    def own_losses(self: Any, sums: Sequence[Tensor]) -> float:
        return math.fsum(float(value.asnumpy()) for value in sums)

    return {
        "loss divided by the micro-batches once more over pp": (Pipeline, "accumulate", divided_again),
        "loss not divided over pp": (Pipeline, "accumulate", undivided(through_stages)),
        "mean of means over micro-batches in a pipeline": (_Chunk, "backward", own_mean),
        "loss known to the last stage only": (Trainer, "_sum_losses", own_losses),
        "mean of means over micro-batches": (Backward, "accumulate", means),
        "mean of means over dp in the gradients": (Backward, "accumulate", replica_means),
        "divided by the tokens of this replica": (Trainer, "_sum_counts", lambda self, counts: sum(counts)),
        "loss not divided over dp": (Backward, "accumulate", undivided(passes)),
        "loss of this rank's positions": (Trainer, "_sum_losses", own_losses),
    }
