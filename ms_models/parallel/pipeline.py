"""Carries out a pipeline schedule: each stage computes, sends and receives what its table says.

A stage keeps the input of each chunk and micro-batch until its backward pass, which computes the chunk again: in
MindSpore a gradient is one function from inputs to gradients, so that what a forward pass keeps cannot be handed on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import mindspore as ms
from mindspore import Parameter, ParameterTuple, Tensor, ops

from ms_models.parallel.collectives import Transfer
from ms_models.parallel.place import Place
from ms_models.parallel.schedules import actions as table
from ms_models.parallel.schedules import build_schedule
from ms_models.parallel.schedules.actions import Compute, Kind, Schedule, Send
from ms_models.parallel.schedules.running import Transport

Inputs = tuple[Tensor, Tensor, Tensor]
"""Token ids, attention mask and labels of a micro-batch, each `[B, S]`; the same on every stage."""


class Staged(Protocol):
    """What the pipeline needs of a model."""

    place: Place
    config: Any

    def advance(
        self, x_BSM: Tensor | None, chunk: int, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """One chunk: hidden states, or the summed loss behind the last one."""

    def parameters_of(self, chunk: int) -> list[Parameter]:
        """Trainable parameters that a chunk uses."""


class Pipeline:
    """Forward and backward over micro-batches, on the stage of this rank, by the schedule of the model's place.

    Args:
        model: the part of a model that this rank holds.
        adder: for some parameters, a function that adds gradients of theirs to what the optimizer reads.
        compiled: `ms.jit`, or the identity.
    """

    def __init__(
        self,
        model: Staged,
        adder: Callable[[Sequence[Parameter]], Callable[[Sequence[Tensor]], None]],
        compiled: Callable[[Any], Any],
    ) -> None:
        self.model, self.place = model, model.place
        self.stage = self.place.mesh.coordinates["pp"]
        self.schedule = self.place.options.schedule_for(self.place.mesh.layout)
        self._chunks = [
            _Chunk(model, chunk, adder, compiled, splits=self.schedule == "zero_bubble")
            for chunk in range(len(self.place.chunks))
        ]
        self._table = cache(self._build)

    def accumulate(self, batches: Sequence[Inputs], scale: Tensor) -> list[Tensor]:
        """Adds the gradients of `scale` times the summed loss to the accumulators.

        Args:
            batches: the micro-batches of a step.
            scale: fp32 scalar.

        Returns:
            On the last stage, the summed loss of each micro-batch, not scaled; on the others nothing.

        Raises:
            UserError: the schedule takes another number of micro-batches.
        """
        schedule = self._table(len(batches))
        losses: list[Tensor] = []
        arrived: dict[table.Transfer, Tensor] = {}
        ready: dict[table.Transfer, Tensor] = {}
        inputs: dict[tuple[int, int], Tensor | None] = {}
        outer: dict[tuple[int, int], Tensor] = {}
        for action in schedule.stages[self.stage]:
            if isinstance(action, Compute):
                key = action.micro_batch, action.chunk
                chunk, batch = self._chunks[action.chunk], batches[action.micro_batch]
                needed = schedule.needs(self.stage, action)
                given = arrived.pop(needed) if needed is not None else None
                made: Tensor | None = None
                if action.kind is Kind.FORWARD:
                    inputs[key] = given
                    made = chunk.forward(given, batch)
                elif action.kind is Kind.BACKWARD_WEIGHT:
                    chunk.backward_weight(inputs.pop(key), batch, outer.pop(key))
                else:
                    seed = scale if chunk.is_last else given
                    assert seed is not None
                    if action.kind is Kind.BACKWARD:
                        made, loss = chunk.backward(inputs.pop(key), batch, seed)
                    else:
                        made, loss = chunk.backward_input(inputs[key], batch, seed)
                        outer[key] = seed
                    losses += [loss] if chunk.is_last else []
                gives = schedule.gives(self.stage, action)
                if gives is not None:
                    assert made is not None
                    ready[gives] = made
            elif isinstance(action, Send):
                self._move(action.transfer, ready.pop(action.transfer))
            else:
                template = self._template(batches[action.micro_batch][0])
                arrived[action.transfer] = self._move(action.transfer, template)
        assert not (arrived or ready or inputs or outer), "the table left something over"
        return losses

    def evaluate(self, batches: Sequence[Inputs]) -> list[Tensor]:
        """On the last stage, what the model measures of each micro-batch, `[2]`; on the others nothing.

        Of a model that measures nothing, the summed loss.
        """
        losses: list[Tensor] = []
        pp = self.place.mesh.layout.pp
        last = len(self._chunks) * pp - 1
        for number, batch in enumerate(batches):
            for position in range(last + 1):
                if position % pp != self.stage:
                    continue
                x = None
                if position:
                    arriving = table.Transfer(table.Payload.ACTIVATION, number, position - 1, position)
                    x = self._move(arriving, self._template(batch[0]))
                y = self._chunks[position // pp].value(x, batch)
                if position == last:
                    losses.append(y)
                else:
                    self._move(table.Transfer(table.Payload.ACTIVATION, number, position, position + 1), y)
        return losses

    def _build(self, micro_batches: int) -> Schedule:
        # Tensors meet in a sum, or in a broadcast of two: either way both sides wait for each other.
        return build_schedule(self.schedule, self.place.mesh.layout, micro_batches, Transport.ALL_REDUCE)

    def _move(self, transfer: table.Transfer, x: Tensor) -> Tensor:
        pp = self.place.mesh.layout.pp
        source, target = transfer.source % pp, transfer.target % pp
        first = source if (source + 1) % pp == target else target
        group = self.place.mesh.pair(first)
        stages = sorted({first, (first + 1) % pp})
        return _transfer(group, stages.index(source), stages.index(target))(x)

    def _template(self, input_ids: Tensor) -> Tensor:
        """Of the shape of hidden states between chunks."""
        place = self.place
        length = place.context.local_length(input_ids.shape[1]) if place.context.group.size > 1 else input_ids.shape[1]
        if place.options.sequence_parallel:
            length //= place.mesh.layout.tp
        return ops.zeros((input_ids.shape[0], length, self.model.config.hidden_size), place.compute_dtype or ms.float32)


_transfer = cache(Transfer)


class _Chunk:
    """The compiled functions of one chunk."""

    def __init__(
        self,
        model: Staged,
        chunk: int,
        adder: Callable[[Sequence[Parameter]], Callable[[Sequence[Tensor]], None]],
        compiled: Callable[[Any], Any],
        *,
        splits: bool,
    ) -> None:
        place = model.place
        self.is_first = place.is_first and chunk == 0
        self.is_last = place.is_last and chunk == len(place.chunks) - 1
        parameters = ParameterTuple(model.parameters_of(chunk))
        add = adder(parameters)
        is_last = self.is_last
        # The value of the last chunk is asked for by evaluations only.
        measures = self.is_last and hasattr(model, "measure")

        def value(x: Tensor | None, input_ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
            if measures:
                return model.measure(x, chunk, input_ids, labels, mask)  # type: ignore[attr-defined]
            return model.advance(x, chunk, input_ids, labels, mask)

        def weighted(
            x: Tensor | None, input_ids: Tensor, mask: Tensor, labels: Tensor, seed: Tensor
        ) -> tuple[Tensor, Tensor]:
            y = model.advance(x, chunk, input_ids, labels, mask)
            # The gradient of this number with respect to anything is that of the loss.
            return (y * seed if is_last else (y * seed).sum()), y

        whole = ms.value_and_grad(weighted, None if self.is_first else 0, parameters, has_aux=True)
        of_input = ms.value_and_grad(weighted, 0, has_aux=True)
        of_weights = ms.value_and_grad(weighted, None, parameters, has_aux=True)

        def backward(
            x: Tensor | None, input_ids: Tensor, mask: Tensor, labels: Tensor, seed: Tensor
        ) -> tuple[Tensor, Tensor]:
            (_, y), (dx, gradients) = whole(x, input_ids, mask, labels, seed)
            add(gradients)
            return dx, y

        def backward_weight(x: Tensor | None, input_ids: Tensor, mask: Tensor, labels: Tensor, seed: Tensor) -> Tensor:
            (_, y), gradients = of_weights(x, input_ids, mask, labels, seed)
            add(gradients)
            return y

        def backward_input(
            x: Tensor, input_ids: Tensor, mask: Tensor, labels: Tensor, seed: Tensor
        ) -> tuple[Tensor, Tensor]:
            (_, y), dx = of_input(x, input_ids, mask, labels, seed)
            return dx, y

        self._value = compiled(value)
        self._backward = compiled(backward_weight if self.is_first else backward)
        self._weight = compiled(backward_weight) if splits else None
        self._input = compiled(backward_input) if splits and not self.is_first else None

    def value(self, x: Tensor | None, batch: Inputs) -> Tensor:
        """Hidden states, or what an evaluation asks for."""
        result: Tensor = self._value(x, *batch)
        return result

    def forward(self, x: Tensor | None, batch: Inputs) -> Tensor | None:
        """What the next chunk reads; nothing for the last one, whose backward pass computes the loss."""
        return None if self.is_last else self.value(x, batch)

    def backward(self, x: Tensor | None, batch: Inputs, seed: Tensor) -> tuple[Tensor | None, Tensor]:
        """Adds the gradients of the weights; gives that of the input, and the output.

        Args:
            x: input of the chunk.
            batch: the micro-batch.
            seed: gradient of the output, or what the loss is multiplied by.
        """
        if self.is_first:
            return None, self._backward(x, *batch, seed)
        dx, y = self._backward(x, *batch, seed)
        return dx, y

    def backward_input(self, x: Tensor | None, batch: Inputs, seed: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """The gradient of the input alone, and the output."""
        if self._input is None:
            return None, None
        dx, y = self._input(x, *batch, seed)
        return dx, y

    def backward_weight(self, x: Tensor | None, batch: Inputs, seed: Tensor) -> None:
        """Adds the gradients of the weights alone."""
        assert self._weight is not None
        self._weight(x, *batch, seed)
