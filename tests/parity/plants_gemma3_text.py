"""Faults planted into a Gemma 3: two rotary bases, norms of heads, windows; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("gemma3_text", {})
ATTENTION, LATER = "model.layers.0.self_attn", "model.layers.1.self_attn"
PLANTS = {
    "rotary bases swapped": Plant("F", f"{ATTENTION}.o_proj", "local for global", ATTENTION),
    "local base in all layers": Plant("F", f"{LATER}.o_proj", "rope_local_base_freq taken for the only one", LATER),
    "global base in all layers": Plant("F", f"{ATTENTION}.o_proj", "rope_theta taken for the only one", ATTENTION),
    "norms of heads without the one": Plant(
        "F", f"{ATTENTION}.q_norm", "a Qwen3's norm", (f"{ATTENTION}.q_norm", f"{ATTENTION}.k_norm")
    ),
    "norms of heads behind the rotation": Plant("F", f"{ATTENTION}.q_norm", "order of norm and rotation", ATTENTION),
    "window one longer": Plant("F", f"{ATTENTION}.o_proj", "`<=` for `<`", ATTENTION),
    "pattern of layers shifted": Plant("F", f"{ATTENTION}.o_proj", "layers counted from 1", ATTENTION),
}
BENIGN = ("nothing", "norms in one product")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.gemma3_text.model import Gemma3Attention, Gemma3Model, Gemma3Rotary
    from ms_models.families.llama.model import LlamaAttention
    from ms_models.layers.norm import OffsetRMSNorm

    tables, turn, window = Gemma3Rotary.construct, Gemma3Attention.turn, decoder.within_window
    scale, biases, plain = OffsetRMSNorm.scale, decoder.Decoder.biases, LlamaAttention.turn
    width = 10  # of a head

    def chosen(*order: int) -> Replacement:
        return Gemma3Rotary, "construct", lambda self, *ids: tuple(tables(self, *ids)[index] for index in order)

    def behind(self: Any, x: Any, rotary: Any) -> Any:
        return (self.q_norm if x.shape[2] == self.heads else self.k_norm)(turn(self, x, rotary))

    def in_one(self: Any, x: Any) -> Any:
        return x * (ops.rsqrt((x * x).mean(-1, keep_dims=True) + self.eps) * (1.0 + self.weight))

    def shifted(self: Any, x: Any, rotary: Any) -> Any:
        return plain(self, x, rotary[:2] if self.is_local else rotary[2:])

    return {
        "nothing": (Gemma3Rotary, "construct", tables),
        "norms in one product": (OffsetRMSNorm, "construct", in_one),
        "rotary bases swapped": chosen(2, 3, 0, 1),
        "local base in all layers": chosen(2, 3, 2, 3),
        "global base in all layers": chosen(0, 1, 0, 1),
        "norms of heads without the one": (
            OffsetRMSNorm,
            "scale",
            lambda self: scale(self) - float(self.weight.shape[0] == width),
        ),
        "norms of heads behind the rotation": [
            (Gemma3Attention, "before_rotation", lambda self, q, k: (q, k)),
            (Gemma3Attention, "turn", behind),
        ],
        "window one longer": (decoder, "within_window", lambda bias, size, at=None: window(bias, size + 1, at)),
        "pattern of layers shifted": [
            (Gemma3Model, "biases", lambda self, *args: biases(self, *args)[::-1]),
            (Gemma3Attention, "turn", shifted),
        ],
    }
