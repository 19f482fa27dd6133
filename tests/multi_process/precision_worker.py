"""Two ranks: fp16 in every layout, decisions that only one rank has a reason for, and bad steps of several ranks."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor, ops

from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models import AutoModelForCausalLM
from ms_models.data.loader import TrainingLoader
from ms_models.parallel.mesh import Mesh
from ms_models.train.bad_steps import BadSteps
from ms_models.train.batches import positions_of_last
from ms_models.train.config import GroupConfig, GuardConfig, OptimizerConfig, PrecisionConfig
from ms_models.train.step import Trainer

CONFIG = OptimizerConfig(
    lr=0.01, weight_decay=0.2, clip_norm=0, no_decay=("bias$",), groups=(GroupConfig("lm_head", lr_factor=0.5),)
)
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "dp2 zero2": {"dp": 2, "zero": 2},
    "dp2 zero3": {"dp": 2, "zero": 3},
    "tp2": {"tp": 2},
    "pp2": {"pp": 2},
    "cp2": {"cp": 2},
}
STEPS = 3
keep: list[Any] = []  # what is freed may be taken for something else by its id


class Run:
    """A trainer and its data."""

    def __init__(self, folder: Path, layout: dict[str, Any], compute: Any = "fp16", **options: Any) -> None:
        mesh = Mesh.from_environment(ParallelLayout(**layout)) if layout else Mesh.single()
        self.mesh = mesh
        model = AutoModelForCausalLM.from_pretrained(
            folder / "model", mesh, ParallelOptions(bucket_mib=options.get("bucket_mib", 32.0)), compute=compute
        )
        precision = PrecisionConfig(compute=compute, loss_scale=options.get("loss_scale", 1024.0))
        self.trainer = Trainer(
            model, mesh, CONFIG, jit=False, precision=precision, guard=options.get("guard", GuardConfig())
        )
        self.loader = TrainingLoader(
            folder / "data", seed=7, micro_batch_size=1, accumulation=8 // mesh.layout.dp, dp=mesh.layout.dp,
            dp_rank=mesh.coordinates["dp"],
        )  # fmt: skip
        keep.append(self)

    def steps(self, count: int = STEPS) -> list[dict[str, Any]]:
        """Records of steps."""
        return [self.trainer.step(self.loader.next_step(), 0.003).record() for _ in range(count)]

    def weights(self) -> dict[str, list[float]]:
        return {p.name: p.asnumpy().ravel().tolist() for p in self.trainer.model.get_parameters()}


def overflow_on_one_rank(folder: Path) -> dict[str, Any]:
    """Only rank 1 of dp2 sees gradients that are too large, in its accumulators; fp16 and fp32."""
    found = {}
    for compute in ("fp16", "fp32"):
        run = Run(folder, LAYOUTS["dp2 zero2"], compute)
        before = run.weights()
        inner = run.trainer._passes.accumulate

        def accumulate(batches: Any, scale: Tensor, inner: Any = inner, run: Run = run) -> Any:
            result = inner(batches, scale)
            if run.mesh.rank == 1:
                for accumulator in run.trainer.gradients.accumulators:
                    ops.assign(accumulator, ops.full_like(accumulator, float("inf")))
            return result

        run.trainer._passes.accumulate = accumulate  # type: ignore[method-assign]
        record = run.steps(1)[0]
        found[compute] = {**record, "scale after": run.trainer.loss_scale.factor, "moved": run.weights() != before}
    return found


def spike_on_one_rank(folder: Path) -> dict[str, Any]:
    """Rank 0 alone finds the step a spike, as it would if its sums came out otherwise."""
    run = Run(folder, LAYOUTS["dp2 zero2"], "fp32", guard=GuardConfig(spike="skip", spike_warmup=1))
    run.trainer.spikes.reason = lambda loss, norm: "far" if run.mesh.rank == 0 else None  # type: ignore[method-assign]
    return run.steps(1)[0]


def bad_step(folder: Path, layout: str) -> dict[str, Any]:
    """A weight of the last layer that is not a number: which rank finds it first, what all ranks say."""
    run = Run(folder, LAYOUTS[layout], "fp32")
    for parameter in run.trainer.model.get_parameters():
        if parameter.name == "model.layers.1.mlp.down_proj.weight":
            value = parameter.asnumpy().copy()
            value[0, 0] = np.nan
            ops.assign(parameter, Tensor(value))
    batches = run.loader.next_step()
    result = run.trainer.step(batches, 0.01)
    out = folder / f"bad {layout}"
    sentence = BadSteps(out, 2, run.trainer).take(9, result, batches, positions_of_last(run.loader))
    written = out / "bad_steps" / "step_00000009"
    if run.mesh.rank > 0:  # the first rank writes the report, when all files are there
        return {"sentence": sentence}
    found = json.loads((written / "report.json").read_text())
    return {"sentence": sentence, "files": sorted(path.name for path in written.iterdir()), "report": found}


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    folder = Path(sys.argv[1])
    rank = Mesh.from_environment(ParallelLayout(dp=2)).rank
    small, large = (Run(folder, LAYOUTS["dp2 zero2"], "fp32", bucket_mib=size) for size in (0.001, 32.0))
    sizes = {"small": [small.steps(), small.weights()], "large": [large.steps(), large.weights()]}
    return {
        "rank": rank,
        "fp16": {name: Run(folder, layout).steps() for name, layout in LAYOUTS.items()},
        "fp32": {name: Run(folder, layout, "fp32").steps() for name, layout in LAYOUTS.items()},
        "overflow": overflow_on_one_rank(folder),
        "spike": spike_on_one_rank(folder),
        "bad": {layout: bad_step(folder, layout) for layout in ("pp2", "tp2", "dp2 zero2")},
        "bucket weights are equal": sizes["small"][1] == sizes["large"][1],
        "buckets": [len(one.trainer.sharding.buckets) for one in (small, large)],
        "calls": [one.trainer.sharding.collectives(4) for one in (small, large)],
    }


if __name__ == "__main__":
    report(work)
