"""Faults planted into a Mistral: its window; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("mistral", {})
ATTENTION = "model.layers.0.self_attn"
OUT = f"{ATTENTION}.o_proj"
PLANTS = {
    "window one longer": Plant("F", OUT, "`<=` for `<`", ATTENTION),
    "window one shorter": Plant("F", OUT, "counted without the token itself", ATTENTION),
    "no window": Plant("F", OUT, "sliding_window overlooked", ATTENTION),
    "window to both sides": Plant("F", OUT, "the causal mask replaced, not narrowed", ATTENTION),
}
BENIGN = ("nothing", "recomputing", "queries in blocks")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families import causal_lm, decoder
    from ms_models.layers import core
    from ms_models.layers.attention import LOWEST

    window, attention, recompute = decoder.within_window, core.grouped_attention, causal_lm.recompute

    def wider(by: int) -> Replacement:
        return decoder, "within_window", lambda bias, size, at=None: window(bias, size + by, at)

    def both_sides(bias: Any, size: int, at: Any = None) -> Any:
        places = ops.arange(bias.shape[-1])
        near = ops.abs(places - places.expand_dims(-1)) < size
        return ops.where(near, 0.0, LOWEST).expand_dims(0).expand_dims(0) + ops.zeros_like(bias)

    def in_blocks(q: Any, k: Any, v: Any, bias: Any, *rest: Any) -> Any:
        cuts = range(0, q.shape[1], 16)
        return ops.concat([attention(q[:, c : c + 16], k, v, bias[:, :, c : c + 16], *rest) for c in cuts], 1)

    return {
        "nothing": (decoder, "within_window", window),
        "recomputing": (causal_lm, "recompute", lambda kind, *rest: recompute("full", *rest)),
        "queries in blocks": (core, "grouped_attention", in_blocks),
        "window one longer": wider(1),
        "window one shorter": wider(-1),
        "no window": (decoder, "within_window", lambda bias, size, at=None: bias),
        "window to both sides": (decoder, "within_window", both_sides),
    }
