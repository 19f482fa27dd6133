"""The rules by which a layout cuts a family: heads and rows over tp, layers over pp, vocabulary padding.

`mappings/rank_cuts.py` applies them to every tensor of a model, for checkpoints and (`mappings/holdings.py`) for models
in training alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mappings.errors import UserError
from mappings.families import Atom, Family, Parameter
from mappings.layout import ParallelLayout

AXIS_NAMES = ("rows", "columns")


def check_cut(family: Family, config: Mapping[str, Any], layout: ParallelLayout) -> None:
    """Refuses a layout that the weights of a model cannot be cut for.

    Where several query heads share a key/value head, ranks may hold copies of it.

    Raises:
        UserError: names the axis, the sizes that clash and a size that would fit.
    """
    for atom in family.atoms(config).values():
        _check_tp(atom, layout)
    _check_stages(family, config, layout)
    experts = family.dims(config).get("experts")
    if layout.ep > 1 and not experts:
        raise UserError(f"layout: ep={layout.ep}, but the {family.name} family has no experts")
    if experts and experts % layout.ep:
        raise UserError(f"layout: ep={layout.ep} does not divide the {experts} experts")


def _check_tp(piece: Atom, layout: ParallelLayout) -> None:
    if piece.cut is None or piece.padded:
        return
    units = piece.shape[piece.cut] // piece.unit
    if units % layout.tp == 0:
        return
    if piece.grouped and layout.tp % units == 0:
        return
    unit = "heads" if piece.layer_class == "attention" else AXIS_NAMES[min(piece.cut, 1)]
    fit = max(n for n in range(1, layout.tp) if units % n == 0)
    raise UserError(f"layout: tp={layout.tp} does not divide the {units} {unit} of {piece.name}; tp={fit} would")


def _check_stages(family: Family, config: Mapping[str, Any], layout: ParallelLayout) -> None:
    layers = family.dims(config)["layers"]
    if layout.pp * layout.vpp > layers:
        fit = f"vpp={layers // layout.pp} would fit" if layers >= layout.pp else f"pp={layers} with vpp=1 would fit"
        raise UserError(f"layout: pp={layout.pp} x vpp={layout.vpp} stages, but the model has {layers} layers; {fit}")


def padded_rows(piece: Atom | Parameter, layout: ParallelLayout) -> int:
    """Length along `cut` after vocabulary padding, so that every tp rank holds the same number of rows."""
    assert piece.cut is not None
    size = piece.shape[piece.cut]
    if not piece.padded:
        return size
    multiple = layout.vocab_multiple * layout.tp
    return -(-size // multiple) * multiple


def tp_span(piece: Atom | Parameter, layout: ParallelLayout, tp_rank: int) -> tuple[int, int, int]:
    """Indices `start:stop` along `cut` that a tensor-parallel rank holds, and how many of zeros follow.

    Ranks hold equal runs. Where there are more ranks than key/value heads, neighbours hold copies of a head.
    """
    assert piece.cut is not None
    size = piece.shape[piece.cut]
    units = size // piece.unit
    if not piece.padded and units < layout.tp and isinstance(piece, Atom) and piece.grouped:
        start = tp_rank * units // layout.tp * piece.unit
        return start, start + piece.unit, 0
    rows = padded_rows(piece, layout) // layout.tp
    start, stop = min(tp_rank * rows, size), min((tp_rank + 1) * rows, size)
    return start, stop, rows - (stop - start)


def layers_of_stage(layers: int, layout: ParallelLayout, pp_rank: int) -> range:
    """Decoder layers of a pipeline stage (vpp=1); the first `layers % pp` stages take one layer more."""
    return _chunk(layers, layout.pp, pp_rank)


def chunks_of_stage(layers: int, layout: ParallelLayout, pp_rank: int) -> list[range]:
    """Decoder layers of each of the vpp chunks of a pipeline stage, in the order in which a micro-batch meets them.

    The interleaved schedule deals pp * vpp consecutive chunks round robin; the first ones take a layer more where the
    layers do not divide.
    """
    chunks = layout.pp * layout.vpp
    return [_chunk(layers, chunks, chunk) for chunk in range(pp_rank, chunks, layout.pp)]


def _chunk(layers: int, chunks: int, index: int) -> range:
    base, extra = divmod(layers, chunks)
    start = index * base + min(index, extra)
    return range(start, start + base + (index < extra))


def stages_of_layers(layers: int, layout: ParallelLayout) -> list[int]:
    """Pipeline stage of each decoder layer."""
    owner = {
        layer: stage
        for stage in range(layout.pp)
        for chunk in chunks_of_stage(layers, layout, stage)
        for layer in chunk
    }
    return [owner[layer] for layer in range(layers)]
