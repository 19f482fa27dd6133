"""How values of the converted repository are described in messages."""

from __future__ import annotations

from mindspore import Tensor

LISTED = 4
"""A tuple or list of more items is described by their number."""


def kind_of(value: object) -> str:
    """The type of a value; of a tensor its shape too, of a tuple or list each item's, or their number."""
    if isinstance(value, tuple | list):
        if len(value) > LISTED:
            return f"{type(value).__name__} of {len(value)}"
        return f"({', '.join(kind_of(item) for item in value)})"
    if isinstance(value, Tensor):
        return f"Tensor {list(value.shape)}"
    return type(value).__name__
