"""Faults that are planted into converted code: `planted_repository/decoder.py` and `samples/torch_gpt`.

Each goes into a copy of the file of its own, so that one run judges all of them, each alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

UPDATES = "Updates(model)"


@dataclass(frozen=True)
class CodePlant:
    """A change of converted text."""

    changes: Mapping[str, str]
    """What the converter wrote -> what stands there instead."""
    stage: str | None = None
    """The first that must fail; None: the change changes nothing, and every stage must pass."""
    code: str = ""
    tensor: str | None = None
    """Module, parameter or output that must be named with this code; None is the module itself."""
    optimizer: str = UPDATES


def at(stage: str, tensor: str, right: str, wrong: str, *, code: str = "") -> CodePlant:
    """Found at a parameter or an output; by default with the code of the stage."""
    return CodePlant({right: wrong}, stage, code or {"F": "P203", "G": "P401", "U": "P601"}[stage], tensor)


def inside(module: str | None, right: str, wrong: str) -> CodePlant:
    """Found in the code of a module between its submodules."""
    return CodePlant({right: wrong}, "F", "P204", module)


def alone(module: str, right: str, wrong: str) -> CodePlant:
    """Found at a module that is wrong by itself."""
    return at("F", module, right, wrong)


ATTENTION, LOSS = "blocks.0.attn", "(output):loss"
EVERY = "embed.weight in step 1"
"""The first parameter, where a fault of an optimizer meets all of them."""
TURNED = 'type("Turned", (Linear,), {"construct": lambda self, x: products.matmul(x, self.weight)})'
CLIP = "        gradients.clip_grad_norm_(self.model.parameters(), 1.0)\n"
SCHEDULE = '            group["lr"] = 1e-2 * min(1.0, self.steps / self.warmup)\n        self.optimizer.step()\n'

DECODER: dict[str, CodePlant] = {
    # attention
    "rope_interleaved": alone(
        f"{ATTENTION}.rotary", "first, second = x.chunk(2, -1)", "first, second = x[..., ::2], x[..., 1::2]"
    ),
    "rope_base": alone(f"{ATTENTION}.rotary", "base=10000.0", "base=500000.0"),
    "gqa_order": inside(
        ATTENTION,
        "ops.repeat_interleave(k, self.heads // self.kv_heads, 1)",
        "ops.cat([k] * (self.heads // self.kv_heads), axis=1)",
    ),
    "window_off_by_one": inside(ATTENTION, "(back < self.window)", "(back <= self.window)"),
    "mask_polarity": inside(ATTENTION, "(keep[:, None", "(~keep[:, None"),
    "padding_seen": inside(
        ATTENTION, "visible = visible & (keep[:, None, None, :] | (back == 0))", "visible = visible[None, None]"
    ),
    "future_seen": inside(ATTENTION, "(back >= 0) & (back", "(back > -self.window) & (back"),
    "attention_scale": inside(ATTENTION, "/ math.sqrt(self.head_dim)", "/ self.head_dim"),
    "softmax_axis": inside(ATTENTION, "softmax(scores, -1)", "softmax(scores, -2)"),
    "square_weight_transposed": alone(f"{ATTENTION}.o", "self.o = Linear(", f"self.o = {TURNED}("),
    # feed-forward, norms, embeddings, experts
    "gelu_variant": inside("blocks.0.feed", 'approximate="tanh"', 'approximate="none"'),
    "dropout_left_on": inside("blocks.0.feed", "self.dropout, self.training", "self.dropout, True"),
    "bias_not_added": inside("blocks.0.feed", "self.up(x)", "(self.up(x) - self.up.bias)"),
    "bias_dropped": CodePlant(
        {"self.up = Linear(dim, 3 * dim)": "self.up = Linear(dim, 3 * dim, bias=False)"},
        "W", "P002", "blocks.0.feed.up.bias",
    ),
    "norm_eps": alone("blocks.0.norm1", "self.norm1 = LayerNorm(dim)", "self.norm1 = LayerNorm(dim, eps=1e-6)"),
    "norm_moved": inside(
        "blocks.0",
        "x = x + self.attn(self.norm1(x), keep)",
        "x = self.norm1(x)\n        x = x + self.attn(x, keep)",
    ),
    "embedding_not_scaled": inside(None, " * self.scale +", " +"),
    "places_off_by_one": inside("places", "+ self.offset)", "+ self.offset - 1)"),
    "router_not_normalised": inside("experts", "top = top / top.sum(-1, keepdims=True)", "top = top * 1.0"),
    "experts_transposed": inside("experts", '"btd,edf->btef"', '"btd,efd->btef"'),
    "shared_expert_not_scaled": inside("experts", "ops.sigmoid(self.gate(x)) * self", "0 * self.gate(x) + self"),
    # loss and gradients
    "labels_not_shifted": at("F", LOSS, "labels[:, 1:].flatten()", "labels[:, :-1].flatten()"),
    "padding_counted": at("F", LOSS, "masked_fill(~keep, -100)", "masked_fill(~keep, 0)"),
    "loss_not_divided": at("F", LOSS, "loss / self.accumulation", "loss"),
    "value_detached": at(
        "G", "blocks.1.attn.v.weight", "softmax(scores, -1), v)", "softmax(scores, -1), ops.stop_gradient(v))"
    ),
    "head_untied": at(
        "G", "head.weight", "self.head.weight = self.embed.weight",
        "self.head.weight = ms.Parameter(self.embed.weight.asnumpy())", code="P002",
    ),
    # updates
    "decay_on_norms": at("U", "blocks.0.norm1.weight in step 1", '"weight_decay": 0.0', '"weight_decay": 0.1'),
    "no_decay": at("U", EVERY, '"weight_decay": 0.1', '"weight_decay": 0.0'),
    "decay_coupled": CodePlant(
        {"import AdamW": "import Adam", "AdamW(groups": "Adam(groups"}, "U", "P601", EVERY
    ),
    "clip_after_step": CodePlant({CLIP: "", SCHEDULE: SCHEDULE + CLIP}, "U", "P601", EVERY),
    "accumulation_summed": CodePlant(
        {"parameter.grad / self.accumulation": "parameter.grad"}, "U", "P601", EVERY, "PlainUpdates(model)"
    ),
    "betas_swapped": at("U", "embed.weight in step 2", "betas=(0.9, 0.95)", "betas=(0.95, 0.9)"),
    "optimizer_eps": at("U", EVERY, "eps=1e-5)", "eps=1e-8)"),
    "warmup_off_by_one": at("U", EVERY, "self.steps / self.warmup", "(self.steps - 1) / self.warmup"),
    # what changes nothing
    "finite_mask": CodePlant({"dtypes.finfo(scores.dtype).min": "-1e9"}),
    "scale_first": CodePlant(
        {
            "products.matmul(q, k.swapaxes(-2, -1)) / math.sqrt(self.head_dim)":
                "products.matmul(q / math.sqrt(self.head_dim), k.swapaxes(-2, -1))"
        }
    ),
    "sum_reordered": CodePlant({"x = x + self.attn(self.norm1(x), keep)": "x = self.attn(self.norm1(x), keep) + x"}),
    "groups_reordered": CodePlant({"AdamW(groups,": "AdamW(groups[::-1],"}),
    "head_spelled_out": CodePlant({"self.scale = math.sqrt(dim)": "self.scale = dim**0.5"}),
    "not_touched": CodePlant({}),
}  # fmt: skip
QUICK = (
    "square_weight_transposed", "mask_polarity", "norm_eps", "bias_dropped", "head_untied", "clip_after_step",
    "finite_mask",
)  # fmt: skip
"""Of `DECODER`: one per stage and kind of place, for the ordinary run."""
