"""Layouts that others published for large models, and what a plan says of them.

    python -m tests.plan.published

prints the table of docs/plan.md. Configurations are sizes from the sources; `gpt2` stands for Megatron's GPT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mappings.layout import ParallelLayout
from mappings.parallel_options import RECOMPUTE
from migrate.plan.engine import MEGATRON, MSMIGRATE, Engine
from migrate.plan.hardware import hardware
from migrate.plan.job import GIB, Choice, Job
from migrate.plan.search import Plan, search
from migrate.plan.shapes import ModelShapes
from tests.plan.plan_models import llama, shapes_of

SC21 = "Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473, table 1"
KORTHIKANTI = "Korthikanti et al. 2022, Reducing Activation Recomputation, arXiv 2205.05198, table 3"
LLAMA3 = "Llama Team 2024, The Llama 3 Herd of Models, arXiv 2407.21783, table 4"
BRIDGE = "docs.nvidia.com/nemo/megatron-bridge, bridge.perf_recipes.llama.h100.llama31 (1024 GPUs, bf16)"
BRIDGE_DEEPSEEK = "docs.nvidia.com/nemo/megatron-bridge/0.4.0, bridge.recipes.deepseek.deepseek_v3"
DEEPSEEK = "DeepSeek-AI 2024, DeepSeek-V3 Technical Report, arXiv 2412.19437, section 3.2"


@dataclass(frozen=True)
class Published:
    """One run."""

    name: str
    config: dict[str, Any]
    axes: dict[str, int]
    global_batch: int
    seq_length: int
    hardware: str
    source: str
    micro_batch: int = 1

    @property
    def layout(self) -> ParallelLayout:
        """With a distributed optimizer, which these sources have or allow."""
        return ParallelLayout(**self.axes, zero=1 if self.axes["dp"] > 1 else 0)

    def job(self) -> Job:
        """Of the run."""
        return Job(
            self.layout.world_size, int(hardware(self.hardware).memory_gib * GIB), self.seq_length, self.global_batch
        )


def gpt(hidden: int, layers: int, heads: int) -> dict[str, Any]:
    """Megatron's GPT: vocabulary 51,200, sequences of 2,048."""
    return {
        "model_type": "gpt2", "vocab_size": 51200, "n_embd": hidden, "n_layer": layers, "n_head": heads,
        "n_positions": 2048,
    }  # fmt: skip


LLAMA_405B = llama(16384, 53248, 126, 128, 8, 128256)
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432,
    "moe_intermediate_size": 2048, "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "num_attention_heads": 128,
    "n_shared_experts": 1, "n_routed_experts": 256, "num_experts_per_tok": 8, "kv_lora_rank": 512, "q_lora_rank": 1536,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "qk_nope_head_dim": 128, "first_k_dense_replace": 3,
}  # fmt: skip
RUNS = (
    Published("GPT 1.7B", gpt(2304, 24, 24), {"dp": 32}, 512, 2048, "a100", SC21),
    Published("GPT 7.5B", gpt(4096, 36, 32), {"tp": 4, "dp": 32}, 512, 2048, "a100", SC21),
    Published("GPT 18.4B", gpt(6144, 40, 48), {"tp": 8, "dp": 32}, 1024, 2048, "a100", SC21),
    Published("GPT 39.1B", gpt(8192, 48, 64), {"tp": 8, "pp": 2, "dp": 32}, 1536, 2048, "a100", SC21),
    Published("GPT 76.1B", gpt(10240, 60, 80), {"tp": 8, "pp": 4, "dp": 32}, 1792, 2048, "a100", SC21),
    Published("GPT 145.6B", gpt(12288, 80, 96), {"tp": 8, "pp": 8, "dp": 24}, 2304, 2048, "a100", SC21),
    Published("GPT 310.1B", gpt(16384, 96, 128), {"tp": 8, "pp": 16, "dp": 15}, 2160, 2048, "a100", SC21),
    Published("GPT 529.6B", gpt(20480, 105, 128), {"tp": 8, "pp": 35, "dp": 9}, 2520, 2048, "a100", SC21),
    Published("GPT 1008B", gpt(25600, 128, 160), {"tp": 8, "pp": 64, "dp": 6}, 3072, 2048, "a100", SC21),
    Published("GPT 22B", gpt(6144, 48, 64), {"tp": 8, "dp": 1}, 4, 2048, "a100", KORTHIKANTI, 4),
    Published("GPT 175B", gpt(12288, 96, 96), {"tp": 8, "pp": 8, "vpp": 3, "dp": 1}, 64, 2048, "a100", KORTHIKANTI),
    Published("GPT 530B", gpt(20480, 105, 128), {"tp": 8, "pp": 35, "vpp": 3, "dp": 1}, 280, 2048, "a100", KORTHIKANTI),
    Published("GPT 1T", gpt(25600, 128, 160), {"tp": 8, "pp": 64, "dp": 1}, 512, 2048, "a100", KORTHIKANTI),
    Published("Llama 3 405B", LLAMA_405B, {"tp": 8, "pp": 16, "dp": 64}, 2048, 8192, "h100", LLAMA3),
    Published("Llama 3 405B", LLAMA_405B, {"tp": 8, "pp": 16, "dp": 128}, 2048, 8192, "h100", LLAMA3),
    Published("Llama 3 405B long", LLAMA_405B, {"tp": 8, "cp": 16, "pp": 16, "dp": 8}, 128, 131072, "h100", LLAMA3),
    Published("Llama 3.1 405B", LLAMA_405B, {"tp": 8, "cp": 2, "pp": 8, "dp": 8}, 512, 8192, "h100", BRIDGE),
    Published("DeepSeek-V3", DEEPSEEK_V3, {"pp": 16, "dp": 128, "ep": 64}, 15360, 4096, "h800", DEEPSEEK),
    Published("DeepSeek-V3", DEEPSEEK_V3, {"tp": 2, "pp": 16, "dp": 64, "ep": 64}, 4096, 4096, "h100", BRIDGE_DEEPSEEK),
)
"""Long sequences: 16 M tokens per step, as table 4. The batch of `BRIDGE` and `BRIDGE_DEEPSEEK` is ours: 4 M and 16 M
tokens; that of 405B on 16,384 devices is its 16 M, too."""


