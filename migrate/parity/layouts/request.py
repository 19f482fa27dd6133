"""`Request`: the layout a person asks for, and the batch that its ranks can share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from mappings.errors import UserError
from mappings.families import Family
from mappings.holdings import check_trainable
from mappings.layout import ParallelLayout
from mappings.parallel_options import RING, ParallelOptions

SWITCHES = {"true": True, "false": False}


@dataclass(frozen=True)
class Request:
    """How the MindSpore side is divided."""

    layout: ParallelLayout = field(default_factory=ParallelLayout)
    options: ParallelOptions = field(default_factory=ParallelOptions)

    @classmethod
    def read(cls, text: str) -> Request:
        """From `tp=2,pp=2,sequence_parallel=true`: axes of the layout, and options of `parallel`.

        Raises:
            UserError: an unknown name, or a value that does not fit.
        """
        axes = {one.name for one in fields(ParallelLayout)}
        options = {one.name: one.type for one in fields(ParallelOptions)}
        given: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in axes | options.keys():
                near = get_close_matches(name, [*axes, *options], 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(axes | options.keys()))}"
                raise UserError(f"--layout: {part.strip()!r} is no NAME=VALUE of a layout; {hint}")
            given[name] = _value(name, value)
        layout = ParallelLayout.from_dict({name: value for name, value in given.items() if name in axes})
        return cls(layout, ParallelOptions(**{name: value for name, value in given.items() if name in options}))

    def check(self, family: Family, config: Mapping[str, Any], spelling: str, length: int, encoder: bool) -> None:
        """Refuses what the ranks would refuse after their start.

        Raises:
            UserError: names the axis, and what would fit.
        """
        layout = self.layout
        if encoder and (layout.pp > 1 or layout.cp > 1 or layout.zero == 3):
            raise UserError(f"--layout: {layout}: encoders are cut over tp and replicated over dp, nothing else")
        if encoder and self.options.recompute != "none":
            raise UserError(f"--layout: recompute={self.options.recompute}: encoders know 'none' only; leave it out")
        if layout.zero == 3 and self.options.recompute != "none":
            raise UserError(f"--layout: recompute={self.options.recompute}: with zero=3 each layer is computed again "
                            "anyway; leave it out")  # fmt: skip
        check_trainable(family, config, layout, spelling)
        self.options.check(family, config, layout, length)

    @property
    def text(self) -> str:
        """What `read` makes this of."""
        words = [f"{name}={value}" for name, value in self.layout.to_dict().items()]
        chosen = {one.name: getattr(self.options, one.name) for one in fields(ParallelOptions)}
        words += [f"{name}={str(value).lower()}" for name, value in chosen.items() if value is not None]
        return ",".join(words)

    @property
    def rows(self) -> int:
        """Rows of the batch: for each replica at least two micro-batches, and as many as stages."""
        layout = self.layout
        return layout.dp * max(2, layout.pp)

    @property
    def parts(self) -> int:
        """What the length of the sequences must be a multiple of."""
        layout = self.layout
        chunks = 1 if layout.cp == 1 else layout.cp * (2 if self.options.context == RING else 1)
        return chunks * (layout.tp if self.options.sequence_parallel else 1)

    def __str__(self) -> str:
        defaults = ParallelOptions()
        chosen = {one.name: getattr(self.options, one.name) for one in fields(ParallelOptions)}
        words = [f"{name}={value}" for name, value in chosen.items() if value != getattr(defaults, name)]
        return " ".join([str(self.layout), *words])


def _value(name: str, text: str) -> int | bool | float | str:
    if text in SWITCHES:
        return SWITCHES[text]
    if name == "bucket_mib":
        try:
            return float(text)
        except ValueError as error:
            raise UserError(f"--layout: bucket_mib must be a number, found {text!r}") from error
    return int(text) if text.lstrip("-").isdecimal() else text
