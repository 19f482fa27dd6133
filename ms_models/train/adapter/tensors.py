"""`Tensors`: the tensors of an adapted model and how any layout cuts them. Imports no MindSpore.

What a family knows from its tables (`mappings/rank_cuts.py`) is here read off the model: a sharded cell of converted
code says of each parameter which axis it cuts, and the list of blocks says what belongs to which stage of a pipeline.
It is written beside the weights of a checkpoint, so that the checkpoint can be read without the code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mappings.arrangement import Arrangement, Shape, concat
from mappings.errors import UserError
from mappings.holdings import Held
from mappings.layout import ParallelLayout
from mappings.shards import chunks_of_stage

FILE = "adapter.json"
"""Name of the description in a checkpoint."""
FORMAT = "msmigrate-adapter-1"


@dataclass(frozen=True)
class Whole:
    """One tensor of the model, uncut."""

    name: str
    shape: Shape
    axis: int | None = None
    """Axis that tensor-parallel ranks share out; None where each has the whole."""
    parts: Shape = ()
    """Lengths of the parts along the axis, each of which is shared out for itself; a single one may need padding."""
    block: int | None = None
    """Number of the block that it belongs to; None for what is outside of the blocks."""
    aliases: tuple[str, ...] = ()
    """Further names of the same parameter."""

    def local(self, tp: int, index: int) -> Arrangement:
        """What tensor-parallel rank `index` of `tp` holds, padding included."""
        whole = Arrangement.of(self.name, self.shape)
        if self.axis is None or tp == 1:
            return whole
        found, start = [], 0
        for part in self.parts:
            share = -(-part // tp)
            first, last = min(index * share, part), min((index + 1) * share, part)
            piece = whole.slice(self.axis, start + first, start + last)
            found.append(piece.pad(self.axis, share))
            start += part
        return concat(self.axis, found)


@dataclass(frozen=True)
class Tensors:
    """The tensors of a model."""

    wholes: tuple[Whole, ...]
    blocks: int | None = None
    """Number of blocks; None where the list is not named."""
    about: Mapping[str, Any] | None = None
    """Where the model is from: repository, module and class."""

    @cached_property
    def by_name(self) -> dict[str, Whole]:
        """Tensors by name, aliases left out."""
        return {whole.name: whole for whole in self.wholes}

    def chunks(self, layout: ParallelLayout, stage: int) -> list[range]:
        """Blocks of each chunk of a pipeline stage.

        Raises:
            UserError: there are fewer blocks than chunks.
        """
        blocks = self.blocks or 0
        if layout.pp > 1 and layout.pp * layout.vpp > blocks:
            fit = f"vpp={blocks // layout.pp} would fit" if blocks >= layout.pp else f"pp={max(blocks, 1)} would fit"
            raise UserError(
                f"layout: pp={layout.pp} x vpp={layout.vpp} stages, but the model has {blocks} blocks; {fit}"
            )
        return chunks_of_stage(blocks, layout, stage)

    def held(self, layout: ParallelLayout, rank: int) -> dict[str, Held]:
        """What a rank trains, by name; optimizer sharding is left aside.

        The first and the last stage hold everything outside of the blocks: either may use it, and their gradients are
        added. What stages between need of it to compute the further inputs of their blocks is not trained there.

        Raises:
            UserError: see `chunks`.
        """
        here = layout.coordinates(rank)
        tp, pp = here["tp"], here["pp"]
        chunks = self.chunks(layout, pp)
        result = {}
        for whole in self.wholes:
            if whole.block is None:
                if 0 < pp < layout.pp - 1:
                    continue
            elif layout.pp > 1 and not any(whole.block in chunk for chunk in chunks):
                continue
            is_cut = whole.axis is not None and layout.tp > 1
            copies = (tp,) if is_cut else tuple(range(layout.tp))
            is_at_both_ends = layout.pp > 1 and whole.block is None
            is_counted = tp == copies[0] and not (here["cp"] or here["dp"] or (is_at_both_ends and pp))
            result[whole.name] = Held(
                whole.name,
                whole.local(layout.tp, tp),
                Arrangement.of(whole.name, whole.shape),
                "adapted",
                False,
                copies,
                is_counted,
                is_at_both_ends,
            )
        return result

    def stored(self, layout: ParallelLayout, rank: int, *, states: bool) -> dict[str, Arrangement]:
        """The tensors in a rank's file of a checkpoint.

        Args:
            layout: of the checkpoint.
            rank: of its world.
            states: whether optimizer states of the parameters are meant.
        """
        held = {name: one.arrangement for name, one in self.held(layout, rank).items()}
        if layout.zero < (1 if states else 3):
            return held
        place = layout.coordinates(rank)["dp"]
        return {name: _share(arrangement, layout.dp, place) for name, arrangement in held.items()}

    def dump(self) -> bytes:
        """The description as JSON."""
        body = {
            "format": FORMAT,
            "about": self.about,
            "blocks": self.blocks,
            "tensors": [asdict(whole) for whole in self.wholes],
        }
        return (json.dumps(body, indent=1) + "\n").encode()

    @classmethod
    def read(cls, directory: Path) -> Tensors:
        """The description in a checkpoint.

        Raises:
            UserError: there is none, or it is malformed.
        """
        path = directory / FILE
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["format"] != FORMAT:
                raise UserError(f"{path}: format is not {FORMAT!r}")
            wholes = tuple(
                Whole(
                    one["name"],
                    tuple(one["shape"]),
                    one["axis"],
                    tuple(one["parts"]),
                    one["block"],
                    tuple(one["aliases"]),
                )
                for one in body["tensors"]
            )
            return cls(wholes, body["blocks"], body["about"])
        except OSError as error:
            raise UserError(f"{directory}: holds no checkpoint of converted code ({FILE}: {error.strerror})") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(f"{path}: malformed ({type(error).__name__}: {error})") from error


def _share(arrangement: Arrangement, replicas: int, place: int) -> Arrangement:
    """Rows that one of the replicas keeps, as `mappings/rank_cuts.py` divides them."""
    if not arrangement.shape:
        return arrangement
    rows = -(-arrangement.shape[0] // replicas)
    return arrangement.pad(0, rows * replicas).slice(0, place * rows, (place + 1) * rows)
