"""Faults planted into a Gemma 2: windows, caps, scaled embedding, offset norms; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("gemma2", {})
WIDTH, WINDOW = 48, 7  # see `parity_models`
LAYER = "model.layers.0"
OUT, LATER_OUT = f"{LAYER}.self_attn.o_proj", "model.layers.1.self_attn.o_proj"
ATTENTION = f"{LAYER}.self_attn"
PLACES = ("input", "post_attention", "pre_feedforward", "post_feedforward")
NORMS = (*(f"{LAYER}.{place}_layernorm" for place in PLACES), "model.norm")
PLANTS = {
    "window one longer": Plant("F", OUT, "`<=` for `<`", ATTENTION),
    "window one shorter": Plant("F", OUT, "counted without the token itself", ATTENTION),
    "window in the other layers": Plant("F", OUT, "even for odd", ATTENTION),
    "window in all layers": Plant("F", LATER_OUT, "layer_types overlooked", "model.layers.1.self_attn"),
    "no window": Plant("F", OUT, "sliding_window overlooked", ATTENTION),
    "scores not capped": Plant("F", OUT, "as kernels without soft caps do", ATTENTION),
    "cap behind the mask": Plant("F", OUT, "masked scores come back as -cap", ATTENTION),
    "cap by clipping": Plant("F", OUT, "clamp for tanh", ATTENTION),
    "logits not capped": Plant("F", "logits", "final_logit_softcapping overlooked"),
    "scale by the head's width": Plant("F", OUT, "query_pre_attn_scalar overlooked", ATTENTION),
    "embedding not scaled": Plant("F", "model.embed_tokens", "the root of the width left out"),
    "scale of the embedding in bf16": Plant("F", "model.embed_tokens", "6.9375 for 6.9282"),
    "norm without the one": Plant("F", f"{LAYER}.input_layernorm", "a Llama's norm", NORMS),
    "one added twice": Plant("F", f"{LAYER}.input_layernorm", "in the conversion and in the norm", NORMS),
    "norm behind attention left out": Plant("F", f"{LAYER}.post_attention_layernorm", "a Llama's layer"),
    "residual in front of the norm": Plant("F", f"{LAYER}.post_attention_layernorm", "norm of the sum", LAYER),
    "gelu by erf": Plant("F", f"{LAYER}.mlp.down_proj", "`gelu` for `gelu_pytorch_tanh`", f"{LAYER}.mlp"),
    "silu": Plant("F", f"{LAYER}.mlp.down_proj", "a Llama's activation", f"{LAYER}.mlp"),
    "cap detached": Plant("G", "model.norm.weight", "the cap applied to values only", "logits"),
}
BENIGN = ("nothing", "heads in two halves", "window as a finite number", "cap by exponentials")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.gemma2 import model as gemma
    from ms_models.layers import attention as scores
    from ms_models.layers import core
    from ms_models.layers.norm import OffsetRMSNorm
    from ms_models.parallel.vocabulary import VocabParallelEmbedding

    window, attention, cap = decoder.within_window, core.grouped_attention, scores.soft_cap
    model, embed, scale = gemma.Gemma2Model, VocabParallelEmbedding.construct, OffsetRMSNorm.scale
    layer, biases = gemma.Gemma2DecoderLayer, decoder.Decoder.biases

    def wider(by: int) -> Replacement:
        return decoder, "within_window", lambda bias, size, at=None: window(bias, size + by, at)

    def given(choose: Any) -> Replacement:
        return model, "biases", lambda self, *args: choose(biases(self, *args))

    def attend(cap_of: Any = None, scale_of: Any = None) -> Replacement:
        def run(q: Any, k: Any, v: Any, bias: Any, scale: Any = None, cap: Any = None) -> Any:
            return attention(q, k, v, bias, scale if scale_of is None else scale_of(q), cap_of and cap_of(cap))

        return core, "grouped_attention", run

    def cap_last(q: Any, k: Any, v: Any, bias: Any, scale: Any, limit: Any) -> Any:
        each = q.shape[2] // k.shape[2]
        keys, values = ops.repeat_interleave(k, each, 2), ops.repeat_interleave(v, each, 2)
        raw = ops.matmul((q * scale).swapaxes(1, 2), keys.transpose(0, 2, 3, 1)) + bias
        mixed = ops.matmul(ops.softmax(ops.tanh(raw / limit) * limit, -1), values.swapaxes(1, 2))
        return mixed.swapaxes(1, 2).reshape(*q.shape[:2], -1)

    def halves(q: Any, k: Any, v: Any, *rest: Any) -> Any:
        both = [attention(*(x[:, :, part] for x, part in zip((q, k, v), parts, strict=True)), *rest) for parts in cut]
        return ops.concat(both, -1)

    cut = [(slice(0, 3), slice(0, 1), slice(0, 1)), (slice(3, 6), slice(1, 2), slice(1, 2))]

    def embedding(factor: float) -> Replacement:
        return VocabParallelEmbedding, "construct", lambda self, ids: embed(self, ids) * factor

    def unnormed(self: Any, x: Any, rotary: Any, bias: Any, past: Any = None) -> Any:
        y, present = self.self_attn(self.input_layernorm(x), rotary, bias, past)
        x = x + y
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), present

    def norm_of_sum(self: Any, x: Any, rotary: Any, bias: Any, past: Any = None) -> Any:
        y, present = self.self_attn(self.input_layernorm(x), rotary, bias, past)
        x = self.post_attention_layernorm(x + y)
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))), present

    def mlp(act: Any) -> Replacement:
        return gemma.Gemma2MLP, "construct", lambda self, x: self.down_proj(act(self.gate_proj(x)) * self.up_proj(x))

    def by_exponentials(x: Any, limit: float) -> Any:
        return limit * (1.0 - 2.0 * ops.sigmoid(x * (-2.0 / limit)))

    return {
        "nothing": (core, "grouped_attention", attention),
        "heads in two halves": (core, "grouped_attention", halves),
        "window as a finite number": (
            decoder,
            "within_window",
            lambda bias, size, at=None: ops.maximum(window(bias, size, at), -1e6),
        ),
        "cap by exponentials": (scores, "soft_cap", by_exponentials),
        "window one longer": wider(1),
        "window one shorter": wider(-1),
        "window in the other layers": given(lambda both: both[::-1]),
        "window in all layers": given(lambda both: [both[0], both[0]]),
        "no window": given(lambda both: [both[1], both[1]]),
        "scores not capped": attend(),
        "cap behind the mask": (core, "grouped_attention", cap_last),
        "cap by clipping": (scores, "soft_cap", lambda x, limit: ops.clip(x, -limit, limit)),
        "logits not capped": (gemma, "soft_cap", lambda x, limit: x),
        "scale by the head's width": attend(lambda limit: limit, lambda q: q.shape[-1] ** -0.5),
        "embedding not scaled": embedding(WIDTH**-0.5),
        "scale of the embedding in bf16": embedding(6.9375 / WIDTH**0.5),
        "norm without the one": (OffsetRMSNorm, "scale", lambda self: scale(self) - 1.0),
        "one added twice": (OffsetRMSNorm, "scale", lambda self: scale(self) + 1.0),
        "norm behind attention left out": (layer, "construct", unnormed),
        "residual in front of the norm": (layer, "construct", norm_of_sum),
        "gelu by erf": mlp(lambda x: ops.gelu(x, "none")),
        "silu": mlp(ops.silu),
        "cap detached": (
            gemma,
            "soft_cap",
            lambda x, limit: x + ops.stop_gradient(cap(x.astype(ms.float32), limit) - x),
        ),
    }
