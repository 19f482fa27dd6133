"""`Blocks`: the named list of blocks of an adapted model, taken apart into chunks of a pipeline.

Forward of the model stays the one that was converted. What is taken out of its hands is the list it iterates over: each
block is behind a `Turn`, which knows the chunk that is being computed. Blocks before the chunk give back what they are
given, the first one of the chunk reads the hidden states that have arrived instead, and behind the last one forward is
left, by an exception, with the hidden states in hand. So a stage runs what stands before the blocks (from which their
further inputs come: tables of positions, masks) and, if it is the last one, what stands behind them.

PyNative only: a compiled graph can neither be left nor given a tensor on the way.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from mindspore import Tensor, nn

from mappings.errors import UserError
from ms_models.train.adapter.wording import kind_of


class Leave(Exception):
    """Forward is left behind the last block of a chunk."""


class Channel:
    """What passes between a stage and the blocks within forward."""

    def __init__(self, blocks: int) -> None:
        self.all = (0, blocks)
        self.close()
        self.leaving: Tensor | None = None
        self.hidden: Tensor | None = None
        """What forward gave the first block of all."""
        self.extras: list[Any] = []
        """And what it gave it besides."""

    def close(self) -> None:
        """Forward is as it was: every block, one after the other."""
        self.span, self.is_last = self.all, True
        self.arriving: Tensor | None = None

    def open(self, span: tuple[int, int], arriving: Tensor | None, *, is_last: bool) -> None:
        """Before forward is called: the blocks to compute, what they read, and whether forward goes on behind them."""
        self.span, self.arriving, self.is_last = span, arriving, is_last
        self.hidden, self.leaving, self.extras = None, None, []


class Further:
    """The further inputs of a call of a block, and the form of its result."""

    def __init__(self) -> None:
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.name: str | None = None
        """Name of the hidden states where they are passed by name."""
        self.length: int | None = None
        """Of the tuple that the block returns; None: it returns a tensor."""

    def take(self, args: tuple[Any, ...], kwargs: dict[str, Any], name: str) -> Tensor:
        """Notes the arguments of a call; gives its hidden states, the first argument or the one of that name."""
        if args:
            self.name, self.args, self.kwargs = None, args[1:], kwargs
            return args[0]
        self.name, self.args = name, ()
        self.kwargs = {key: value for key, value in kwargs.items() if key != name}
        return kwargs[name]

    def call(self, block: nn.Cell, x: Tensor) -> Tensor:
        """The hidden states that a block makes of `x` and the further inputs.

        Raises:
            UserError: it returns something else.
        """
        result = block(x, *self.args, **self.kwargs) if self.name is None else block(**self.kwargs, **{self.name: x})
        if isinstance(result, Tensor):
            self.length = None
            return result
        if isinstance(result, tuple) and [isinstance(item, Tensor) for item in result] == [True] + [False] * (
            len(result) - 1
        ):
            self.length = len(result)
            return result[0]
        raise UserError(
            f"model.adapter.blocks: a block returned {kind_of(result)}; between stages only a tensor of hidden states "
            "is passed on"
        )

    def result(self, x: Tensor) -> Any:
        """Hidden states in the form that the block returned last."""
        return x if self.length is None else (x, *[None] * (self.length - 1))


class Layer(nn.Cell):
    """A block as a function of its hidden states alone; `further` has the rest of its latest call."""

    def __init__(self, block: nn.Cell, further: Further) -> None:
        super().__init__(auto_prefix=False)
        self.block, self.further = block, further

    def construct(self, x: Tensor) -> tuple[Tensor]:
        """Hidden states, in a tuple as decoder layers of ms_models return them."""
        return (self.further.call(self.block, x),)


class Dropped(nn.Cell):
    """In the place of a block of another stage."""

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)


class Turn(nn.Cell):
    """Stands for a block in the list of the model."""

    def __init__(self, index: int, block: nn.Cell, layers: Sequence[nn.Cell], channel: Channel) -> None:
        super().__init__(auto_prefix=False)
        self.index, self.channel, self.further = index, channel, Further()
        self.hidden_name = next(iter(inspect.signature(block.construct).parameters))
        self.reach: Callable[[], nn.Cell] = lambda: layers[index]  # a cell of its own would be named anew
        # Forward may ask a block for more than its result, e.g. for its kind of attention.
        plain = (str, int, float, bool, type(None))
        self.facts = {key: value for key, value in vars(block).items() if isinstance(value, plain)}

    def construct(self, *args: Any, **kwargs: Any) -> Any:
        channel, further = self.channel, self.further
        x = further.take(args, kwargs, self.hidden_name)
        if self.index == 0:
            channel.hidden, channel.extras = x, [*further.args, *further.kwargs.values()]
        first, last = channel.span
        if self.index == first and channel.arriving is not None:
            x = channel.arriving
        if first <= self.index < last:
            x = self.reach()(x)[0]
        if self.index == last - 1 and not channel.is_last:
            channel.leaving = x
            raise Leave
        return further.result(x)

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        return facts[name] if name in facts else super().__getattr__(name)


class Blocks:
    """The blocks of a model.

    Args:
        module: the model.
        name: dotted name of the list.

    Raises:
        UserError: there is no such list, or it is empty.

    Attributes:
        cells: the blocks.
        layers: after `take_over`, a `Layer` for each block of this rank, in the places of all.
    """

    def __init__(self, module: nn.Cell, name: str) -> None:
        self.name = name
        self.home = _find(module, name)
        self.cells: list[nn.Cell] = list(self.home._cells.values())
        self.channel = Channel(len(self.cells))
        self.layers = nn.CellList(auto_prefix=False)

    def __len__(self) -> int:
        return len(self.cells)

    def take_over(self) -> None:
        """Puts a `Turn` before each block. Names of parameters change; the caller gives them back."""
        turns = [Turn(index, cell, self.layers, self.channel) for index, cell in enumerate(self.cells)]
        for turn, cell in zip(turns, self.cells, strict=True):
            self.layers.append(Layer(cell, turn.further))
            self.home._cells[str(turn.index)] = turn

    def keep(self, chunks: Sequence[range]) -> None:
        """Drops the blocks that are in none of the chunks, and with them their parameters."""
        kept = {index for chunk in chunks for index in chunk}
        for index in range(len(self.cells)):
            if index not in kept:
                self.layers[index] = Dropped()
                self.cells[index] = self.layers[index]


def _find(module: nn.Cell, name: str) -> Any:
    where, path = module, list[str]()
    for part in name.split("."):
        children = getattr(where, "_cells", {})
        if children.get(part) is None:
            lists = [key for key, cell in children.items() if cell is not None and len(cell._cells) > 1]
            inside = ".".join(path) or type(module).__name__
            raise UserError(
                f"model.adapter.blocks: {inside} has no cell {part!r}; it has {', '.join(lists or children) or 'none'}"
            )
        where, path = children[part], [*path, part]
    cells = list(where._cells.values())
    if not cells or list(where._cells) != [str(index) for index in range(len(cells))]:
        raise UserError(f"model.adapter.blocks: {name!r} is a {type(where).__name__}, not a list of blocks")
    return where
