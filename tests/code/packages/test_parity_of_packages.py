"""`msmigrate parity code` on public packages and `tests/code/projects`: what is compared, what is refused and why.

Every recipe is run; what stands here is all that does not pass. The packages come from PyPI into `build/packages`, as
`make test-packages` has them. `-s` prints the figures of docs/parity.md.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fetch import HERE, dependencies, fetch, read_package, without_torch
from run import search_path

from migrate.code.command import convert
from migrate.parity.repository.command import code
from migrate.parity.stages import TITLES, Tolerances
from migrate.report import Report, Severity, Verdict
from migrate.sides.recipes import read_recipes

ROOT = Path(__file__).parents[3]
BUILD = ROOT / "build" / "packages"
PROJECTS = ROOT / "tests" / "code" / "projects"
SKIPPED, FAIL, COULD_NOT_RUN = Verdict.SKIPPED, Verdict.FAIL, Verdict.COULD_NOT_RUN
EMPTY, NO_GRADIENT = "holds no tensors", "depends on no parameter"
AFTER = "did not pass"


@dataclass(frozen=True)
class Expected:
    """What a repository gives."""

    modules: int
    outputs: int
    """Tensors of stage F in all of its modules."""
    others: Mapping[str, Mapping[str, tuple[Verdict, str]]] = field(default_factory=dict)
    """Last part of a module's name -> stage -> verdict and a pattern of the reason, for all that do not pass."""
    optimizers: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Module -> how its repository makes the optimizer, for stage U."""


def skipped(stage: str, reason: str) -> Mapping[str, tuple[Verdict, str]]:
    return {stage: (SKIPPED, reason)}


def refused(stage: str, verdict: Verdict, reason: str) -> Mapping[str, tuple[Verdict, str]]:
    later = "FLG"["FLG".index(stage) + 1 :]
    return {stage: (verdict, reason), **dict.fromkeys(later, (SKIPPED, AFTER))}


PACKAGES: dict[str, Expected] = {
    "bert_pytorch": Expected(
        14, 147,
        {
            "Attention": skipped("W", EMPTY), "GELU": skipped("W", EMPTY),
            "PositionalEmbedding": skipped("G", NO_GRADIENT),
        },
    ),
    "litgpt": Expected(44, 851, {"KVCache": skipped("W", EMPTY)}),
    "loralib": Expected(6, 7),
    "mixture_of_experts": Expected(5, 23, {"GELU_": skipped("W", EMPTY)}),
    "pytorch_pretrained_bert": Expected(
        51, 829,
        # An in-place product of a view (finding M302 of the conversion).
        {"AdaptiveEmbedding": refused("F", FAIL, r"1 of 4 tensors differ, first \(output\)")},
    ),
    "rotary_embedding_torch": Expected(1, 1),
    "tinyllama": Expected(6, 113),
    "x_transformers": Expected(
        87, 5386,
        {
            **{name: skipped("W", EMPTY) for name in ("ReluSquared", "SimpleRMSNorm", "Attend", "GaussianNLL")},
            "MSECosineSimLoss": skipped("W", EMPTY),
            "AlibiPositionalBias": {**skipped("W", EMPTY), **skipped("G", NO_GRADIENT)},
            "EntropyBasedTokenizer": {**skipped("L", "holds no number"), **skipped("G", NO_GRADIENT)},
            "BeliefStateWrapper": refused("F", COULD_NOT_RUN, "only a Parameter can ask for a gradient"),
            "LatentAutoregressive": refused("F", COULD_NOT_RUN, "Failed calling Mul.*complex"),
            "Recirculation": refused("G", COULD_NOT_RUN, "StridedSliceGrad, 0 input memory out of bounds"),
        },
    ),
}  # fmt: skip
ADAMW = {"module": "train", "build": "AdamW(model.parameters(), lr=1e-3)"}
REPOSITORIES: dict[str, Expected] = {
    "amp_ddp_script": Expected(3, 51),
    "bert_classifier": Expected(2, 43),
    "complex_rope": Expected(3, 60),
    "custom_function": Expected(3, 16),
    "dpo": Expected(2, 8),
    "gan": Expected(3, 29),
    "hf_remote_code": Expected(3, 126),
    "hf_trainer": Expected(2, 24),
    "kv_cache": Expected(3, 15),
    "lora": Expected(4, 17),
    "moe": Expected(3, 92, optimizers={"language model": ADAMW}),
    "seq2seq": Expected(2, 13),
    "trainer_class": Expected(3, 35),
}


@pytest.mark.slow
@pytest.mark.parametrize("state", ["init", "trained"])
@pytest.mark.parametrize("name", PACKAGES)
def test_modules_of_a_package(name: str, state: str, tmp_path: Path) -> None:
    package = read_package(HERE / f"{name}.yaml")
    original, path = fetch(package, BUILD), dependencies(package, BUILD)
    convert(original, tmp_path / "out")
    with search_path([path]):
        report = code(
            tmp_path / "out", original=original, recipes=package.recipes, state=state,
            candidate_path=[without_torch(BUILD)],
        )  # fmt: skip
    check(name, report, [recipe.name for recipe in package.recipes], PACKAGES[name])


@pytest.mark.slow
@pytest.mark.parametrize("state", ["init", "trained"])
@pytest.mark.parametrize("name", REPOSITORIES)
def test_modules_of_a_project(name: str, state: str, tmp_path: Path) -> None:
    convert(PROJECTS / name, tmp_path / "out")
    expected = REPOSITORIES[name]
    recipes = [
        replace(recipe, optimizer=expected.optimizers.get(recipe.name))
        for recipe in read_recipes(PROJECTS / name / "recipes.yaml")
    ]
    stages = "WFLGU" if expected.optimizers else "WFLG"
    report = code(tmp_path / "out", original=PROJECTS / name, recipes=recipes, stages=list(stages), state=state)
    check(name, report, [recipe.name for recipe in recipes], expected)


def test_every_package_and_project_with_modules_is_here() -> None:
    with_modules = {path.stem for path in HERE.glob("*.yaml") if read_package(path).recipes}
    assert with_modules == set(PACKAGES)  # lion-pytorch has an optimizer only
    assert {path.parent.name for path in PROJECTS.glob("*/recipes.yaml")} == set(REPOSITORIES)


def check(name: str, report: Report, modules: Sequence[str], expected: Expected) -> None:
    """Every stage of every module passes but for those that are expected; each is said once."""
    assert len(modules) == expected.modules
    left: list[str] = []
    met: set[tuple[str, str]] = set()
    passed: Counter[str] = Counter()
    for module in modules:
        short = module if module in expected.others else module.rpartition(".")[2]
        for stage, title in TITLES.items():
            words = f"{module}: {title}" if len(modules) > 1 else title
            found = [one for one in report.stages if one.name == words]
            if stage == "U" and (not found or found[0].verdict is SKIPPED):
                assert module not in expected.optimizers
                continue
            (one,) = found
            verdict, reason = expected.others.get(short, {}).get(stage, (Verdict.PASS, ""))
            if one.verdict is not verdict or not re.search(reason, one.message):
                left.append(f"{words}: {one.verdict.value}, {one.message}")
            elif one.verdict is Verdict.PASS:
                assert one.compared
                passed[stage] += 1
            else:
                met.add((short, stage))
    assert left == []
    assert met == {(short, stage) for short, stages in expected.others.items() for stage in stages}
    bad = {short for short, stages in expected.others.items() if any(v is not SKIPPED for v, _ in stages.values())}
    errors = [found for found in report.findings if found.severity is Severity.ERROR]
    assert {found.message.split(": ")[0].rpartition(".")[2] for found in errors} == bad
    rows = report.facts["tensors"]
    assert sum(row["stage"] == "F" for row in rows) == expected.outputs
    # Without what is compared with PyTorch's own rounding: biases in front of a softmax, say.
    bounds = {"F": Tolerances().activations, "G": Tolerances().gradients}
    worst = {
        stage: max(row["relative"] for row in rows if row["stage"] == stage and is_plain(row, bound))
        for stage, bound in bounds.items()
    }
    figures = ", ".join(f"{stage} {passed[stage]}" for stage in TITLES if passed[stage])
    print(f"{name} {report.facts['state']}: {figures}; worst F {worst['F']:.1e}, G {worst['G']:.1e}")


def is_plain(row: Mapping[str, Any], bound: float) -> bool:
    """Whether a comparison agrees within the bound of its stage, which nothing widened."""
    return row["limit"] <= bound and not row["differs"]
