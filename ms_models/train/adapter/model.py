"""`AdaptedModel`: a model of converted code, as the runner sees models."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
from mindspore import Parameter, Tensor, nn

from mappings.errors import UserError
from mappings.holdings import Held
from mappings.parallel_options import ParallelOptions
from ms_models.parallel.mesh import Mesh
from ms_models.train.adapter.blocks import Blocks, Leave
from ms_models.train.adapter.forward import Forward
from ms_models.train.adapter.origin import AdaptedOrigin, read_buffers
from ms_models.train.adapter.place import AdaptedPlace
from ms_models.train.adapter.tensors import Tensors, Whole
from ms_models.train.config.adapter import AdapterConfig


class AdaptedModel(nn.Cell):
    """A model of converted code in a place, with the methods of `ms_models.families.CausalLM` that training uses.

    Parameters have the names by which the model itself has them, whatever stands around it here.

    Args:
        module: the model, whole or cut over tensor-parallel ranks.
        config: of the adapter.
        mesh: of this rank.
        options: how ranks work together.

    Raises:
        UserError: forward, blocks or layout do not fit.

    Attributes:
        held: by parameter name, what this rank trains.
        body: `layers`, the blocks that stage 3 of ZeRO gathers one by one.
        config: `hidden_size`, width of what passes between stages; known after `take_over`.
    """

    def __init__(self, module: nn.Cell, config: AdapterConfig, mesh: Mesh, options: ParallelOptions) -> None:
        super().__init__(auto_prefix=False)
        layout = mesh.layout
        names = parameter_names(module)
        self.blocks = None if config.blocks is None else Blocks(module, config.blocks)
        about = {"repository": config.repository, "module": config.module, "class": config.class_name}
        tensors = Tensors(_wholes(names, config.blocks), None if self.blocks is None else len(self.blocks), about)
        self.adapter, self.mesh = config, mesh
        self.place = AdaptedPlace(mesh, tensors, options)
        self.held: dict[str, Held] = self.place.held
        _check_cut(names, mesh, config)
        if options.recompute == "block":
            assert self.blocks is not None, "checked before the start"
            for cell in self.blocks.cells:
                cell.recompute()
        self.takes_turns = layout.pp > 1 or layout.zero == 3
        self.forward_of = Forward(module, config)
        if self.takes_turns:
            assert self.blocks is not None, "checked before the start"
            self.blocks.take_over()
            self.layers = self.blocks.layers
        for parameter, own in names:
            parameter.name = own[0]
        self.names = names
        self.body = SimpleNamespace(layers=self.blocks.layers if self.takes_turns and self.blocks else [])
        self.config = SimpleNamespace(hidden_size=0)
        self.origin = AdaptedOrigin(tensors, {})

    def get_parameters(self, expand: bool = True) -> Iterator[Parameter]:
        """Parameters of this rank, those that it holds for the run; stages between the ends hold blocks only."""
        return (parameter for parameter, own in self.names if own[0] in self.held)

    def trainable_params(self, recurse: bool = True) -> list[Parameter]:
        """Those that are not frozen."""
        return [parameter for parameter in self.get_parameters() if parameter.requires_grad]

    def loss(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Summed loss and the number of labels that count, fp32 scalars; see `Forward`."""
        return self.forward_of(input_ids, labels, attention_mask)

    def advance(
        self, x: Tensor | None, chunk: int, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """One chunk of this pipeline stage: hidden states for the next one, or the summed loss behind the last.

        Args:
            x: what the chunk before gave; not used by the first of all.
            chunk: which of this stage's chunks.
            input_ids: `[B, S]`, the same on every stage.
            labels: see `Forward`.
            attention_mask: see `Forward`.
        """
        span, is_first, is_last = self.part(chunk)
        return self.through(span, None if is_first else x, input_ids, labels, attention_mask, is_last=is_last)

    def part(self, chunk: int) -> tuple[range, bool, bool]:
        """The blocks of a chunk, and whether the model begins and ends there."""
        is_last = self.place.is_last and chunk == len(self.place.chunks) - 1
        return self.place.chunks[chunk], self.place.is_first and chunk == 0, is_last

    def through(
        self,
        span: range,
        x: Tensor | None,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None,
        *,
        is_last: bool,
        measured: bool = False,
    ) -> Tensor:
        """Some blocks and, at the ends, what stands around them; see `advance`. PyNative only.

        Args:
            span: the blocks.
            x: hidden states to begin with; None: those of forward itself.
            input_ids: see `advance`.
            labels: see `advance`.
            attention_mask: see `advance`.
            is_last: whether forward goes on behind them, to the loss.
            measured: it shall give what `Forward.measure` does then.

        Raises:
            UserError: forward does not call the blocks in their order.
        """
        assert self.blocks is not None
        channel = self.blocks.channel
        channel.open((span.start, span.stop), x, is_last=is_last)
        try:
            if measured:
                total = self.forward_of.measure(input_ids, labels, attention_mask)
            else:
                total = self.forward_of(input_ids, labels, attention_mask)[0]
            if is_last:
                return total
        except Leave:
            assert channel.leaving is not None
            return channel.leaving
        finally:
            channel.close()
        raise UserError(
            f"model.adapter.blocks: forward did not call block {span.stop - 1} of {self.blocks.name!r} while it "
            "computed a stage; only a list whose blocks are called one after the other can be taken apart"
        )

    def parameters_of(self, chunk: int) -> list[Parameter]:
        """Trainable parameters that a chunk of this stage uses: of its blocks, at the ends those outside of blocks."""
        wholes = self.place.tensors.by_name
        if self.mesh.layout.pp == 1:
            return self.trainable_params()
        place, last = self.place, len(self.place.chunks) - 1
        at_an_end = (place.is_first and chunk == 0) or (place.is_last and chunk == last)
        result = []
        for parameter in self.trainable_params():
            block = wholes[parameter.name].block
            if at_an_end if block is None else block in place.chunks[chunk]:
                result.append(parameter)
        return result

    def buffers(self) -> dict[str, np.ndarray]:
        """Copies of the tensors that are saved with the model, but not trained, by name."""
        return read_buffers(self.forward_of.module)

    def keep_own_blocks(self) -> None:
        """Lets go of the blocks of other stages."""
        if self.mesh.layout.pp > 1:
            assert self.blocks is not None
            self.blocks.keep(self.place.chunks)
            held = [(parameter, own) for parameter, own in self.names if own[0] in self.held]
            for parameter, own in held:
                parameter.name = own[0]
            self.names = held


def parameter_names(module: nn.Cell) -> list[tuple[Parameter, list[str]]]:
    """Every parameter with its dotted names, in the order of the cells; several where it is shared."""
    found: dict[int, tuple[Parameter, list[str]]] = {}
    for name, parameter in _named(module, ""):
        found.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(found.values())


def _named(cell: nn.Cell, prefix: str) -> Iterator[tuple[str, Parameter]]:
    for key, parameter in cell._params.items():
        if parameter is not None:
            yield f"{prefix}{key}", parameter
    for key, child in cell._cells.items():
        if child is not None:
            yield from _named(child, f"{prefix}{key}.")


def _wholes(names: list[tuple[Parameter, list[str]]], blocks: str | None) -> tuple[Whole, ...]:
    result = []
    for parameter, (name, *aliases) in names:
        piece = getattr(parameter, "piece", None)
        shape = tuple(parameter.shape) if piece is None else tuple(piece.shape)
        number = None
        if blocks is not None and name.startswith(f"{blocks}."):
            number = int(name.removeprefix(f"{blocks}.").partition(".")[0])
        axis, parts = (None, ()) if piece is None else (piece.axis, tuple(piece.parts))
        result.append(Whole(name, shape, axis, parts, number, tuple(aliases)))
    return tuple(result)


def _check_cut(names: list[tuple[Parameter, list[str]]], mesh: Mesh, config: AdapterConfig) -> None:
    if mesh.layout.tp > 1 and not any(hasattr(parameter, "piece") for parameter, _ in names):
        raise UserError(
            f"layout: tp={mesh.layout.tp}, but no layer of {config.class_name} is cut; the report of "
            "`msmigrate code --shard` says why, take dp instead"
        )
