"""Switches of torch's back ends and compiler, as values that keep what is written and change nothing.

They choose between kernels or compile options of torch; a program that sets one and reads it back works as before.
"""

from __future__ import annotations

from typing import Any


class Settings:
    """A namespace of switches with torch's default values."""

    def __init__(self, **defaults: Any) -> None:
        self.__dict__.update(defaults)


matmul = Settings(
    allow_tf32=False, allow_fp16_reduced_precision_reduction=True, allow_bf16_reduced_precision_reduction=True
)
"""`torch.backends.cuda.matmul`."""

cudnn = Settings(allow_tf32=True, benchmark=False, deterministic=False, enabled=True)
"""`torch.backends.cudnn`."""

inductor = Settings(
    coordinate_descent_tuning=False, epilogue_fusion=True, fx_graph_cache=True, assert_indirect_indexing=True
)
"""`torch._inductor.config`."""

triton = Settings(unique_kernel_names=True, cudagraphs=False, cudagraph_trees=True)
"""`torch._inductor.config.triton`."""

dynamo = Settings(cache_size_limit=8, automatic_dynamic_shapes=True)
"""`torch._dynamo.config`."""

functorch = Settings(enable_autograd_cache=True)
"""`torch._functorch.config`."""
