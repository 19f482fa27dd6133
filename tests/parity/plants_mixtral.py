"""Faults planted into a Mixtral: weights of the choice, order of fused experts, windows; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("mixtral", {})
ATTENTION, BLOCK = "model.layers.0.self_attn", "model.layers.0.mlp"
CHOICE = f"{BLOCK}.gate:choice"
PLANTS = {
    "w3 in front of w1": Plant("W", f"{BLOCK}.experts.gate_up_proj", "[up, gate] in one tensor, in the conversion"),
    "experts one place on": Plant("W", f"{BLOCK}.experts.down_proj", "another expert's, off by one"),
    "choice not renormalised": Plant("F", CHOICE, "norm_topk_prob of another family"),
    "noise of the router left on": Plant("F", f"{BLOCK}.gate", "jitter while evaluating"),
    "second expert's weight by chance": Plant("F", CHOICE, "top-2 sampling of older routers"),
    "window one longer": Plant("F", f"{ATTENTION}.o_proj", "`<=` for `<`", ATTENTION),
}
BENIGN = ("nothing", "softmax of the chosen logits")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    import ms_models
    from ms_models.families import decoder
    from ms_models.layers.moe_router import SoftmaxRouter, best, pick, shares

    route, window, load = SoftmaxRouter.construct, decoder.within_window, ms_models.AutoModelForCausalLM.from_pretrained

    def loaded(suffix: str, change: Any) -> Replacement:
        def from_pretrained(*args: Any, **settings: Any) -> Any:
            model = load(*args, **settings)
            for parameter in model.get_parameters():
                if parameter.name.endswith(suffix):
                    parameter.set_data(ms.Tensor(change(parameter.asnumpy()).copy()))
            return model

        return ms_models.AutoModelForCausalLM, "from_pretrained", staticmethod(from_pretrained)

    def raw(self: Any, x: Any) -> Any:
        probabilities = ops.softmax(self.logits(x), -1)
        chosen = best(probabilities, self.count)
        return pick(probabilities, chosen), chosen

    def noisy(self: Any, x: Any) -> Any:
        noise = np.random.default_rng(0).uniform(0.99, 1.01, x.shape)
        return route(self, x * ms.Tensor(noise, ms.float32))

    def by_chance(self: Any, x: Any) -> Any:
        weights, chosen = route(self, x)
        kept = ms.Tensor(np.random.default_rng(0).random(weights.shape) < 2 * weights.asnumpy())
        return weights * kept.astype(ms.float32), chosen

    def of_chosen(self: Any, x: Any) -> Any:
        logits = self.logits(x)
        chosen = best(logits, self.count)
        return shares(ops.exp(pick(logits, chosen))), chosen

    return {
        "nothing": (SoftmaxRouter, "construct", route),
        "softmax of the chosen logits": (SoftmaxRouter, "construct", of_chosen),
        "w3 in front of w1": loaded("gate_up_proj", lambda w: np.concatenate(np.split(w, 2, 1)[::-1], 1)),
        "experts one place on": loaded("down_proj", lambda w: np.roll(w, 1, 0)),
        "choice not renormalised": (SoftmaxRouter, "construct", raw),
        "noise of the router left on": (SoftmaxRouter, "construct", noisy),
        "second expert's weight by chance": (SoftmaxRouter, "construct", by_chance),
        "window one longer": (decoder, "within_window", lambda bias, size, at=None: window(bias, size + 1, at)),
    }
