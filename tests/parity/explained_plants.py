"""Free and forced captures of ms_models with faults planted: `python explained_plants.py JOB REFERENCE OUT`.

A folder per plant, with `free` and `forced` in it. `GUILTY` says which places must be named, and no others.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import plants_qwen2
from plants import Replacement

# plant: (code, module, submodule that is handed something wrong, modules of the same kind) of every fault.
Fault = tuple[str, str, str | None, tuple[str, ...]]
FIRST, SECOND = "model.layers.0", "model.layers.1"
ATTENTION: Fault = ("P204", f"{FIRST}.self_attn", f"{FIRST}.self_attn.o_proj", (f"{SECOND}.self_attn",))
MLP: Fault = ("P204", "model.layers.0.mlp", "model.layers.0.mlp.down_proj", ("model.layers.1.mlp",))
GUILTY: dict[str, list[Fault]] = {
    "none": [],
    "rope_shifted": [],
    "finite_mask": [],
    "scale_after_matmul": [],
    "eps in layer 0 and gelu in layer 1": [
        ("P203", "model.layers.0.input_layernorm", None, ()),
        ("P204", "model.layers.1.mlp", "model.layers.1.mlp.down_proj", ()),
    ],
    "three at once": [
        ("P203", "model.layers.0.self_attn.q_proj", None, ()),
        ("P204", "model.layers.1", None, ()),
        ("P203", "logits", None, ()),
    ],
    "rope_interleaved": [ATTENTION],
    "gqa_order": [ATTENTION],
    "mask_polarity": [ATTENTION],
    "gate_and_up_swapped": [MLP],
    "residual_dropped": [("P204", FIRST, None, (SECOND,))],
    "final_norm_skipped": [("P203", "model.norm", None, ())],
    "head_scaled": [("P203", "logits", None, ())],
}


def replacements() -> dict[str, list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families.llama.model import LlamaDecoderLayer, LlamaForCausalLM, LlamaMLP
    from ms_models.layers.norm import RMSNorm
    from ms_models.parallel.linear import ColumnParallelLinear

    norm, mlp, linear = RMSNorm.construct, LlamaMLP.construct, ColumnParallelLinear.construct
    layer, head = LlamaDecoderLayer.construct, LlamaForCausalLM.head

    def other_eps(self: Any, x: Any) -> Any:
        if self.weight.name != "model.layers.0.input_layernorm.weight":
            return norm(self, x)
        before, self.eps = self.eps, 1e-5
        result = norm(self, x)
        self.eps = before
        return result

    def gelu(self: Any, x: Any) -> Any:
        if not self.down_proj.weight.name.startswith("model.layers.1."):
            return mlp(self, x)
        return self.down_proj(ops.gelu(self.gate_proj(x)) * self.up_proj(x))

    def no_bias(self: Any, x: Any) -> Any:
        is_planted = self.weight.name == "model.layers.0.self_attn.q_proj.weight"
        return ops.matmul(x, self.weight.T) if is_planted else linear(self, x)

    def scaled(self: Any, x: Any, *rest: Any) -> Any:
        y, present = layer(self, x, *rest)
        is_planted = self.input_layernorm.weight.name.startswith("model.layers.1.")
        return (y * 1.001 if is_planted else y), present

    table = plants_qwen2.replacements()
    known: dict[str, list[Replacement]] = {
        name: one if isinstance(one, list) else [one] for name in GUILTY if (one := table.get(name)) is not None
    }
    return {
        **known,
        "eps in layer 0 and gelu in layer 1": [
            (RMSNorm, "construct", other_eps),
            (LlamaMLP, "construct", gelu),
        ],
        "three at once": [
            (ColumnParallelLinear, "construct", no_bias),
            (LlamaDecoderLayer, "construct", scaled),
            (LlamaForCausalLM, "head", lambda self, x: head(self, x) * 1.0001),
        ],
    }


def main(job: Path, reference: Path, out: Path) -> None:
    """Both captures of every plant, all in this process."""
    from planting import planted

    from migrate.parity.capture_mindspore import main as free
    from migrate.parity.forced_mindspore import main as forced

    table = replacements()
    for name in GUILTY:
        folders = [out / name / kind for kind in ("free", "forced")]
        for folder in folders:
            folder.mkdir(parents=True)
        with ExitStack() as stack:
            for where, attribute, value in table[name]:
                stack.enter_context(planted(where, attribute, value))
            free(job, folders[0])
            forced(job, reference, folders[1])


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]))
