"""Faults planted into a GPT-NeoX: parallel residual, partial rotation, fused heads; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("gpt_neox", {})
WIDTH, HEADS = 48, 4  # see `parity_models`
LAYER = "gpt_neox.layers.0"
OUT = f"{LAYER}.attention.dense"
ATTENTION = f"{LAYER}.attention"
NORMS = (f"{LAYER}.input_layernorm", f"{LAYER}.post_attention_layernorm", "gpt_neox.final_layer_norm")
PLANTS = {
    "serial residual": Plant("F", f"{LAYER}.post_attention_layernorm", "use_parallel_residual overlooked", LAYER),
    "one norm for both": Plant("F", f"{LAYER}.post_attention_layernorm", "as GPT-J and Falcon have it"),
    "whole head rotated": Plant("F", OUT, "rotary_pct overlooked", ATTENTION),
    "last part rotated": Plant("F", OUT, "the other end of the head", ATTENTION),
    "pairs of neighbours": Plant("F", OUT, "as GPT-J rotates", ATTENTION),
    "rotary base": Plant("F", OUT, "rotary_emb_base overlooked", ATTENTION),
    "q, k, v side by side": Plant("F", OUT, "as GPT-2 has them", ATTENTION),
    "gelu by tanh": Plant("F", f"{LAYER}.mlp.dense_4h_to_h", "`gelu_new` for `gelu`", f"{LAYER}.mlp"),
    "bias of the norm dropped": Plant("F", f"{LAYER}.input_layernorm", "an RMS norm in its place", NORMS),
    "unbiased variance": Plant("F", f"{LAYER}.input_layernorm", "`var` divides by n - 1 in PyTorch", NORMS),
    "bias of the output dropped": Plant("F", OUT, "added before a sum over ranks, or lost"),
    "head scaled": Plant("F", "logits", "a muP factor"),
    "attention detached": Plant(
        "G",
        "gpt_neox.layers.1.attention.query_key_value.bias",
        "a kernel without gradient",
        "gpt_neox.layers.1.attention",
    ),
}
BENIGN = ("nothing", "feed-forward first", "positions shifted", "q, k and v one by one")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.gpt_neox import model as neox
    from ms_models.layers import core
    from ms_models.layers.layer_norm import LayerNorm
    from ms_models.layers.rotary import rotate_pairs
    from ms_models.parallel.linear import ColumnParallelLinear, RowParallelLinear

    rotate, norm, first_in = neox.rotate, LayerNorm.construct, ColumnParallelLinear.construct
    attention, rotary, head = core.grouped_attention, decoder.Rotary.construct, neox.GPTNeoXForCausalLM.head

    def layer(change: Any) -> Replacement:
        def construct(self: Any, x: Any, rotary: Any, bias: Any, past: Any = None) -> Any:
            normed = self.input_layernorm(x)
            y, present = self.attention(normed, rotary, bias, past)
            return change(self, x, y, normed), present

        return neox.GPTNeoXLayer, "construct", construct

    def serial(self: Any, x: Any, y: Any, normed: Any) -> Any:
        return x + y + self.mlp(self.post_attention_layernorm(x + y))

    def one_norm(self: Any, x: Any, y: Any, normed: Any) -> Any:
        return x + y + self.mlp(normed)

    def feed_forward_first(self: Any, x: Any, rotary: Any, bias: Any, past: Any = None) -> Any:
        fed = x + self.mlp(self.post_attention_layernorm(x))
        y, present = self.attention(self.input_layernorm(x), rotary, bias, past)
        return fed + y, present

    def frequencies(count: int, base: float = 10000.0) -> Replacement:
        def construct(self: Any, ids: Any, positions: Any = None) -> Any:
            steps = ms.Tensor(base ** -(np.arange(count) / count), ms.float32)
            angles = (ids.astype(ms.float32).expand_dims(-1) * steps).expand_dims(2)
            return ops.cos(angles), ops.sin(angles)

        return decoder.Rotary, "construct", construct

    def last_part(x: Any, cos: Any, sin: Any) -> Any:
        pairs = cos.shape[-1]
        rest, turned = x[..., : -2 * pairs], rotate(x[..., -2 * pairs :], cos, sin)
        return ops.concat((rest, turned), -1)

    def side_by_side(self: Any, x: Any, tables: Any, bias: Any, past: Any = None) -> Any:
        parts = ops.split(self.query_key_value(x), WIDTH, -1)
        q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in parts)
        q, k = rotate(q, *tables), rotate(k, *tables)
        return self.dense(self.core(q, k, v, bias)), (k, v)

    def one_by_one(self: Any, x: Any) -> Any:
        each = self.weight.shape[0] // 3
        parts = [slice(start, start + each) for start in range(0, 3 * each, each)]
        if self.weight.shape[0] % 3:
            return first_in(self, x)
        return ops.concat([ops.matmul(x, self.weight[part].T) + self.bias[part] for part in parts], -1)

    def unbiased(self: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keep_dims=True)
        variance = (centred * centred).sum(-1, keepdims=True) / (WIDTH - 1)
        return centred * ops.rsqrt(variance + 1e-5) * self.weight + self.bias

    def no_bias(self: Any, x: Any) -> Any:
        y = self.multiply(x)
        return y if x.shape[-1] == WIDTH else y + self.bias

    return {
        "nothing": (neox, "rotate", rotate),
        "feed-forward first": (neox.GPTNeoXLayer, "construct", feed_forward_first),
        "positions shifted": (
            decoder.Rotary,
            "construct",
            lambda self, *ids: rotary(self, *(one + 3 for one in ids)),
        ),
        "q, k and v one by one": (ColumnParallelLinear, "construct", one_by_one),
        "serial residual": layer(serial),
        "one norm for both": layer(one_norm),
        "whole head rotated": frequencies(6),
        "last part rotated": (neox, "rotate", last_part),
        "pairs of neighbours": (neox, "rotate", rotate_pairs),
        "rotary base": frequencies(2, 500000.0),
        "q, k, v side by side": (neox.GPTNeoXAttention, "construct", side_by_side),
        "gelu by tanh": (
            neox.GPTNeoXMLP,
            "construct",
            lambda self, x: self.dense_4h_to_h(ops.gelu(self.dense_h_to_4h(x), "tanh")),
        ),
        "bias of the norm dropped": (LayerNorm, "construct", lambda self, x: norm(self, x) - self.bias),
        "unbiased variance": (LayerNorm, "construct", unbiased),
        "bias of the output dropped": (RowParallelLinear, "construct", no_bias),
        "head scaled": (neox.GPTNeoXForCausalLM, "head", lambda self, x: head(self, x) * 0.999),
        "attention detached": (
            core,
            "grouped_attention",
            lambda q, k, v, *rest: attention(ops.stop_gradient(q), ops.stop_gradient(k), ops.stop_gradient(v), *rest),
        ),
    }