@dataclass(frozen=True)
class Judgement:
    """What a plan says of a published layout."""

    run: Published
    gib: float
    recompute: str | None
    """The first policy that fits; None where none does, and `gib` is then the least."""
    place: int | None
    """Among all layouts of the job."""
    layouts: int
    slower: float | None
    """Step time over that of the first."""
    mfu: float


_shapes: dict[str, ModelShapes] = {}


def _shapes_of(run: Published) -> ModelShapes:
    if run.name not in _shapes:
        _shapes[run.name] = shapes_of(run.config)
    return _shapes[run.name]


def own_layout(run: Published, engine: Engine) -> Plan:
    """A plan that looks at the published layout alone, with every recompute policy."""
    shapes, layout = _shapes_of(run), run.layout
    schedule = "interleaved" if layout.vpp > 1 else "1f1b"
    count = run.global_batch // (layout.dp * run.micro_batch)
    choices = [Choice(layout, run.micro_batch, count, policy, layout.tp > 1, schedule) for policy in RECOMPUTE]
    return search(shapes, run.job(), hardware(run.hardware), engine, choices=choices)


def judge(run: Published, engine: Engine) -> Judgement:
    """Evaluates the layout itself, and looks for it among all layouts of the job."""
    own, layout = own_layout(run, engine), run.layout
    everything = search(own.shapes, own.job, own.hardware, engine)
    axes = layout.tp, layout.cp, layout.pp, layout.ep
    place = next((n for n, one in enumerate(everything.ranked, 1) if one.axes == axes), None)
    if not own.ranked:
        return Judgement(run, own.smallest[axes] / GIB, None, place, len(everything.ranked), None, 0.0)
    best = own.ranked[0]
    slower = everything.ranked[place - 1].time.total / everything.ranked[0].time.total if place else None
    return Judgement(
        run, best.memory.total / GIB, best.choice.recompute, place, len(everything.ranked), slower, own.mfu(best.time)
    )


def table(engine: Engine) -> list[str]:
    """Rows of Markdown."""
    rows = [
        "| run | devices | layout | GiB (recompute) | fits | place of those that fit | step time, first = 1 | MFU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in RUNS:
        one = judge(run, engine)
        place = f"{one.place} of {one.layouts}" if one.place else f"- of {one.layouts}"
        rows.append(
            f"| {run.name} | {run.layout.world_size:,} x {run.hardware} | {run.layout} | {one.gib:.0f} "
            f"({one.recompute or 'full'}) | {'yes' if one.recompute else 'no'} | {place} | "
            f"{f'{one.slower:.2f}' if one.slower else '-'} | {100 * one.mfu:.0f} % |"
        )
    return rows


if __name__ == "__main__":
    for engine in (MEGATRON, MSMIGRATE):
        print(f"\n{engine.name}\n")
        print("\n".join(table(engine)))
