"""Faults planted into a GLM-4: norms behind the branches, rotation of half a head, fused gate; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("glm4", {})
LAYER = "model.layers.0"
ATTENTION, MLP = f"{LAYER}.self_attn", f"{LAYER}.mlp"
OUT, DOWN = f"{ATTENTION}.o_proj", f"{MLP}.down_proj"
PLANTS = {
    "norm behind attention left out": Plant("F", f"{LAYER}.post_self_attn_layernorm", "a Llama's layer"),
    "norm behind the feed-forward left out": Plant("F", f"{LAYER}.post_mlp_layernorm", "a Llama's layer"),
    "norms behind the branches swapped": Plant(
        "F", f"{LAYER}.post_self_attn_layernorm", "post_mlp for post_self_attn", LAYER
    ),
    "halves instead of pairs": Plant("F", OUT, "a Llama's rotation", ATTENTION),
    "whole head rotated": Plant("F", OUT, "partial_rotary_factor overlooked", ATTENTION),
    "gate and up swapped": Plant("F", DOWN, "[up, gate] in one tensor", MLP),
    "gate and up in turn": Plant("F", DOWN, "their rows by turns", MLP),
    "bias of q, k, v dropped": Plant(
        "F", f"{ATTENTION}.q_proj", "attention_bias overlooked", tuple(f"{ATTENTION}.{name}_proj" for name in "qkv")
    ),
}
BENIGN = ("nothing", "gate and up one by one")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.glm4 import model as glm
    from ms_models.families.phi3.model import Phi3MLP
    from ms_models.layers.rotary import rotate
    from ms_models.parallel.linear import ColumnParallelLinear

    layer, linear = glm.Glm4DecoderLayer, ColumnParallelLinear.construct

    def combine(behind: Any) -> Replacement:
        def construct(self: Any, x: Any, rotary: Any, bias: Any, past: Any = None) -> Any:
            y, present = self.self_attn(self.input_layernorm(x), rotary, bias, past)
            first, last = behind(self)
            x = x + first(y)
            return x + last(self.mlp(self.post_attention_layernorm(x))), present

        return layer, "construct", construct

    def whole(self: Any, ids: Any, positions: Any = None) -> Any:
        steps = ms.Tensor(10000.0 ** -(np.arange(6) / 6), ms.float32)
        angles = (ids.astype(ms.float32).expand_dims(-1) * steps).expand_dims(2)
        return ops.cos(angles), ops.sin(angles)

    def mlp(cut: Any) -> Replacement:
        def construct(self: Any, x: Any) -> Any:
            gate, up = cut(self.gate_up_proj(x))
            return self.down_proj(ops.silu(gate) * up)

        return Phi3MLP, "construct", construct

    def one_by_one(self: Any, x: Any) -> Any:
        if not self.weight.name.endswith("gate_up_proj.weight"):
            return linear(self, x)
        return ops.concat([ops.matmul(x, rows.T) for rows in ops.split(self.weight, 52, 0)], -1)

    return {
        "nothing": (glm, "rotate_pairs", glm.rotate_pairs),
        "gate and up one by one": (ColumnParallelLinear, "construct", one_by_one),
        "norm behind attention left out": combine(lambda self: (lambda y: y, self.post_mlp_layernorm)),
        "norm behind the feed-forward left out": combine(lambda self: (self.post_self_attn_layernorm, lambda y: y)),
        "norms behind the branches swapped": combine(
            lambda self: (self.post_mlp_layernorm, self.post_self_attn_layernorm)
        ),
        "halves instead of pairs": (glm, "rotate_pairs", rotate),
        "whole head rotated": (decoder.Rotary, "construct", whole),
        "gate and up swapped": mlp(lambda y: ops.split(y, 52, -1)[::-1]),
        "gate and up in turn": mlp(lambda y: (y[..., 0::2], y[..., 1::2])),
        "bias of q, k, v dropped": (
            ColumnParallelLinear,
            "construct",
            lambda self, x: linear(self, x) if self.bias is None else linear(self, x) - self.bias,
        ),
    }
