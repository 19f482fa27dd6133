"""Linear and Embedding cut over the tensor parallel ranks, called and initialised as torch's: for converted code.

Built from the layers of this package, on the mesh of `current`. A parameter keeps its name. It is drawn, loaded and
saved as a whole: `state_dict` gathers it, so every rank has to call that, and `load_state_dict` takes a rank's share.
One rank computes what the uncut layer computes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from mindspore import Parameter, Tensor, nn, ops

from ms_models.compat.layers import Embedding, Linear
from ms_models.compat.module import Module
from ms_models.compat.products import linear
from ms_models.compat.whole import own_values
from ms_models.parallel import vocabulary
from ms_models.parallel.collectives import CopyToGroup, GatherFromGroup, ReduceFromGroup
from ms_models.parallel.current import local, share_of, tensor_parallel_group
from ms_models.parallel.pieces import Piece, cut_parameter


class EnterParallel(nn.Cell):
    """What a tensor that every rank has passes before it meets tensors that are cut; its gradients are added.

    So do the tensors of a tuple; anything but tensors of floating point numbers goes through untouched.
    """

    def __init__(self) -> None:
        super().__init__(auto_prefix=False)
        self.copy = CopyToGroup(tensor_parallel_group())

    def construct(self, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple([self._entered(item) for item in x])
        return self._entered(x)

    def _entered(self, x: Any) -> Any:
        if isinstance(x, Tensor) and x.is_floating_point():
            return self.copy(x)
        return x


def _gathered(parameter: Parameter, earlier: Iterable[Any]) -> Tensor:
    """The whole of a parameter; one that has two names is gathered once and stays one tensor."""
    for value in earlier:
        if getattr(value, "whole_of", None) is parameter:
            return value
    whole = parameter.piece.whole(parameter)
    if whole is not parameter:
        whole.whole_of = parameter
    return whole


class _WholeState(Module):
    """A layer whose state is that of the whole layer, whoever asks."""

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if keep_vars:
            return  # the parameters themselves are wanted
        for name, parameter in self._params.items():
            if parameter is not None and hasattr(parameter, "piece"):
                destination[prefix + name] = _gathered(parameter, destination.values())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, parameter in self._params.items():
            given = state_dict.get(prefix + name)
            if given is not None and tuple(given.shape) == getattr(getattr(parameter, "piece", None), "shape", None):
                state_dict[prefix + name] = own_values(parameter, given)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __setattr__(self, name: str, value: Any) -> None:
        held = self.__dict__.get("_params", {}).get(name)
        if held is not None and value is not None and getattr(held, "piece", None) != getattr(value, "piece", None):
            raise ValueError(
                f"{type(self).__name__}.{name} is cut over ranks; a parameter cut otherwise cannot replace it"
            )
        super().__setattr__(name, value)


class _SplitLinear(_WholeState, Linear):
    """What the cuts of a Linear have in common."""

    def __init__(self, weight: Piece, bias: Piece | None, has_bias: bool, dtype: Any) -> None:
        Module.__init__(self)
        self.out_features, self.in_features = weight.shape
        self.weight = cut_parameter(weight, dtype)
        if not has_bias:
            self.register_parameter("bias", None)
        elif bias is not None:
            self.bias = cut_parameter(bias, dtype)
        else:
            self.bias = Parameter(ops.zeros((self.out_features,), self.weight.dtype))
        self.reset_parameters()


class ColumnParallelLinear(_SplitLinear):
    """Each rank computes some of the outputs. The input must have passed `EnterParallel`.

    Args:
        in_features: width of the input.
        out_features: width of the whole output.
        bias: whether there is one; cut like the output.
        dtype: of the parameters.
        heads: pieces of the output (of each part) that must stay whole.
        parts: number of equal parts of the output that are cut one by one, or their widths.

    Raises:
        UserError: the ranks do not divide the heads or the outputs.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        dtype: Any = None,
        *,
        heads: int | Sequence[int] | None = None,
        parts: int | Sequence[int] = 1,
    ) -> None:
        group = tensor_parallel_group()
        widths = (out_features // parts,) * parts if isinstance(parts, int) else tuple(parts)
        if sum(widths) != out_features:
            raise ValueError(f"parts {parts} of an output of {out_features} features")
        counts = (heads,) * len(widths) if heads is None or isinstance(heads, int) else tuple(heads)
        for width, count in zip(widths, counts, strict=True):
            share_of(width, "output features", group)
            if count is not None:
                share_of(count, "heads", group)
        super().__init__(
            Piece((out_features, in_features), 0, group, widths), Piece((out_features,), 0, group, widths), bias, dtype
        )


class RowParallelLinear(_SplitLinear):
    """Each rank has some of the inputs; partial results are added over the ranks, then the bias, which is whole.

    Raises:
        UserError: the ranks do not divide the inputs.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        group = tensor_parallel_group()
        share_of(in_features, "input features", group)
        super().__init__(Piece((out_features, in_features), 1, group, (in_features,)), None, bias, dtype)
        self.reduce = ReduceFromGroup(group)
        self.whole = group.size == 1

    def construct(self, input: Tensor) -> Tensor:
        if self.whole:
            return linear(input, self.weight, self.bias)
        y = self.reduce(linear(input, self.weight, None))
        return y if self.bias is None else y + self.bias


class VocabParallelLinear(_SplitLinear):
    """An output head: each rank computes the logits of some tokens, and all logits are gathered on every rank.

    The vocabulary is padded with zero rows where the ranks do not divide it.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, dtype: Any = None) -> None:
        group = tensor_parallel_group()
        weight = Piece((out_features, in_features), 0, group, (out_features,))
        super().__init__(weight, Piece((out_features,), 0, group, (out_features,)), bias, dtype)
        self.enter = CopyToGroup(group)
        self.gather = GatherFromGroup(group, 1)
        self.whole = group.size == 1

    def construct(self, input: Tensor) -> Tensor:
        if self.whole:
            return linear(input, self.weight, self.bias)
        y = linear(self.enter(input), self.weight, self.bias)
        leading = y.shape[:-1]
        logits = self.gather(y.reshape(-1, y.shape[-1]))[:, : self.out_features]
        return logits.reshape(*leading, self.out_features)


class VocabParallelEmbedding(_WholeState, Embedding):
    """Rows of a table by token id; each rank holds some rows, padded with zeros, and the group sums.

    `padding_idx` is the place of its row on the rank that holds it, and None on the others, so that code which sets
    that row of `weight` does so.
    """

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, dtype: Any = None
    ) -> None:
        group = tensor_parallel_group()
        Module.__init__(self)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.padding_id = padding_idx % num_embeddings if padding_idx is not None else None
        piece = Piece((num_embeddings, embedding_dim), 0, group, (num_embeddings,))
        self.weight = cut_parameter(piece, dtype)
        self.whole, self.rows = group.size == 1, piece.local_shape[0]
        self.start = group.index * self.rows
        row = -1 if self.padding_id is None else self.padding_id - self.start
        self.padding_idx = row if 0 <= row < self.rows else None
        self.scale = self.compute = None
        self.reduce = ReduceFromGroup(group)
        self.reset_parameters()

    def construct(self, input: Tensor) -> Tensor:
        return vocabulary.VocabParallelEmbedding.construct(self, input)

    look_up = vocabulary.VocabParallelEmbedding.look_up


__all__ = [
    "ColumnParallelLinear",
    "EnterParallel",
    "RowParallelLinear",
    "VocabParallelEmbedding",
    "VocabParallelLinear",
    "local",
]
