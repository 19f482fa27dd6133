"""What a comparison expects of a model: modules, weights, and weights with a gradient, all from the family's facts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mappings.families import Family, Parameter, Spelled
from mappings.families.family import HF

LOGITS = "logits"
FUSED = "hf_fused"
"""Spelling of families whose experts transformers 5 holds in one tensor; both sides have that in memory."""
RENAMED: Mapping[str, Mapping[str, str]] = {"gpt_neox": {"lm_head": "embed_out"}}
"""By family: a module of transformers 5.24 in memory, and how it is called in checkpoints and in ms_models."""
LOGITS_OF_ROUTER = "logits"
"""ms_models returns weights and choices of a router; its logits come out of this cell below it."""
CHOICE = ":choice"
"""Behind the name of a router: what each expert's output is multiplied by, 0 for those that a token does not get."""
FURTHER = "mtp"  # group of the layers that predict further tokens
# Suffix of a parameter: why no gradient is expected.
UNTRAINED = {
    "e_score_correction_bias": "the correction of a router selects experts and is moved by their load, not by a loss",
}
UNUSED_GROUPS = {
    "pooler": "the masked-language loss does not use the pooler",
    "next_sentence": "the masked-language loss does not use the next-sentence head",
    FURTHER: "transformers does not run the layers that predict further tokens",
}
SECOND_BIAS = "an untied head adds the bias of its decoder and leaves this one unused"


@dataclass(frozen=True)
class Expected:
    """Names that both captures must hold, exactly."""

    modules: tuple[str, ...]
    """Modules whose outputs are compared (stage F, beside the logits)."""
    weights: tuple[str, ...]
    """Stage W."""
    trained: tuple[str, ...]
    """Stages G and U."""
    idle: tuple[str, ...]
    """Weights that ms_models could train, but by a loss that transformers does not have."""
    left_out: Mapping[str, str]
    """What one would look for and not find: the kind, and why it is not compared."""


def memory_spelling(family: Family) -> str:
    """The spelling in which both sides hold the model."""
    return FUSED if FUSED in family.spellings else HF


def expect(family: Family, config: Mapping[str, Any], optional: Collection[str] = ()) -> Expected:
    """What to compare of a model.

    Args:
        family: of the model.
        config: its `config.json`.
        optional: groups of optional tensors that its directory has, see `Spelled.optional`.

    Raises:
        UserError: a field of `config.json` does not fit.
    """
    tensors = [one for one in family.spelling(config, memory_spelling(family)) if one.optional in ("", *optional)]
    tied = set(family.ties(config))
    left_out: dict[str, str] = {}
    trained: list[str] = []
    for tensor in tensors:
        if reason := _why_untrained(tensor, family, tied):
            left_out[tensor.name] = reason
        else:
            trained.append(tensor.name)
    modules = _modules([tensor.name for tensor in tensors if not tensor.optional], _heads(family.parameters(config)))
    left_out["modules with the whole body, and lists of layers"] = "their output is that of their last module"
    left_out["modules that return the logits"] = "the logits are compared; a tied model has no head of its own"
    idle = [tensor.name for tensor in tensors if tensor.optional == FURTHER]
    return Expected(tuple(modules), tuple(tensor.name for tensor in tensors), tuple(trained), tuple(idle), left_out)


def expected_modules(family: Family, config: Mapping[str, Any], optional: Collection[str] = ()) -> list[str]:
    """Modules whose outputs are compared: all that hold parameters or contain such, by name.

    Left out are the first part of a name (`model`: its output is that of the final norm), lists of layers, which
    compute nothing, and what returns the logits. Experts are one module with fused tensors, compared by the sum of what
    a token's experts return; routers by their logits, then (under a name with `CHOICE`) by the weights of the experts.
    """
    return list(expect(family, config, optional).modules)


def is_encoder(family: Family) -> bool:
    """Whether a family predicts hidden tokens, not next ones."""
    return any(name.endswith("ForMaskedLM") for name in family.architectures)


def _why_untrained(tensor: Spelled, family: Family, tied: Collection[str]) -> str:
    if tensor.optional:
        return UNUSED_GROUPS[tensor.optional]
    if is_encoder(family) and tensor.name.endswith(".bias"):
        decoder = f"{tensor.name.removesuffix('.bias')}.decoder.bias"
        if decoder not in tied and any(row["name"] == decoder for row in family.rows):
            return SECOND_BIAS
    return next((why for suffix, why in UNTRAINED.items() if tensor.name.endswith(suffix)), "")


def _heads(parameters: Iterable[Parameter]) -> set[str]:
    """Modules that return logits: they hold what is as long as the vocabulary and belongs to the head."""
    return {p.name.rpartition(".")[0] for p in parameters if p.layer_class == "lm_head" and p.padded}


def _modules(names: Iterable[str], heads: Collection[str]) -> list[str]:
    modules: dict[str, set[str]] = {}
    for name in names:
        parts = name.split(".")
        for end in range(2, len(parts)):
            modules.setdefault(".".join(parts[:end]), set()).add(parts[end])
    lists = {name for name, parts in modules.items() if all(part.isdigit() for part in parts)}
    around = {name for name, parts in modules.items() if {f"{name}.{part}" for part in parts} <= lists}
    found = []
    for name in modules:
        if name not in lists | around and name not in heads:
            found += [name, f"{name}{CHOICE}"] if _is_router(name, modules) else [name]
    return found


def _is_router(name: str, modules: Collection[str]) -> bool:
    block, _, part = name.rpartition(".")
    return part == "gate" and f"{block}.experts" in modules
