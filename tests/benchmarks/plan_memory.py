"""Memory that the runner really takes on CPU against what `msmigrate plan` predicts; prints the table of docs/plan.md.

    python tests/benchmarks/plan_memory.py [CASE ...]

Weights, gradients and states must agree element for element, or the script fails. Activations are how much the peak of
a rank (resident, operator by operator) grows by a sequence of the micro-batch.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from mappings.families import family_for_config
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from migrate.plan.engine import MSMIGRATE
from migrate.plan.job import GIB, Choice, Job
from migrate.plan.memory import memory, state_elements
from migrate.plan.shapes import ModelShapes
from migrate.plan.widths import LayerWidths
from tests.benchmarks.plan_memory_worker import LARGE, SMALL
from tests.multi_process.harness import launch

MIB = 1 << 20
WORKER = Path(__file__).with_name("plan_memory_worker.py")


def case(
    length: int = 512, micro_batches: int = 1, /, *, layers: int = 4, ffn: int = 688, **rest: Any
) -> dict[str, Any]:
    """A run: `layout` and `options` in `rest`."""
    config = {
        "model_type": "llama", "vocab_size": 2048, "hidden_size": 256, "intermediate_size": ffn,
        "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": 1024, "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    return {
        "config": config, "length": length, "micro_batches": micro_batches,
        "layout": rest.get("layout", {}), "options": rest.get("options", {}),
    }  # fmt: skip


CASES = {
    "one": case(),
    "recompute attention": case(options={"recompute": "attention"}),
    "recompute block": case(options={"recompute": "block"}),
    "recompute full": case(options={"recompute": "full"}),
    "8 layers": case(layers=8),
    "8 layers, block": case(layers=8, options={"recompute": "block"}),
    "ffn 2064": case(ffn=2064),
    "length 1024": case(1024),
    "dp2 zero 1": case(layout={"dp": 2, "zero": 1}),
    "dp2 zero 2": case(layout={"dp": 2, "zero": 2}),
    "tp2": case(layout={"tp": 2}),
    "tp2, sequence": case(layout={"tp": 2}, options={"sequence_parallel": True}),
    "cp2 ring": case(layout={"cp": 2}),
    "pp2": case(512, 4, layout={"pp": 2}),
}


def run(name: str) -> list[dict[str, Any]]:
    """What each rank measured."""
    chosen = CASES[name]
    ranks = ParallelLayout(**chosen["layout"]).world_size
    if ranks == 1:
        root = Path(__file__).resolve().parent.parent.parent
        done = subprocess.run([sys.executable, "-m", "tests.benchmarks.plan_memory_worker", json.dumps(chosen)],
                              capture_output=True, text=True, timeout=300, cwd=root, check=False)  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            raise SystemExit(f"{name}: {done.stderr[-2000:]}")
        return [json.loads(lines[0].removeprefix("RESULT "))]
    with tempfile.TemporaryDirectory() as folder:
        end = launch(WORKER, ranks, Path(folder) / "run", json.dumps({**chosen, "ranks": ranks}), timeout=300)
        end.check(ranks)
        return [end.ranks[rank] for rank in range(ranks)]


def row(name: str) -> str:
    """A row of Markdown; fails where elements differ."""
    chosen, measured = CASES[name], run(name)
    layout, options = ParallelLayout(**chosen["layout"]), ParallelOptions(**chosen["options"])
    shapes = ModelShapes(family_for_config(chosen["config"]), chosen["config"])
    for rank, found in enumerate(measured):
        contents = shapes.stage(layout, layout.coordinates(rank)["pp"])
        weights, gradients, kept = state_elements(shapes, contents, Choice(layout, 1, 1))
        wanted = (weights, gradients, kept, 2)
        got = (found["weights"], found["gradients"], found["state"], found["states"])
        if got != wanted:
            raise SystemExit(f"{name}: rank {rank} holds {got}, predicted {wanted}")
    predicted = [_activations(shapes, chosen, options, layout, micro) for micro in (SMALL, LARGE)]
    grows = (predicted[1] - predicted[0]) / (LARGE - SMALL) / MIB
    found = max((one["peaks"][1] - one["peaks"][0]) / (LARGE - SMALL) / MIB for one in measured)
    exact = f"{measured[0]['weights']:,} / {measured[0]['gradients']:,} / {measured[0]['state']:,}"
    return f"| {name} | {exact} | {found:.0f} | {grows:.0f} | {found / grows:.2f} |"


def _activations(
    shapes: ModelShapes, chosen: dict[str, Any], options: ParallelOptions, layout: ParallelLayout, micro: int
) -> int:
    job = Job(layout.world_size, GIB, chosen["length"], 64, precision="fp32")
    choice = Choice(layout, micro, chosen["micro_batches"], options.recompute, options.sequence_parallel,
                    options.schedule_for(layout), options.context)  # fmt: skip
    widths = {kind: LayerWidths.of(shapes, kind) for kind in set(shapes.kind_of_layer)}
    return memory(shapes, widths, choice, job, MSMIGRATE).activations


if __name__ == "__main__":
    print(
        "| run | elements of weights / gradients / one state, exact | MiB per sequence, measured | predicted | ratio |"
    )
    print("|---|---|---|---|---|")
    for chosen_name in sys.argv[1:] or CASES:
        print(row(chosen_name), flush=True)
