"""What the backward pass computes again instead of keeping it."""

from __future__ import annotations

from collections.abc import Iterable

from mindspore import nn

from ms_models.layers.core import AttentionCore


def recompute(kind: str, layers: Iterable[nn.Cell], ends: Iterable[nn.Cell]) -> None:
    """Marks the cells that are computed again.

    | kind | computed again | kept per layer and token |
    |---|---|---|
    | `none` | nothing | everything |
    | `attention` | scores and weights of attention | all but what grows with the square of the length |
    | `block` | each layer | its input |
    | `full` | each layer, and embedding, head and loss | its input; logits are not kept |

    A stage of a pipeline is computed again as a whole in any case (`ms_models/parallel/pipeline.py`); within that, the
    same holds.

    Args:
        kind: of `mappings.parallel_options.RECOMPUTE`.
        layers: of the rank.
        ends: cells of both ends of the model.
    """
    layers = list(layers)
    if kind == "attention":
        layers = [cell for layer in layers for _, cell in layer.cells_and_names() if isinstance(cell, AttentionCore)]
    if kind == "full":
        layers += ends
    if kind != "none":
        for cell in layers:
            cell.recompute()
