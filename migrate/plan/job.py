"""`Job`: what a plan is made for, and `Choice`: one way to do it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions

GIB = 1 << 30
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
"""Of one activation, by format of the computation."""


@dataclass(frozen=True)
class Job:
    """A training step of a model on some devices."""

    devices: int
    memory: int
    """Of one device, bytes."""
    seq_length: int
    """Tokens per sequence."""
    global_batch: int
    """Sequences per optimizer step."""
    node_size: int = 8
    """Devices of one machine; tensor parallelism stays inside."""
    precision: str = "bf16"
    """Format of the computation, a key of `BYTES`."""
    reserve: float = 0.1
    """Share of the memory that is left to the framework, its communication buffers and fragmentation."""
    recompute: str | None = None
    """A policy of `mappings.parallel_options.RECOMPUTE` to keep to; None chooses."""

    def __post_init__(self) -> None:
        for name in ("devices", "memory", "seq_length", "global_batch", "node_size"):
            if getattr(self, name) < 1:
                raise UserError(f"plan: {name} must be at least 1, found {getattr(self, name)}")
        if self.precision not in BYTES:
            raise UserError(f"plan: precision must be one of {', '.join(BYTES)}, found {self.precision!r}")
        if not 0 <= self.reserve < 1:
            raise UserError(f"plan: reserve must be a share from 0 to below 1, found {self.reserve}")
        if self.devices > self.node_size and self.devices % self.node_size:
            raise UserError(
                f"plan: {self.devices} devices are no whole nodes of {self.node_size}; "
                f"{self.devices // self.node_size * self.node_size} would be"
            )

    @property
    def usable(self) -> int:
        """Bytes of a device for the model."""
        return int(self.memory * (1 - self.reserve))

    @property
    def bytes_per_activation(self) -> int:
        """Of one number between layers."""
        return BYTES[self.precision]


@dataclass(frozen=True)
class Choice:
    """A layout with everything else that memory and time depend on."""

    layout: ParallelLayout
    micro_batch: int
    """Sequences per forward pass of a rank."""
    micro_batches: int
    """Forward passes of a rank per step."""
    recompute: str = "none"
    sequence_parallel: bool = False
    schedule: str = "1f1b"
    context: str = "ring"
    bucket_mib: float = 32.0
    """See `ParallelOptions`."""

    @property
    def options(self) -> ParallelOptions:
        """As a run configuration has them."""
        return ParallelOptions(
            self.sequence_parallel,
            self.context,
            self.recompute,
            self.schedule if self.layout.pp > 1 else None,
            self.bucket_mib,
        )

    @property
    def kept_policy(self) -> str:
        """What is computed again: ZeRO 3 computes each layer again whatever the policy says."""
        return "block" if self.layout.zero == 3 else self.recompute

    def tokens(self, seq_length: int) -> int:
        """Of a micro-batch on one rank; context-parallel ranks share a sequence."""
        return self.micro_batch * seq_length // self.layout.cp

    def with_layout(self, **axes: int) -> Choice:
        """The same with other sizes of axes."""
        return replace(self, layout=replace(self.layout, **axes))
