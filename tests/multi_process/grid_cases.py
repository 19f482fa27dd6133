"""The layouts of the grid: what is cut how, by how many processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from grid_models import MODELS, has_experts

from mappings.layout import ParallelLayout


@dataclass(frozen=True)
class Case:
    """One way to run a model on several ranks."""

    name: str
    layout: ParallelLayout
    options: dict[str, Any] = field(default_factory=dict)
    """Fields of `ParallelOptions`."""
    accumulation: int = 1
    schedule: str | None = None
    model: str = "llama"
    jit: bool = False


def _case(name: str, **settings: Any) -> Case:
    axes = {axis: settings.pop(axis) for axis in ("tp", "cp", "dp", "pp", "vpp", "ep", "zero") if axis in settings}
    return Case(name, ParallelLayout(**axes), **settings)


SEQUENCE = {"sequence_parallel": True}
ULYSSES = {"context": "ulysses"}
# What `make test` runs: each way to cut a model once.
PAIR = [
    _case("accumulation 4", dp=2, accumulation=4),
    _case("dp2", dp=2),
    _case("tp2", tp=2),
    _case("tp2 one key/value head", tp=2, model="one-kv-head"),
    _case("tp2 sequence parallel tied", tp=2, options=SEQUENCE, model="qwen2-tied"),
    _case("pp2 tied", pp=2, accumulation=2, model="qwen2-tied"),
    _case("pp2 interleaved", pp=2, vpp=2, accumulation=4, model="llama-deep"),
    _case("cp2 ring", cp=2),
    _case("cp2 ulysses", cp=2, options=ULYSSES),
    _case("zero1", dp=2, zero=1, accumulation=2),
    _case("zero2", dp=2, zero=2, accumulation=2),
    _case("ep2 normalised", dp=2, ep=2, model="qwen3_moe", accumulation=2),
]
# The same cuts in other ways.
PAIR_MORE = [
    _case("tp2 sequence parallel", tp=2, options=SEQUENCE),
    _case("tp2 recomputed blocks", tp=2, options={**SEQUENCE, "recompute": "block"}),
    _case("dp2 recomputed attention", dp=2, options={"recompute": "attention"}),
    _case("dp2 all recomputed, jit", dp=2, options={"recompute": "full"}, model="qwen2-tied", jit=True),
    _case("pp2", pp=2, accumulation=4),
    _case("pp2 gpipe", pp=2, accumulation=2, schedule="gpipe"),
    _case("pp2 zero bubble", pp=2, accumulation=4, schedule="zero_bubble"),
    _case("pp2 jit", pp=2, accumulation=2, jit=True),
    _case("cp2 ring window", cp=2, model="mistral"),
    _case("zero2 jit", dp=2, zero=2, accumulation=2, jit=True),
    _case("zero2 ep2", dp=2, ep=2, zero=2, model="mixtral"),
    _case("ep2", dp=2, ep=2, model="mixtral"),
    _case("tp2 experts", tp=2, model="mixtral"),
]
QUAD = [
    _case("dp2 tp2", dp=2, tp=2, accumulation=2),
    _case("dp2 pp2", dp=2, pp=2, accumulation=2),
    _case("tp2 pp2", tp=2, pp=2, accumulation=2, options=SEQUENCE, model="qwen2-tied"),
    _case("dp2 ep2", dp=4, ep=2, model="mixtral"),
    _case("dp2 tp2 zero1", dp=2, tp=2, zero=1, model="qwen2-tied"),
    _case("tp2 cp2", tp=2, cp=2, options=SEQUENCE),
    _case("pp2 ep2", dp=2, ep=2, pp=2, accumulation=2, model="qwen3_moe"),
]
EIGHT = [_case("dp2 tp2 pp2", dp=2, tp=2, pp=2, accumulation=2, model="qwen2-tied")]
# Every family under tp, dp and, where it has experts, ep.
FAMILIES = [
    _case(f"{model} {name}", model=model, **settings)
    for model in MODELS
    for name, settings in {"tp2": {"tp": 2}, "dp2": {"dp": 2}, "ep2": {"dp": 2, "ep": 2}}.items()
    if name != "ep2" or has_experts(model)
]
# Rotary positions that depend on the length of the whole sequence, or on the kind of layer, which a stage has few of.
FAMILIES += [
    _case("phi3 cp2 ring", cp=2, model="phi3"),
    _case("phi3 cp2 ulysses", cp=2, model="phi3", options=ULYSSES),
    _case("gemma3_text cp2 ring", cp=2, model="gemma3_text"),
    _case("gemma3_text pp2", pp=2, accumulation=2, model="gemma3_text"),
    _case("glm4 tp2 sequence parallel", tp=2, model="glm4", options=SEQUENCE),
]
LAUNCHES = {
    "pair": (2, PAIR),
    "more": (2, PAIR_MORE),
    "quad": (4, QUAD),
    "eight": (8, EIGHT),
    "families": (2, FAMILIES),
}
for _, cases in LAUNCHES.values():
    assert len({case.name for case in cases}) == len(cases), "two cases of one name"
