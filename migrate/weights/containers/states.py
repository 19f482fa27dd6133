"""What a training checkpoint holds beside weights: optimizer state of each parameter, and counters of the run.

State is laid out exactly as its parameter. Its atoms are those of the parameter with the name of the state in front.
"""

from __future__ import annotations

from dataclasses import replace

from mappings.arrangement import Arrangement

STATES = {"exp_avg": ("exp_avg.", "adam_m."), "exp_avg_sq": ("exp_avg_sq.", "adam_v."), "master": ("master.",)}
"""State -> what stands before the parameter's name: by PyTorch and ms_models, and by MindSpore's own optimizers."""
TORCH, MINDSPORE = 0, -1
GRADIENTS = "accu_grads."  # accumulated within a step; nothing that a later run could use
COUNTERS = frozenset({
    "epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "learning_rate", "beta1_power",
    "beta2_power", "scale_sense", "current_iterator_step", "last_overflow_iterator_step", "consumed_samples",
    "weight_decay",
})  # fmt: skip
"""Names of single numbers that MindSpore stores among the parameters."""


def split_state(name: str) -> tuple[str, str]:
    """State and parameter of a stored name; no state ("") where it is a weight."""
    for state, prefixes in STATES.items():
        for prefix in prefixes:
            if name.startswith(prefix):
                return state, name[len(prefix) :]
    return "", name


def state_name(state: str, parameter: str, style: int = TORCH) -> str:
    """Stored name of a state; `style` is `TORCH` or `MINDSPORE`."""
    return (STATES[state][style] if state else "") + parameter


def state_atom(state: str, atom: str) -> str:
    """Name of an atom of a state."""
    return f"{state}.{atom}" if state else atom


def of_state(arrangement: Arrangement, state: str) -> Arrangement:
    """The arrangement of a parameter for one of its states."""
    if not state:
        return arrangement
    pieces = (replace(piece, atom=state_atom(state, piece.atom)) for piece in arrangement.pieces)
    return Arrangement(arrangement.shape, tuple(pieces))
