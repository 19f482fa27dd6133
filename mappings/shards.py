"""Which piece of which parameter a rank holds: the one place where a layout meets a family.

`weights` cuts checkpoints with it, `ms_models` loads and saves with it, `check` and `plan` judge with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Family, Parameter
from mappings.layout import ParallelLayout

AXIS_NAMES = ("rows", "columns")


@dataclass(frozen=True)
class Shard:
    """A rank's piece of one parameter: rows `start:stop` along `cut`, then `padding` zero rows.

    `start:stop` counts in the unpadded source, so `stop` never exceeds its size. A piece may be padding only.
    """

    parameter: Parameter
    start: int
    stop: int
    padding: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the piece, padding included."""
        shape = list(self.parameter.shape)
        if self.parameter.cut is not None:
            shape[self.parameter.cut] = self.stop - self.start + self.padding
        return tuple(shape)

    @property
    def is_whole(self) -> bool:
        """Whether the piece is the unpadded whole parameter."""
        return self.shape == self.parameter.shape and not self.padding


def check_layout(family: Family, config: Mapping[str, Any], layout: ParallelLayout) -> None:
    """Refuses a layout that does not fit the model, before anything starts.

    Raises:
        UserError: names the axis, the sizes that clash and a size that would fit.
    """
    dims = family.dims(config)
    for parameter in family.parameters(config):
        if parameter.cut is None or parameter.padded:
            continue
        pieces = parameter.shape[parameter.cut] // parameter.unit
        if pieces % layout.tp:
            unit = "heads" if parameter.layer_class == "attention" else AXIS_NAMES[parameter.cut]
            fit = max(n for n in range(1, layout.tp) if pieces % n == 0)
            raise UserError(
                f"layout: tp={layout.tp} does not divide the {pieces} {unit} of {parameter.name}; tp={fit} would"
            )
    if layout.pp * layout.vpp > dims["layers"]:
        raise UserError(f"layout: pp={layout.pp} x vpp={layout.vpp} stages, but the model has {dims['layers']} layers")


def padded_rows(parameter: Parameter, layout: ParallelLayout) -> int:
    """Length along `cut` after vocabulary padding, so that every tp rank holds the same number of rows."""
    assert parameter.cut is not None
    size = parameter.shape[parameter.cut]
    if not parameter.padded:
        return size
    multiple = layout.vocab_multiple * layout.tp
    return -(-size // multiple) * multiple


def shard(parameter: Parameter, layout: ParallelLayout, tp_rank: int) -> Shard:
    """The piece of `parameter` that tensor-parallel rank `tp_rank` holds."""
    if parameter.cut is None:
        return Shard(parameter, 0, 0, 0)
    size = parameter.shape[parameter.cut]
    rows = padded_rows(parameter, layout) // layout.tp
    start, stop = min(tp_rank * rows, size), min((tp_rank + 1) * rows, size)
    return Shard(parameter, start, stop, rows - (stop - start))


def layers_of_stage(layers: int, layout: ParallelLayout, pp_rank: int) -> range:
    """Decoder layers of a pipeline stage (vpp=1); the first `layers % pp` stages take one layer more."""
    base, extra = divmod(layers, layout.pp)
    start = pp_rank * base + min(pp_rank, extra)
    return range(start, start + base + (pp_rank < extra))


def rank_shards(family: Family, config: Mapping[str, Any], layout: ParallelLayout, rank: int) -> list[Shard]:
    """Every piece that `rank` holds.

    Raises:
        UserError: the layout does not fit the model, or asks for what no family supports yet.
    """
    if layout.pp > 1 or layout.ep > 1 or layout.cp > 1 or layout.zero:
        raise UserError(f"layout: {layout}: weights are cut over tp and replicated over dp, nothing else yet")
    check_layout(family, config, layout)
    tp_rank = layout.coordinates(rank)["tp"]
    return [shard(parameter, layout, tp_rank) for parameter in family.parameters(config)]
