"""Faults planted into a DeepSeek-V3: latent attention, its router, shared experts; see `plants`."""

from __future__ import annotations

from typing import Any

from planting import planted
from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("deepseek_v3", {})
ATTENTION, BLOCK = "model.layers.0.self_attn", "model.layers.1.mlp"
OUT, CHOICE = f"{ATTENTION}.o_proj", f"{BLOCK}.gate:choice"
SECOND = "model.layers.1.self_attn"
PLANTS = {
    "shared experts left out": Plant("F", BLOCK, "routed experts only"),
    "shared experts scaled": Plant("F", BLOCK, "routed_scaling_factor on the sum"),
    "shared expert behind a gate": Plant("F", BLOCK, "as Qwen2-MoE has it"),
    "factor left out": Plant("F", CHOICE, "routed_scaling_factor overlooked"),
    "not normalised": Plant("F", CHOICE, "norm_topk_prob overlooked"),
    "groups overlooked": Plant("F", CHOICE, "the best of all experts"),
    "groups by their best expert": Plant("F", CHOICE, "as DeepSeek-V2 judges them"),
    "correction in the weights": Plant("F", CHOICE, "corrected scores for scores"),
    "correction overlooked": Plant("F", CHOICE, "e_score_correction_bias never loaded or used"),
    "softmax": Plant("F", CHOICE, "as DeepSeek-V2 scores"),
    "pairs not of neighbours": Plant("F", OUT, "rope_interleave overlooked", ATTENTION),
    "norm of the query latent left out": Plant("F", f"{ATTENTION}.q_a_layernorm", "projections multiplied into one"),
    "norm over latent and key": Plant("F", f"{ATTENTION}.kv_a_layernorm", "normed before the split"),
    "eps of the latents": Plant(
        "F",
        f"{ATTENTION}.q_a_layernorm",
        "1e-5 for 1e-6, which rms_norm_eps does not change",
        (f"{ATTENTION}.q_a_layernorm", f"{SECOND}.kv_a_layernorm"),
    ),
    "scale of the part without position": Plant("F", OUT, "root of nope, not of nope + rope", ATTENTION),
    "rotary part in front": Plant("F", OUT, "order of the parts of a query", ATTENTION),
    "values in front of keys": Plant("F", OUT, "order of the parts of kv_b_proj", ATTENTION),
    "position key not shared": Plant("F", OUT, "the first head only", ATTENTION),
    "latent not trained": Plant(
        "G", f"{SECOND}.kv_a_layernorm.weight", "a cached latent, detached", f"{SECOND}.kv_a_layernorm"
    ),
}
BENIGN = ("nothing", "positions shifted", "shared experts first", "groups by sorting")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.deepseek_v3 import layers
    from ms_models.families.deepseek_v3.router import DeepseekV3Router
    from ms_models.layers import core, mla
    from ms_models.layers.moe_router import best, pick, shares
    from ms_models.layers.norm import RMSNorm

    latent, moe, router = mla.LatentAttention, layers.DeepseekV3MoE, DeepseekV3Router
    attention, rotary, norm = core.grouped_attention, decoder.Rotary.construct, RMSNorm.construct
    queries, keys = latent.queries, latent.keys_and_values
    choose, rotate = router.choose, mla.rotate

    def block(combine: Any) -> Replacement:
        def construct(self: Any, x: Any) -> Any:
            return combine(self, x, self.experts(x, *self.gate(x)), self.shared_experts(x))

        return moe, "construct", construct

    def gated(self: Any, x: Any, routed: Any, shared: Any) -> Any:
        return routed + shared * ops.sigmoid(x.mean(-1, keep_dims=True))

    def shared_first(self: Any, x: Any) -> Any:
        shared = self.shared_experts(x)
        return shared + self.experts(x, *self.gate(x))

    def weighted(weigh: Any) -> Replacement:
        def construct(self: Any, x: Any) -> Any:
            scores = ops.sigmoid(self.logits(x))
            chosen = self.choose(ops.stop_gradient(scores))
            return weigh(self, pick(scores, chosen), chosen), chosen

        return router, "construct", construct

    def corrected(self: Any, weights: Any, chosen: Any) -> Any:
        bias = ops.gather(self.e_score_correction_bias, chosen, 0)
        return shares(weights + bias) * self.config.scale

    def softmax(self: Any, x: Any) -> Any:
        scores = ops.softmax(self.logits(x), -1)
        chosen = self.choose(ops.stop_gradient(scores))
        return shares(pick(scores, chosen)) * self.config.scale, chosen

    def without_groups(self: Any, scores: Any) -> Any:
        return best(scores + self.e_score_correction_bias, self.config.chosen)

    def uncorrected(self: Any, scores: Any) -> Any:
        return choose(self, scores - self.e_score_correction_bias)

    def by_groups(merit: Any) -> Replacement:
        def chosen(self: Any, scores: Any) -> Any:
            groups = (scores + self.e_score_correction_bias).reshape(*scores.shape[:-1], self.config.groups, -1)
            worth = merit(groups)
            least = ops.topk(worth, self.config.chosen_groups)[0][..., -1:]
            kept = ops.where((worth >= least).expand_dims(-1), groups, -1e30)
            return best(kept.reshape(scores.shape), self.config.chosen)

        return router, "choose", chosen

    def sorted_merit(groups: Any) -> Any:
        ordered = ops.sort(groups, -1)[0]
        return ordered[..., -1] + ordered[..., -2]

    def without_norm(self: Any, x: Any, rotary: Any) -> Any:
        with planted(RMSNorm, "construct", lambda cell, y: y):
            return queries(self, x, rotary)

    def over_both(self: Any, x: Any, rotary: Any) -> Any:
        entered = self.kv_a_proj_with_mqa(x)
        scale = ops.rsqrt((entered * entered).mean(-1, keep_dims=True) + 1e-6)
        with planted(RMSNorm, "construct", lambda cell, y: y * scale * cell.weight):
            return keys(self, x, rotary)

    def other_eps(self: Any, x: Any) -> Any:
        with planted(self, "eps", self.eps if x.shape[-1] == 48 else 1e-5):
            return norm(self, x)

    def scaled(q: Any, k: Any, v: Any, bias: Any, scale: Any, cap: Any) -> Any:
        return attention(q, k, v, bias, 5**-0.5, cap)

    def rotary_first(self: Any, x: Any, rotary: Any) -> Any:
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        q = q.reshape(*q.shape[:2], self.heads, self.config.key)
        turning, rest = ops.split(q, (self.config.rope, self.config.nope), -1)
        return ops.concat((rest, self.turned(turning, rotary)), -1)

    def values_first(self: Any, x: Any, rotary: Any) -> Any:
        k, v = keys(self, x, rotary)
        width = self.config.nope
        both = ops.concat((k[..., :width], v), -1)
        return ops.concat((both[..., -width:], k[..., width:]), -1), both[..., :-width]

    def first_head_only(self: Any, x: Any, rotary: Any) -> Any:
        k, v = keys(self, x, rotary)
        width = self.config.nope
        others = k[:, :, 1:, width:] * 0.0
        return ops.concat((k[..., :width], ops.concat((k[:, :, :1, width:], others), 2)), -1), v

    def detached(self: Any, x: Any) -> Any:
        y = norm(self, x)
        return ops.stop_gradient(y) if x.shape[-1] == 14 else y

    return {
        "nothing": (router, "choose", choose),
        "positions shifted": (
            decoder.Rotary,
            "construct",
            lambda self, *ids: rotary(self, *(one + 3 for one in ids)),
        ),
        "shared experts first": (moe, "construct", shared_first),
        "groups by sorting": by_groups(sorted_merit),
        "shared experts left out": block(lambda self, x, routed, shared: routed),
        "shared experts scaled": block(lambda self, x, routed, shared: routed + shared * 1.7),
        "shared expert behind a gate": block(gated),
        "factor left out": weighted(lambda self, weights, chosen: shares(weights)),
        "not normalised": weighted(lambda self, weights, chosen: weights * self.config.scale),
        "groups overlooked": (router, "choose", without_groups),
        "groups by their best expert": by_groups(lambda groups: groups.max(axis=-1)),
        "correction in the weights": weighted(corrected),
        "correction overlooked": (router, "choose", uncorrected),
        "softmax": (router, "construct", softmax),
        "pairs not of neighbours": (latent, "turned", lambda self, x, tables: rotate(x, *tables)),
        "norm of the query latent left out": (latent, "queries", without_norm),
        "norm over latent and key": (latent, "keys_and_values", over_both),
        "eps of the latents": (RMSNorm, "construct", other_eps),
        "scale of the part without position": (core, "grouped_attention", scaled),
        "rotary part in front": (latent, "queries", rotary_first),
        "values in front of keys": (latent, "keys_and_values", values_first),
        "position key not shared": (latent, "keys_and_values", first_head_only),
        "latent not trained": (RMSNorm, "construct", detached),
    }
