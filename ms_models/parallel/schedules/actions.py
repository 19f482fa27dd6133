"""`Schedule`: what every pipeline stage does, in order, as a table of plain data.

A model is cut into pp * vpp consecutive chunks of layers, dealt round robin: position p in the model is chunk
p // pp of stage p % pp (`mappings/shards.py` says which layers that is). Activations move from a position to the next
one, gradients to the one before.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeAlias


class Kind(StrEnum):
    """What a stage computes for one micro-batch in one chunk."""

    FORWARD = "forward"
    BACKWARD = "backward"
    """Both parts at once."""
    BACKWARD_INPUT = "backward_input"
    """The gradient of the chunk's input: what the stage before waits for."""
    BACKWARD_WEIGHT = "backward_weight"
    """The gradients of the chunk's weights: nobody waits for them before the update."""


class Payload(StrEnum):
    """What crosses between stages."""

    ACTIVATION = "activation"
    GRADIENT = "gradient"


@dataclass(frozen=True)
class Compute:
    """One computation of a stage."""

    kind: Kind
    micro_batch: int
    chunk: int = 0
    """Which of the stage's vpp chunks."""

    def __str__(self) -> str:
        return f"{self.kind}({self.micro_batch}, chunk {self.chunk})"


class Transfer(NamedTuple):
    """One tensor on its way between two positions in the model."""

    payload: Payload
    micro_batch: int
    source: int
    """Position that computes the tensor."""
    target: int
    """Position that needs it."""

    def __str__(self) -> str:
        return f"{self.payload}({self.micro_batch}, position {self.source} to {self.target})"


@dataclass(frozen=True)
class Send:
    """The source's side of a transfer."""

    transfer: Transfer

    @property
    def micro_batch(self) -> int:
        """Of the tensor."""
        return self.transfer.micro_batch

    def __str__(self) -> str:
        return f"send {self.transfer}"


@dataclass(frozen=True)
class Receive:
    """The target's side of a transfer."""

    transfer: Transfer

    @property
    def micro_batch(self) -> int:
        """Of the tensor."""
        return self.transfer.micro_batch

    def __str__(self) -> str:
        return f"receive {self.transfer}"


Action: TypeAlias = Compute | Send | Receive
Order: TypeAlias = tuple[Compute, ...]
"""Computations of one stage, without what crosses between stages."""


@dataclass(frozen=True)
class Schedule:
    """A table: for each stage its actions, in order. `check_schedule` judges whether they work together."""

    name: str
    pp: int
    vpp: int
    micro_batches: int
    stages: tuple[tuple[Action, ...], ...]

    @property
    def positions(self) -> int:
        """Number of chunks of the whole model."""
        return self.pp * self.vpp

    def position(self, stage: int, chunk: int) -> int:
        """Where a chunk of a stage lies in the model."""
        return chunk * self.pp + stage

    def stage(self, position: int) -> int:
        """The stage that holds a position."""
        return position % self.pp

    def order(self, stage: int) -> Order:
        """The computations of a stage."""
        return tuple(action for action in self.stages[stage] if isinstance(action, Compute))

    def needs(self, stage: int, action: Compute) -> Transfer | None:
        """The tensor that has to arrive from another stage before a computation."""
        here = self.position(stage, action.chunk)
        if action.kind is Kind.FORWARD and here > 0:
            return Transfer(Payload.ACTIVATION, action.micro_batch, here - 1, here)
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and here < self.positions - 1:
            return Transfer(Payload.GRADIENT, action.micro_batch, here + 1, here)
        return None

    def gives(self, stage: int, action: Compute) -> Transfer | None:
        """The tensor of a computation that another stage needs."""
        here = self.position(stage, action.chunk)
        if action.kind is Kind.FORWARD and here < self.positions - 1:
            return Transfer(Payload.ACTIVATION, action.micro_batch, here, here + 1)
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT) and here > 0:
            return Transfer(Payload.GRADIENT, action.micro_batch, here, here - 1)
        return None
