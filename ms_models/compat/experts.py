"""Mixtures of experts: the decorator of transformers' expert classes."""

from __future__ import annotations

from functools import wraps
from typing import Any

from mindspore import Tensor, ops

_KNOWN = ("eager", "batched_mm", "grouped_mm", None)


def _apply_gate(self: Any, gate_up_out: Tensor) -> Tensor:
    """`act(gate) * up` of the two halves."""
    gate, up = ops.chunk(gate_up_out, 2, -1)
    return self.act_fn(gate) * up


def use_experts_implementation(
    experts_class: type | None = None,
    *,
    experts_interface: Any = None,
    is_concatenated: bool = True,
    is_transposed: bool = False,
    has_bias: bool = False,
    has_gate: bool = True,
    has_post_expert_norm: bool = False,
) -> Any:
    """The class runs as it is written, expert by expert.

    transformers replaces the loop by grouped matrix products, which compute the same and round otherwise; the CUDA
    kernels `deepgemm` and `sonicmoe` are refused by name.
    """

    def decorate(kind: Any) -> Any:
        init = kind.__init__

        @wraps(init)
        def __init__(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
            init(self, config, *args, **kwargs)
            chosen = getattr(config, "_experts_implementation", None)
            if chosen not in _KNOWN:
                raise NotImplementedError(f"experts {chosen!r} are CUDA kernels; use 'eager'")
            self.config = config
            self.has_gate, self.has_bias, self.has_post_expert_norm = has_gate, has_bias, has_post_expert_norm
            self.is_transposed, self.is_concatenated = is_transposed, is_concatenated

        if not hasattr(kind, "_apply_gate"):
            kind._apply_gate = _apply_gate
        kind.__init__ = __init__
        return kind

    return decorate if experts_class is None else decorate(experts_class)
