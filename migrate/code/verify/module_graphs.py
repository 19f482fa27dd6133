"""A module of a recipe as graphs: its forward pass, and that with gradients, against the eager results."""

from __future__ import annotations

import importlib
import importlib.util
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from migrate.code.verify.graph_comparison import GraphComparison, comparison_of_call, comparison_of_gradient
from migrate.code.verify.job import Job
from migrate.report import Verdict
from migrate.sides.framework import Framework
from migrate.sides.outputs import leaves, loss_of, tensors_of
from migrate.sides.recipes import Recipe

FILE = "graphs.json"
CALLS = 3
"""With other inputs and, after the first, other weights."""
_STEP = 0.05
_STARTED = "the process ended while it was compiled"


@dataclass(frozen=True)
class ModuleGraph:
    """What became of a module as a graph."""

    verdict: str
    """Of `Verdict`: pass, where the results agree; fail, where they differ; skipped, where it stays eager."""
    message: str
    worst: float = 0.0
    """Largest difference, in parts of the norm."""
    kind: str = ""
    """Qualified name of its class."""


def compare_as_graph(framework: Framework, job: Job, recipe: Recipe, module: Any, folder: Path) -> bool:
    """Writes what becomes of a module; False if this process may not be fit for other graphs."""
    kind = f"{type(module).__module__}.{type(module).__qualname__}"
    _write(folder, ModuleGraph(Verdict.SKIPPED.value, _STARTED, kind=kind))
    target = module if recipe.method is None else getattr(module, recipe.method)
    decode_step, compiled_step = helper("decode_step"), helper("compiled_step")

    def forward(*args: Any, **kwargs: Any) -> Any:
        return [leaf for _, leaf in leaves(target(*args, **kwargs), framework.tensor)]

    weights: dict[str, Any] = {}

    def loss(*args: Any, **kwargs: Any) -> Any:
        return loss_of(framework, recipe, target(*args, **kwargs), weights)

    parameters = [p for p in module.get_parameters() if p.requires_grad]
    parts: list[tuple[str, GraphComparison, list[Any]]] = [("forward", comparison_of_call(decode_step, forward), [])]
    if parameters:
        gradient = helper("backward").Gradient(loss)
        parts.append(("gradients", comparison_of_gradient(compiled_step, loss, [module], gradient), parameters))
        positional, keywords = _arguments(framework, recipe, 0)
        loss(*positional, **keywords)  # which draws the weights of the loss
    reasons: dict[str, str] = {}
    for draw in range(CALLS):
        args, kwargs = _arguments(framework, recipe, draw)
        for part, comparison, mine in parts:
            if part in reasons:
                continue
            different = comparison.difference(mine, args, kwargs)
            if different is not None:
                _write(folder, ModuleGraph(Verdict.FAIL.value, f"{part}: {different}", comparison.worst, kind))
                return not comparison.failed
            if comparison.refused is not None:
                reasons[part] = _relative(comparison.refused, job.root)
                if comparison.failed:
                    _write(folder, _summary(parts, reasons, kind))
                    return False
        if parameters:
            framework.step(module, _bound(loss, args, kwargs), _STEP)
    _write(folder, _summary(parts, reasons, kind))
    return True


def _arguments(framework: Framework, recipe: Recipe, draw: int) -> tuple[list[Any], dict[str, Any]]:
    positional, keywords = recipe.arguments(draw)
    args = [tensors_of(framework, value) for value in positional]
    return args, {key: tensors_of(framework, value) for key, value in keywords.items()}


def _bound(loss: Callable[..., Any], args: Any, kwargs: Any) -> Callable[[], Any]:
    return lambda: loss(*args, **kwargs)


def _summary(parts: list[tuple[str, GraphComparison, Any]], reasons: dict[str, str], kind: str) -> ModuleGraph:
    worst = max(comparison.worst for _, comparison, _ in parts)
    if not reasons:
        dropout = ", without dropout" if any(comparison.has_dropout for _, comparison, _ in parts) else ""
        return ModuleGraph(Verdict.PASS.value, f"equal{dropout}", worst, kind)
    good = [part for part, comparison, _ in parts if part not in reasons and comparison.compared]
    equal = f"{good[0]} equal; " if good else ""
    text = "; ".join(f"{part}: {reason}" if len(reasons) < len(parts) else reason for part, reason in reasons.items())
    if len(set(reasons.values())) == 1 and len(reasons) == len(parts):
        text = next(iter(reasons.values()))
    return ModuleGraph(Verdict.SKIPPED.value, f"{equal}does not compile: {text}", worst, kind)


def helper(name: str) -> Any:
    """A helper of the output, or the one that would come along: a project without training steps has none of these."""
    if importlib.util.find_spec("ms_compat") is None:
        return importlib.import_module(f"ms_models.compat.{name}")
    package: Any = importlib.import_module("ms_compat")
    ours = str(Path(importlib.import_module("ms_models.compat").__path__[0]))
    if ours not in package.__path__:
        package.__path__.append(ours)
    return importlib.import_module(f"ms_compat.{name}")


def _relative(reason: str, root: Path) -> str:
    return reason.replace(f"{root}/", "").replace(f"{root.resolve()}/", "")


def _write(folder: Path, found: ModuleGraph) -> None:
    """At every change: a compiler may end the process."""
    (folder / FILE).write_text(json.dumps(asdict(found)), encoding="utf-8")


def read_graph(folder: Path) -> ModuleGraph | None:
    """What `compare_as_graph` wrote, if it did."""
    path = folder / FILE
    return ModuleGraph(**json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None
