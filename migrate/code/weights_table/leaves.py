"""Parameters and buffers of modules that are not the repository's: names, shapes in their arguments, layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Leaf:
    """A tensor of a module of a library."""

    name: str
    shape: tuple[str, ...]
    """Expressions over torch's arguments; `*kernel_size` is a size for each spatial axis, `*x` a shape."""
    layout: str
    """What the axes are, first to last; the same in MindSpore by design."""
    when: str | None = None
    """Argument that decides whether the tensor exists."""
    buffer: bool = False
    dtype: str | None = None
    """In safetensors' words; None: the argument `dtype`, or torch's default."""


def _convolution(out: str, into: str) -> tuple[Leaf, ...]:
    layout = "[out, in / groups, kernel...]" if out.startswith("out") else "[in, out / groups, kernel...]"
    return (
        Leaf("weight", (out, into, "*kernel_size"), layout),
        Leaf("bias", ("out_channels",), "[out]", "bias"),
    )


def _batch_norm() -> tuple[Leaf, ...]:
    affine = [Leaf(name, ("num_features",), "[channels]", "affine") for name in ("weight", "bias")]
    tracked = "track_running_stats"
    running = [Leaf(f"running_{n}", ("num_features",), "[channels]", tracked, True) for n in ("mean", "var")]
    return (*affine, *running, Leaf("num_batches_tracked", (), "[]", tracked, True, "I64"))


_EMBEDDING = (Leaf("weight", ("num_embeddings", "embedding_dim"), "[rows, width]"),)
_CONVOLUTION = _convolution("out_channels", "in_channels // groups")
_TRANSPOSED = _convolution("in_channels", "out_channels // groups")
_NORMALIZED = Leaf("weight", ("*normalized_shape",), "[features...]", "elementwise_affine")

_FUSED = "(kdim is None or kdim == embed_dim) and (vdim is None or vdim == embed_dim)"
_ATTENTION = (
    *(
        Leaf(f"{letter}_proj_weight", ("embed_dim", width), "[out, in]", f"not ({_FUSED})")
        for letter, width in (
            ("q", "embed_dim"),
            ("k", "embed_dim if kdim is None else kdim"),
            ("v", "embed_dim if vdim is None else vdim"),
        )
    ),
    Leaf("in_proj_weight", ("3 * embed_dim", "embed_dim"), "[queries, keys, values; in]", _FUSED),
    Leaf("in_proj_bias", ("3 * embed_dim",), "[queries, keys, values]", "bias"),
    Leaf("out_proj.weight", ("embed_dim", "embed_dim"), "[out, in]"),
    Leaf("out_proj.bias", ("embed_dim",), "[out]", "bias"),
    *(Leaf(f"bias_{letter}", ("1", "1", "embed_dim"), "[1, 1, width]", "add_bias_kv") for letter in "kv"),
)


def _recurrent_cell(gates: int) -> tuple[Leaf, ...]:
    rows = "hidden_size" if gates == 1 else f"{gates} * hidden_size"
    return (
        Leaf("weight_ih", (rows, "input_size"), "[gates, in]"),
        Leaf("weight_hh", (rows, "hidden_size"), "[gates, hidden]"),
        *(Leaf(f"bias_{side}", (rows,), "[gates]", "bias") for side in ("ih", "hh")),
    )


_TRANSPOSED_LINEAR = (Leaf("weight", ("nx", "nf"), "[in, out]"), Leaf("bias", ("nf",), "[out]"))
SIGNATURES: Mapping[str, str] = {
    f"transformers.{module}Conv1D": "nf, nx" for module in ("", "pytorch_utils.", "modeling_utils.")
}
"""Of modules that are not torch's; those of torch are in the table."""

LEAVES: Mapping[str, tuple[Leaf, ...]] = {
    **dict.fromkeys(SIGNATURES, _TRANSPOSED_LINEAR),
    "torch.nn.MultiheadAttention": _ATTENTION,
    **{f"torch.nn.{name}Cell": _recurrent_cell(gates) for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))},
    "torch.nn.Linear": (
        Leaf("weight", ("out_features", "in_features"), "[out, in]"),
        Leaf("bias", ("out_features",), "[out]", "bias"),
    ),
    "torch.nn.Bilinear": (
        Leaf("weight", ("out_features", "in1_features", "in2_features"), "[out, in1, in2]"),
        Leaf("bias", ("out_features",), "[out]", "bias"),
    ),
    "torch.nn.Embedding": _EMBEDDING,
    "torch.nn.EmbeddingBag": _EMBEDDING,
    "torch.nn.LayerNorm": (
        _NORMALIZED,
        Leaf("bias", ("*normalized_shape",), "[features...]", "elementwise_affine and bias"),
    ),
    "torch.nn.RMSNorm": (_NORMALIZED,),
    "torch.nn.GroupNorm": tuple(Leaf(name, ("num_channels",), "[channels]", "affine") for name in ("weight", "bias")),
    "torch.nn.PReLU": (Leaf("weight", ("num_parameters",), "[channels]"),),
    **{f"torch.nn.Conv{n}d": _CONVOLUTION for n in (1, 2, 3)},
    **{f"torch.nn.ConvTranspose{n}d": _TRANSPOSED for n in (1, 2, 3)},
    **{f"torch.nn.BatchNorm{n}d": _batch_norm() for n in (1, 2, 3)},
}

EMPTY = frozenset(f"einops.layers.torch.{name}" for name in ("Rearrange", "Reduce")) | frozenset(
    f"torch.nn.{name}"
    for name in """
        Identity Dropout Dropout1d Dropout2d Dropout3d AlphaDropout GELU ReLU ReLU6 SiLU Mish ELU SELU CELU LeakyReLU
        Tanh Sigmoid Softplus Softsign Softmax LogSoftmax Hardtanh Hardswish Hardsigmoid GLU Flatten Unflatten Threshold
        MaxPool1d MaxPool2d MaxPool3d AvgPool1d AvgPool2d AvgPool3d AdaptiveAvgPool1d AdaptiveAvgPool2d
        AdaptiveMaxPool1d AdaptiveMaxPool2d Upsample PixelShuffle ZeroPad2d ConstantPad1d ReflectionPad1d
        ReflectionPad2d CrossEntropyLoss MSELoss L1Loss NLLLoss BCELoss BCEWithLogitsLoss SmoothL1Loss KLDivLoss
        CosineSimilarity Module
    """.split()  # noqa: SIM905 (a list of sixty strings is harder to read)
)
"""Modules without parameters and buffers."""
