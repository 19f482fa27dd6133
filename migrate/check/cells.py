"""What ms_models computes, by model type, as far as `config.json` can ask for something else.

Written out because the tools import nothing that imports MindSpore; tests/check holds each table against ms_models.
"""

from __future__ import annotations

from typing import Any

DECODERS = (
    "deepseek_v3", "gemma2", "gemma3_text", "glm4", "gpt2", "gpt_neox", "kimi_k2", "llama", "mistral", "mixtral",
    "phi3", "qwen2", "qwen3", "qwen3_moe",
)  # fmt: skip
ENCODERS = ("bert", "roberta", "xlm-roberta")
ROPE = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
"""Rotary rules."""
PARTIAL_ROPE = ("glm4", "gpt_neox", "phi3")
"""Types of which a part of each head can be rotated."""
WINDOWED = ("gemma2", "gemma3_text", "mistral", "mixtral", "phi3")
"""Types with sliding windows."""
ANY_ACTIVATION = (
    "gelu",
    "gelu_python",
    "gelu_new",
    "gelu_fast",
    "gelu_pytorch_tanh",
    "gelu_python_tanh",
    "relu",
    "silu",
    "swish",
)
ACTIVATIONS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "gemma2": ("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",)),
    "gemma3_text": ("hidden_activation", "gelu_pytorch_tanh", ("gelu_pytorch_tanh",)),
    "gpt2": ("activation_function", "gelu_new", ANY_ACTIVATION),
    "gpt_neox": ("hidden_act", "gelu", ANY_ACTIVATION),
    **dict.fromkeys(ENCODERS, ("hidden_act", "gelu", ANY_ACTIVATION)),
}
"""Field, default and known values; of the other types `SILU`."""
SILU = ("hidden_act", "silu", ("silu",))
DROPOUT_LEFT_OUT = ("gpt2", "gpt_neox")
"""Types whose published files have dropout, which ms_models leaves out with a warning."""


def is_built(config: dict[str, Any]) -> bool:
    """Whether ms_models has a cell for a model; the others can be converted and recut."""
    return config.get("model_type") in (*DECODERS, *ENCODERS)
