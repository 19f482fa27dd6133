"""Faults planted into a Qwen3-MoE: router, experts, norms of heads; see `plants`."""

from __future__ import annotations

from typing import Any

from planting import planted
from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("qwen3_moe", {})
BLOCK = "model.layers.0.mlp"
COUNT, WIDTH = 7, 22  # of the experts, see `parity_models`
EXPERTS, ROUTER = f"{BLOCK}.experts", f"{BLOCK}.gate"
CHOICE = f"{ROUTER}:choice"
ATTENTION = "model.layers.0.self_attn"
PLANTS = {
    "experts transposed": Plant("F", EXPERTS, "[in, out] read as [out, in]"),
    "gate and up swapped": Plant("F", EXPERTS, "[up, gate] in one tensor"),
    "gate and up in turn": Plant("F", EXPERTS, "their rows by turns, as GPT-OSS has them"),
    "experts in another order": Plant("F", EXPERTS, "stacked as the names sort"),
    "capacity": Plant("F", EXPERTS, "tokens beyond an even share dropped, as older frameworks do"),
    "weights before the experts": Plant("F", EXPERTS, "inputs weighted instead of outputs, as Llama 4 does"),
    "renormalised": Plant("F", CHOICE, "norm_topk_prob of another family"),
    "one expert fewer": Plant("F", CHOICE, "off by one in the number of experts"),
    "half precision": Plant("F", ROUTER, "router not kept in fp32"),
    "sigmoid": Plant("F", CHOICE, "scores of another family"),
    "norms of heads swapped": Plant("F", f"{ATTENTION}.q_norm", "q for k", ATTENTION),
    "norms behind the rotation": Plant("F", f"{ATTENTION}.q_norm", "order of norm and rotation", ATTENTION),
    "norms of heads left out": Plant(
        "F", f"{ATTENTION}.q_norm", "taken for a Qwen2", (f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm")
    ),
    "router not trained": Plant("G", f"{ROUTER}.weight", "weights of the choice detached", CHOICE),
    "experts of one choice not trained": Plant("G", f"{EXPERTS}.down_proj", "in-place sums lose a term", EXPERTS),
}
BENIGN = ("nothing", "choices in another order", "blocks of one row", "every expert on every token")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    from mindspore import ops

    from ms_models.families.llama.model import LlamaAttention
    from ms_models.families.qwen3.model import Qwen3Attention
    from ms_models.layers.moe import Experts
    from ms_models.layers.moe_blocks import BlockLayout, BlockLinear
    from ms_models.layers.moe_router import SoftmaxRouter, best, pick, shares

    experts, compute, linear = Experts.construct, Experts.compute, BlockLinear.construct
    route, turn = SoftmaxRouter.construct, LlamaAttention.turn

    def transposed(self: Any, x: Any, weight: Any, owner: Any) -> Any:
        count, outputs, inputs = weight.shape
        return linear(self, x, weight.reshape(count, inputs, outputs).swapaxes(1, 2), owner)

    def order(choose: Any) -> Any:
        def construct(self: Any, x: Any, weight: Any, owner: Any) -> Any:
            is_fused = weight.shape[1] == 2 * WIDTH
            return linear(self, x, ops.gather(weight, choose(2 * WIDTH), 1) if is_fused else weight, owner)

        return construct

    def swapped(rows: int) -> Any:
        return ops.concat((ops.arange(rows // 2, rows), ops.arange(rows // 2)))

    def by_turns(rows: int) -> Any:
        return ops.concat((ops.arange(0, rows, 2), ops.arange(1, rows, 2)))

    def other_experts(self: Any, x: Any, weights: Any, chosen: Any) -> Any:
        return experts(self, x, weights, (COUNT - 1 - chosen).astype(ms.int32))

    def capacity(self: Any, x: Any, weights: Any, chosen: Any) -> Any:
        flat = chosen.reshape(-1)
        mine = (flat.expand_dims(-1) == ops.arange(COUNT)).astype(ms.float32)
        place = (ops.cumsum(mine, 0) * mine).sum(-1)
        kept = (place <= flat.shape[0] / COUNT).astype(ms.float32).reshape(chosen.shape)
        return experts(self, x, weights * kept, chosen)

    def weighted_inputs(self: Any, x: Any, weights: Any, chosen: Any) -> Any:
        total = 0.0
        for choice in range(chosen.shape[-1]):
            one = weights[..., choice : choice + 1]
            total = total + experts(self, x * one, ops.ones_like(one), chosen[..., choice : choice + 1])
        return total

    def renormalised(self: Any, x: Any) -> Any:
        weights, chosen = route(self, x)
        return shares(weights), chosen

    def fewer(self: Any, x: Any) -> Any:
        weights, chosen = route(self, x)
        return weights[..., :-1], chosen[..., :-1]

    def half(self: Any, x: Any) -> Any:
        weight = self.logits.weight.astype(ms.float16)
        logits = ops.matmul(x.astype(ms.float16), weight.T).astype(ms.float32)
        with planted(type(self.logits), "construct", lambda cell, x: logits):
            return route(self, x)

    def sigmoid(self: Any, x: Any) -> Any:
        scores = ops.sigmoid(self.logits(x))
        chosen = best(scores, self.count)
        return pick(scores, chosen), chosen

    def swapped_norms(self: Any, q: Any, k: Any) -> Any:
        return self.k_norm(q), self.q_norm(k)

    def behind(self: Any, x: Any, rotary: Any) -> Any:
        turned = turn(self, x, rotary)
        return (self.q_norm if x.shape[2] == self.heads else self.k_norm)(turned)

    def detached(self: Any, x: Any) -> Any:
        weights, chosen = route(self, x)
        return ops.stop_gradient(weights), chosen

    def one_detached(self: Any, x: Any, weights: Any, chosen: Any) -> Any:
        first = ops.stop_gradient(experts(self, x, weights[..., :1], chosen[..., :1]))
        return first + experts(self, x, weights[..., 1:], chosen[..., 1:])

    def reversed_choices(self: Any, x: Any) -> Any:
        weights, chosen = route(self, x)
        return ops.flip(weights, (-1,)), ops.flip(chosen, (-1,))

    def rows_of_one(self: Any, tokens: int, chosen: int) -> tuple[int, int]:
        return tokens * min(chosen, self.experts), 1

    def every_expert(self: Any, x: Any, weights: Any, chosen: Any) -> Any:
        total = 0.0
        for expert in range(COUNT):
            gate, up = ops.split(ops.matmul(x, self.gate_up_proj[expert].T), WIDTH, -1)
            y = ops.matmul(ops.silu(gate) * up, self.down_proj[expert].T)
            total = total + y * (weights * (chosen == expert)).sum(-1, keepdims=True)
        return total

    return {
        "nothing": (Experts, "compute", compute),
        "choices in another order": (SoftmaxRouter, "construct", reversed_choices),
        "blocks of one row": (BlockLayout, "sizes", rows_of_one),
        "every expert on every token": (Experts, "construct", every_expert),
        "experts transposed": (BlockLinear, "construct", transposed),
        "gate and up swapped": (BlockLinear, "construct", order(swapped)),
        "gate and up in turn": (BlockLinear, "construct", order(by_turns)),
        "experts in another order": (Experts, "construct", other_experts),
        "capacity": (Experts, "construct", capacity),
        "weights before the experts": (Experts, "construct", weighted_inputs),
        "renormalised": (SoftmaxRouter, "construct", renormalised),
        "one expert fewer": (SoftmaxRouter, "construct", fewer),
        "half precision": (SoftmaxRouter, "construct", half),
        "sigmoid": (SoftmaxRouter, "construct", sigmoid),
        "norms of heads swapped": (Qwen3Attention, "before_rotation", swapped_norms),
        "norms behind the rotation": [
            (Qwen3Attention, "before_rotation", lambda self, q, k: (q, k)),
            (Qwen3Attention, "turn", behind),
        ],
        "norms of heads left out": (Qwen3Attention, "before_rotation", lambda self, q, k: (q, k)),
        "router not trained": (SoftmaxRouter, "construct", detached),
        "experts of one choice not trained": (Experts, "construct", one_detached),
    }
