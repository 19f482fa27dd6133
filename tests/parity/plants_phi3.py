"""Faults planted into a Phi-3: order within fused tensors, its window; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("phi3", {})
ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"
OUT, DOWN = f"{ATTENTION}.o_proj", f"{MLP}.down_proj"
PLANTS = {
    "k, q, v": Plant("F", OUT, "order within the fused tensor", ATTENTION),
    "q, v, k": Plant("F", OUT, "order within the fused tensor", ATTENTION),
    "group by group": Plant("F", OUT, "as Megatron and InternLM2 fuse grouped heads", ATTENTION),
    "gate and up swapped": Plant("F", DOWN, "[up, gate] in one tensor", MLP),
    "window one longer": Plant("F", OUT, "`<=` for `<`", ATTENTION),
}
BENIGN = ("nothing", "q, k and v one by one")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.phi3.model import Phi3Attention as Attention
    from ms_models.families.phi3.model import Phi3MLP
    from ms_models.parallel.linear import ColumnParallelLinear

    project, window, linear = Attention.project, decoder.within_window, ColumnParallelLinear.construct

    def cut(sizes: list[int], order: tuple[int, int, int]) -> Replacement:
        def split(self: Any, x: Any) -> Any:
            heads = self.qkv_proj(x).reshape(*x.shape[:2], -1, self.width)
            parts = ops.split(heads, sizes, 2)
            return tuple(parts[index] for index in order)

        return Attention, "project", split

    def by_groups(self: Any, x: Any) -> Any:
        heads = self.qkv_proj(x).reshape(*x.shape[:2], 2, 5, self.width)
        q, k, v = ops.split(heads, [3, 1, 1], 3)
        return tuple(part.reshape(*x.shape[:2], -1, self.width) for part in (q, k, v))

    def one_by_one(self: Any, x: Any) -> Any:
        if not self.weight.name.endswith("qkv_proj.weight"):
            return linear(self, x)
        return ops.concat([ops.matmul(x, rows.T) for rows in ops.split(self.weight, [6 * 8, 2 * 8, 2 * 8], 0)], -1)

    def swapped(self: Any, x: Any) -> Any:
        up, gate = ops.split(self.gate_up_proj(x), 52, -1)
        return self.down_proj(ops.silu(gate) * up)

    return {
        "nothing": (Attention, "project", project),
        "q, k and v one by one": (ColumnParallelLinear, "construct", one_by_one),
        "k, q, v": cut([2, 6, 2], (1, 0, 2)),
        "q, v, k": cut([6, 2, 2], (0, 2, 1)),
        "group by group": (Attention, "project", by_groups),
        "gate and up swapped": (Phi3MLP, "construct", swapped),
        "window one longer": (decoder, "within_window", lambda bias, size, at=None: window(bias, size + 1, at)),
    }
