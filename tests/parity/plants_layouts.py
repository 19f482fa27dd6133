"""Faults that only several ranks can have, all in one launch: `python -m plants_layouts JOBS`, under msrun.

JOBS is a JSON list of [fault, layout, job, folder]. `PLANTS` says what must be found.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plants_layouts_loss
import plants_layouts_sums

DENSE, TIED, SPARSE, DEEP = "llama", "qwen2", "qwen3_moe", "llama of four layers"
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    DENSE: (DENSE, {}),
    DEEP: (DENSE, {"num_hidden_layers": 4}),
    TIED: (TIED, {"tie_word_embeddings": True}),
    SPARSE: (SPARSE, {"num_experts": 6}),
    plants_layouts_sums.ONE_HEAD: (DENSE, {"num_key_value_heads": 1}),
    plants_layouts_sums.BIASED: ("gpt2", {}),
}
"""By name: family and settings that are its own."""
EMBEDDING = "model.embed_tokens.weight"
# fault: (model, layout, stage that must fail first, tensor that it must name first)
PLANTS: dict[str, tuple[str, str, str, str]] = {
    "norm not summed over tp": (DENSE, "tp=2,sequence_parallel=true", "G", "model.norm.weight"),
    "mean of means over dp": (DENSE, "dp=2", "L", "loss"),
    "gradients not summed over dp": (DENSE, "dp=2", "G", "lm_head.weight"),
    "gradients averaged over dp": (DENSE, "dp=2", "G", "lm_head.weight"),
    "tied head not summed over pp": (TIED, "pp=2", "G", EMBEDDING),
    "a micro-batch left out over pp": (TIED, "pp=2", "L", "loss"),
    "row-parallel result not summed": (DENSE, "tp=2", "F", "model.layers.0.self_attn.o_proj"),
    "norm of this rank's gradients only": (DENSE, "tp=2", "U", "gradient norm of step 1"),
    "experts of the other rank": (SPARSE, "dp=2,ep=2", "F", "model.layers.0.mlp.experts"),
    **plants_layouts_loss.PLANTS,
    **plants_layouts_sums.PLANTS,
}
BENIGN: dict[str, tuple[str, str]] = {
    "dense, tp": (DENSE, "tp=2"),
    "dense, tp, sequence parallel": (DENSE, "tp=2,sequence_parallel=true"),
    "dense, dp": (DENSE, "dp=2"),
    "dense, dp, zero": (DENSE, "dp=2,zero=2"),
    "dense, dp, parameters divided": (DENSE, "dp=2,zero=3"),
    "dense, cp": (DENSE, "cp=2"),
    "tied, pp": (TIED, "pp=2"),
    "tied, pp, zero bubble": (TIED, "pp=2,schedule=zero_bubble"),
    "experts, ep": (SPARSE, "dp=2,ep=2"),
    "deep, interleaved": (DEEP, "pp=2,vpp=2"),
    "dense, ulysses": (DENSE, "cp=2,context=ulysses"),
    "dense, blocks recomputed": (DENSE, "dp=2,recompute=block"),
    "one key head, tp": (plants_layouts_sums.ONE_HEAD, "tp=2"),
    "biases, tp": (plants_layouts_sums.BIASED, "tp=2"),
}


def replacements() -> dict[str, tuple[Any, str, Any]]:
    """(where, attribute, replacement) of every fault."""
    from mindspore import ops

    from ms_models.layers.moe_blocks import BlockLayout
    from ms_models.layers.norm import RMSNorm
    from ms_models.parallel.linear import RowParallelLinear
    from ms_models.parallel.optimizer_sharding import Bucket
    from ms_models.parallel.pipeline import Pipeline
    from ms_models.train.gradients import GradientBuffers
    from ms_models.train.step import Trainer

    passes, layout_init = Pipeline.accumulate, BlockLayout.__init__

    def averaged(self: Any, kept: Any) -> Any:
        return self.sum_copies(kept) / self.together.copies.size

    def own_norm(self: Any, reduced: Any) -> float:
        return float(sum(float(ops.square(kept).sum().asnumpy()) for kept in reduced) ** 0.5)

    def not_left(self: Any, x: Any) -> Any:
        return ops.dense(x, self.weight)

    def first_only(self: Any, batches: Any, scale: Any) -> Any:
        return passes(self, [batches[0]] * len(batches), scale)

    def swapped(self: Any, experts: int, first: int = 0) -> None:
        layout_init(self, experts, 0 if first else experts)

    return {
        "norm not summed over tp": (RMSNorm, "scale", lambda self: self.weight),
        "mean of means over dp": (Trainer, "_sum_counts", lambda self, counts: self.mesh.layout.dp * sum(counts)),
        "gradients not summed over dp": (Bucket, "finish", lambda self, kept: kept),
        "gradients averaged over dp": (Bucket, "finish", averaged),
        "tied head not summed over pp": (Bucket, "finish", lambda self, kept: self.sum_copies(kept)),
        "a micro-batch left out over pp": (Pipeline, "accumulate", first_only),
        "row-parallel result not summed": (RowParallelLinear, "construct", not_left),
        "norm of this rank's gradients only": (GradientBuffers, "norm", own_norm),
        "experts of the other rank": (BlockLayout, "__init__", swapped),
        **plants_layouts_loss.replacements(),
        **plants_layouts_sums.replacements(),
    }


def main(path: Path) -> None:
    """Captures each fault; faults that are none (`BENIGN`) change nothing."""
    from planting import planted

    from migrate.parity.layouts.rank import main as rank

    if os.environ.get("MS_ROLE") == "MS_SCHED":
        rank(path, path, "tp=1")
        return
    table = replacements()
    for fault, layout, job, folder in json.loads(path.read_text()):
        run: Callable[[], None] = lambda job=job, folder=folder, layout=layout: rank(Path(job), Path(folder), layout)  # type: ignore[misc]  # noqa: E731
        if fault in table:
            with planted(*table[fault]):
                run()
        else:
            run()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
