"""Faults planted into a Qwen2: attention, feed-forward, norms, head, loss, gradients; see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from planting import planted
from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("qwen2", {"tie_word_embeddings": True})
O_PROJ = "model.layers.0.self_attn.o_proj"
NORM = "model.layers.0.input_layernorm"
EMBEDDING = "model.embed_tokens.weight"
V_PROJ = "model.layers.1.self_attn.v_proj.bias"  # the last of the detached ones
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
NORMS = (NORM, "model.layers.0.post_attention_layernorm", "model.norm")
PLANTS = {
    "rope_interleaved": Plant(
        "F", O_PROJ, "neighbouring dimensions turned as pairs, as in the original LLaMA release", ATTENTION
    ),
    "rope_backwards": Plant("F", O_PROJ, "sign of the sine", ATTENTION),
    "gqa_order": Plant("F", O_PROJ, "key heads in another order (`repeat` for `repeat_interleave`)", ATTENTION),
    "scale_missing_root": Plant("F", O_PROJ, "1/d, twice the root, for the scale of scores", ATTENTION),
    "mask_polarity": Plant("F", O_PROJ, "1 taken for padding, as `nn.Transformer` and Megatron do", ATTENTION),
    "mask_off_by_one": Plant("F", O_PROJ, "a query does not see itself", ATTENTION),
    "mask_shows_the_next": Plant("F", O_PROJ, "a query sees the token that it has to guess", ATTENTION),
    "padding_not_masked": Plant("F", O_PROJ, "the mask lost on the way", ATTENTION),
    "half_softmax": Plant("F", O_PROJ, "softmax in half precision", ATTENTION),
    "gelu_for_silu": Plant("F", "model.layers.0.mlp.down_proj", "another activation", MLP),
    "gate_and_up_swapped": Plant("F", "model.layers.0.mlp.down_proj", "the activation on the wrong half", MLP),
    "eps": Plant("F", NORM, "1e-5 for 1e-6", NORMS),
    "variance_about_the_mean": Plant("F", NORM, "a layer norm's variance", NORMS),
    "bias_dropped": Plant(
        "F",
        "model.layers.0.self_attn.q_proj",
        "`bias=False` by default",
        tuple(f"{ATTENTION}.{name}_proj" for name in "qkv"),
    ),
    "residual_dropped": Plant("F", "model.layers.0", "the sum left out"),
    "final_norm_skipped": Plant("F", "model.norm", "the last norm left out"),
    "head_scaled": Plant("F", "logits", "a factor of 1.0001"),
    "labels_not_shifted": Plant("L", "loss", "shifted twice, in the data and in the model"),
    "padding_counted": Plant("L", "loss", "mean over all positions"),
    "value_detached": Plant("G", V_PROJ, "`detach` on values", "model.layers.1.self_attn"),
    "tied_head_not_trained": Plant("G", EMBEDDING, "`detach` on the tied table", "logits"),
    "pad_row_trained": Plant("G", EMBEDDING, "`padding_idx` forgotten", "model.embed_tokens"),
}
BENIGN = ("none", "rope_shifted", "finite_mask", "scale_after_matmul")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.causal_lm import CausalLM
    from ms_models.families.llama import model as llama
    from ms_models.layers import core
    from ms_models.layers.norm import RMSNorm
    from ms_models.parallel.linear import ColumnParallelLinear
    from ms_models.parallel.vocabulary import VocabParallelEmbedding

    rotate, bias, attention = llama.rotate, decoder.causal_bias, core.grouped_attention
    norm, loss, head = RMSNorm.construct, CausalLM.loss, llama.LlamaForCausalLM.head

    def interleaved(x: Any, cos: Any, sin: Any) -> Any:
        even, odd = x[..., 0::2], x[..., 1::2]
        return ops.stack((even * cos - odd * sin, odd * cos + even * sin), -1).reshape(x.shape)

    def half_softmax(q: Any, k: Any, v: Any, mask: Any, *rest: Any) -> Any:
        with planted(
            ops, "softmax", lambda x, axis: softmax(ops.maximum(x, -6e4).astype(ms.float16), axis).astype(ms.float32)
        ):
            return attention(q, k, v, mask, *rest)

    def about_the_mean(self: Any, x: Any) -> Any:
        centred = x - x.mean(axis=-1, keep_dims=True)
        return self.weight * x * ops.rsqrt((centred * centred).mean(axis=-1, keep_dims=True) + self.eps)

    def larger_eps(self: Any, x: Any) -> Any:
        with planted(self, "eps", 1e-5):
            return norm(self, x)

    def moved_by(steps: int) -> Callable[..., Any]:
        def bias(queries: int, keys: int, mask: Any, positions: Any = None) -> Any:
            position = ops.arange(keys)
            allowed = (position <= position[keys - queries :].expand_dims(-1) + steps).expand_dims(0)
            allowed = ops.logical_and(allowed, (mask != 0).expand_dims(1))
            return ops.where(allowed, 0.0, -1e30).expand_dims(1)

        return bias

    def mlp(act: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda self, x: self.down_proj(act(self.gate_proj(x), self.up_proj(x)))

    def no_residual(self: Any, x: Any, rotary: Any, mask: Any, past: Any = None) -> Any:
        y, present = self.self_attn(self.input_layernorm(x), rotary, mask, past)
        x = x + y
        return self.mlp(self.post_attention_layernorm(x)), present

    def not_shifted(self: Any, ids: Any, labels: Any, mask: Any = None) -> Any:
        return loss(self, ids, ops.concat((labels[:, :1], labels[:, :-1]), 1), mask)

    def all_counted(self: Any, ids: Any, labels: Any, mask: Any = None) -> Any:
        total, _ = loss(self, ids, labels, mask)
        return total, ops.ones((), ms.float32) * labels.size

    def skip_final(self: Any, x: Any) -> Any:
        return x * 1.0 if self.weight.name == "model.norm.weight" else norm(self, x)

    def detached_head(self: Any, x: Any) -> Any:
        return ops.matmul(x, ops.stop_gradient(self.body.embed_tokens.weight).T)

    softmax = ops.softmax
    on = llama
    return {
        "none": (on, "rotate", rotate),
        "rope_interleaved": (on, "rotate", interleaved),
        "rope_backwards": (on, "rotate", lambda x, cos, sin: rotate(x, cos, -sin)),
        "gqa_order": (
            core,
            "grouped_attention",
            lambda q, k, v, m, *rest: attention(q, ops.flip(k, (2,)), ops.flip(v, (2,)), m, *rest),
        ),
        "scale_missing_root": (
            core,
            "grouped_attention",
            lambda q, k, v, m, *rest: attention(q * q.shape[-1] ** -0.5, k, v, m, *rest),
        ),
        "mask_polarity": (decoder, "causal_bias", lambda q, k, m, p=None: bias(q, k, 1 - m)),
        "mask_off_by_one": (decoder, "causal_bias", moved_by(-1)),
        "mask_shows_the_next": (decoder, "causal_bias", moved_by(1)),
        "padding_not_masked": (decoder, "causal_bias", lambda q, k, m, p=None: bias(q, k, None)),
        "half_softmax": (core, "grouped_attention", half_softmax),
        "gelu_for_silu": (on.LlamaMLP, "construct", mlp(lambda gate, up: ops.gelu(gate) * up)),
        "gate_and_up_swapped": (on.LlamaMLP, "construct", mlp(lambda gate, up: gate * ops.silu(up))),
        "eps": (RMSNorm, "construct", larger_eps),
        "variance_about_the_mean": (RMSNorm, "construct", about_the_mean),
        "bias_dropped": (ColumnParallelLinear, "construct", lambda self, x: ops.matmul(x, self.weight.T)),
        "residual_dropped": (on.LlamaDecoderLayer, "construct", no_residual),
        "final_norm_skipped": (RMSNorm, "construct", skip_final),
        "head_scaled": (on.LlamaForCausalLM, "head", lambda self, x: head(self, x) * 1.0001),
        "labels_not_shifted": (CausalLM, "loss", not_shifted),
        "padding_counted": (CausalLM, "loss", all_counted),
        "value_detached": (
            core,
            "grouped_attention",
            lambda q, k, v, m, *rest: attention(q, k, ops.stop_gradient(v), m, *rest),
        ),
        "tied_head_not_trained": (on.LlamaForCausalLM, "head", detached_head),
        "pad_row_trained": (VocabParallelEmbedding, "construct", VocabParallelEmbedding.look_up),
        "rope_shifted": (decoder.Rotary, "construct", _shifted(decoder.Rotary.construct)),
        "finite_mask": (decoder, "causal_bias", lambda q, k, m, p=None: ops.maximum(bias(q, k, m), -1e9)),
        "scale_after_matmul": (
            core,
            "grouped_attention",
            lambda q, k, v, m, *rest: attention(q * 0.25, k * 4.0, v, m, *rest),
        ),
    }


def _shifted(construct: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *positions: construct(self, *(one + 5 for one in positions))
