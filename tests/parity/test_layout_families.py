"""Every family under every way to divide it over two ranks equals PyTorch, from weights to two optimizer steps.

`pytest -s -m grid tests/parity/test_layout_families.py` prints the table of docs/parity-layouts.md.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from layout_launch import Launch, asked_for
from layout_launch import launch as start
from parity_models import CONFIGS, ENCODERS, make

from mappings.errors import UserError
from migrate.parity.layouts.request import Request
from migrate.parity.plan import Plan
from migrate.report import Verdict

LAYOUTS = ("tp=2", "tp=2,sequence_parallel=true", "dp=2,zero=2", "dp=2,zero=3", "pp=2", "cp=2", "dp=2,ep=2")
SPARSE = ("qwen3_moe", "mixtral", "deepseek_v3")
OWN: dict[str, dict[str, object]] = {"qwen3_moe": {"num_experts": 6}}


def fits(family: str, layout: str) -> bool:
    """Whether a family can be divided so; the command refuses the others before anything starts."""
    if family in ENCODERS:
        return layout in ("tp=2", "tp=2,sequence_parallel=true", "dp=2,zero=2")
    return family in SPARSE or "ep" not in layout


CASES = {f"{family} {layout}": (family, layout) for family in CONFIGS for layout in LAYOUTS if fits(family, layout)}


@pytest.fixture(scope="module")
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """The cases that were asked for (`-k llama`), in one launch."""
    cases = asked_for(request, CASES)
    root = tmp_path_factory.mktemp("families")
    models: dict[str, Path] = {}
    for family, _ in cases.values():
        if family not in models:
            models[family] = make(family, root / family, **OWN.get(family, {}))
    return start(cases, models, root, 2400)


@pytest.mark.parametrize(
    ("family", "layout", "words"),
    [
        ("llama", "dp=2,ep=2", "the llama family has no experts"),
        ("bert", "pp=2", "encoders are cut over tp and replicated over dp"),
        ("bert", "cp=2", "encoders are cut over tp and replicated over dp"),
        ("bert", "dp=2,zero=3", "encoders are cut over tp and replicated over dp"),
        ("llama", "dp=2,zero=3,recompute=block", "computed again anyway; leave it out"),
        ("llama", "dp=2,pp=2,zero=3", "take zero=2"),
        ("bert", "dp=2,recompute=block", "encoders know 'none' only"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    family: str, layout: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=words):
        Plan.make(make(family, tmp_path / "model"), ["W"], tmp_path, request=Request.read(layout))


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.timeout(2700)
@pytest.mark.parametrize("name", CASES)
def test_a_family_under_a_layout(name: str, launch: Launch) -> None:
    found = launch.judged(name, CASES[name], in_fp64=True)
    worst = {}
    for stage, result in found[1:]:
        worst[stage] = max(row["relative"] for row in result.rows if row["limit"] < 1)  # else nothing but rounding
    print(f"\n| {name.replace(' ', ' | ', 1)} |", " | ".join(f"{value:.1e}" for value in worst.values()), "|")
    stage, last = found[-1]
    assert (stage, last.stage.verdict) == ("U", Verdict.PASS), last.stage.message
    assert all(result.stage.compared for _, result in found)
