"""The layouts of the grid: what is cut how, by how many processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

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
PAIR = [
    _case("accumulation 4", dp=2, accumulation=4),
    _case("dp2", dp=2),
    _case("tp2", tp=2),
    _case("tp2 one key/value head", tp=2, model="one-kv-head"),
    _case("tp2 sequence parallel", tp=2, options=SEQUENCE),
    _case("tp2 sequence parallel tied", tp=2, options=SEQUENCE, model="qwen2-tied"),
    _case("pp2", pp=2, accumulation=4),
    _case("pp2 gpipe", pp=2, accumulation=2, schedule="gpipe"),
    _case("pp2 zero bubble", pp=2, accumulation=4, schedule="zero_bubble"),
    _case("pp2 tied", pp=2, accumulation=2, model="qwen2-tied"),
    _case("pp2 jit", pp=2, accumulation=2, jit=True),
    _case("pp2 interleaved", pp=2, vpp=2, accumulation=4, model="llama-deep"),
    _case("cp2 ring", cp=2),
    _case("cp2 ring window", cp=2, model="mistral"),
    _case("cp2 ulysses", cp=2, options=ULYSSES),
    _case("ep2", dp=2, ep=2, model="mixtral"),
    _case("ep2 normalised", dp=2, ep=2, model="qwen3_moe", accumulation=2),
    _case("tp2 experts", tp=2, model="mixtral"),
]
QUAD = [
    _case("dp2 tp2", dp=2, tp=2, accumulation=2),
    _case("dp2 pp2", dp=2, pp=2, accumulation=2),
    _case("tp2 pp2", tp=2, pp=2, accumulation=2, options=SEQUENCE, model="qwen2-tied"),
    _case("dp2 ep2", dp=4, ep=2, model="mixtral"),
    _case("tp2 cp2", tp=2, cp=2, options=SEQUENCE),
    _case("pp2 ep2", dp=2, ep=2, pp=2, accumulation=2, model="qwen3_moe"),
]
EIGHT = [_case("dp2 tp2 pp2", dp=2, tp=2, pp=2, accumulation=2, model="qwen2-tied")]
LAUNCHES = {"pair": (2, PAIR), "quad": (4, QUAD), "eight": (8, EIGHT)}
