"""Steps of training and of generation in the converted code: where, and the switch that makes one run as a graph."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from migrate.code.writer import PACKAGE
from migrate.report import Finding

EAGER, COMPILED, POSSIBLE = "eager", "compiled", "may be compiled"
STAYS_EAGER = "; it stays eager: "
"""Between the message of a finding M402, M404 or M405 and the line that keeps the step from being compiled."""
AGREES = "agrees: "
"""In front of what is to be said of a step that may be compiled."""
TRAINING, GENERATION = "training step", "generation step"
SWITCHED = ("M402", "M404")
"""Findings of steps that have a switch."""
_MAKER, _TAPE = "backward_of", "M403"
_DECODE, _CHANGING = "decode_step", "M405"


@dataclass(frozen=True)
class Step:
    """A `loss.backward()`, or a call of a model in a loop of generation, and what became of it."""

    file: str
    line: int
    """Of `backward()` or of the call, in the repository."""
    mode: str
    reason: str = ""
    """Why it stays eager, or what would let it be compiled."""
    function_line: int = 0
    """In the output: of the function that computes the loss, or of the call; 0 without a switch."""
    kind: str = TRAINING
    calls: tuple[tuple[int, str], ...] = ()
    """In the output: lines and names of the models that are called as graphs, where a tape goes back through them."""

    @property
    def by_tape(self) -> bool:
        """Whether no function computes the loss, so that the operations are recorded as they run."""
        return self.kind == TRAINING and not self.function_line


def find_steps(texts: Iterable[tuple[str, str]], findings: Sequence[Finding]) -> list[Step]:
    """The steps that the findings M402 to M405 tell of.

    Args:
        texts: path and converted text of every file.
        findings: of the conversion.
    """
    steps: list[Step] = []
    for file, text in texts:
        mine = sorted((f for f in findings if f.file == file and f.line is not None), key=lambda f: f.line or 0)
        for found in mine:
            if found.code == _TAPE:
                steps.append(Step(file, found.line or 0, EAGER, found.message))
            elif found.code == _CHANGING:
                reason = found.message.partition(STAYS_EAGER)[2]
                steps.append(Step(file, found.line or 0, EAGER, reason, kind=GENERATION))
        switched = [found for found in mine if found.code in SWITCHED]
        tree = ast.parse(text) if switched else ast.Module([], [])
        for code, kind, calls in (("M402", TRAINING, _calls), ("M404", GENERATION, _decode_lines)):
            made = [found for found in switched if found.code == code]
            for found, line in zip(made, calls(tree), strict=False):
                _, _, reason = found.message.partition(STAYS_EAGER)
                mode = EAGER if reason else POSSIBLE
                reason = reason or "compare a run of it: a program in the recipes, with --modules"
                steps.append(Step(file, found.line or 0, mode, reason, line, kind))
    return sorted(steps, key=lambda step: (step.file, step.line))


def judged(steps: Sequence[Step], outcomes: dict[tuple[str, int], str | None]) -> list[Step]:
    """The steps after a comparison.

    Args:
        steps: of the conversion.
        outcomes: by file and `function_line`: None, or a text with `AGREES`, where compiled and eager results agree,
            else why it stays eager;
            by `call_place` and line for the calls of models where a tape goes back through them.
    """
    result = []
    for step in steps:
        if step.function_line and (step.file, step.function_line) in outcomes:
            reason = outcomes[step.file, step.function_line]
            mode = COMPILED if reason is None or reason.startswith(AGREES) else EAGER
            step = replace(step, mode=mode, reason=(reason or "").removeprefix(AGREES))
        elif step.by_tape:
            step = _judged_tape(step, outcomes)
        elif step.mode == POSSIBLE:
            step = replace(step, reason="no program of the recipes reached it")
        result.append(step)
    return result


def call_place(file: str, name: str) -> str:
    """Where a model is called: file and name."""
    return f"{file}#{name}"


def _judged_tape(step: Step, outcomes: Mapping[tuple[str, int], str | None]) -> Step:
    """A step whose models may be graphs, each for itself."""
    start = call_place(step.file, "")
    mine = {
        (line, place.removeprefix(start)): reason
        for (place, line), reason in sorted(outcomes.items(), key=lambda item: item[0][1])
        if place.startswith(start)
    }
    good = tuple(call for call, reason in mine.items() if reason is None or reason.startswith(AGREES))
    bad = [f"line {line}, {name}: {reason}" for (line, name), reason in mine.items() if (line, name) not in good]
    if not good or any("differ" in text for text in bad):
        return replace(step, reason="; ".join([step.reason, *bad]))
    models = ", ".join(f"{name} in line {line}" for line, name in good)
    return replace(
        step, mode=COMPILED, reason="; ".join([f"{models}; what surrounds them goes by the tape", *bad]), calls=good
    )


def switched_on(text: str, function_lines: Iterable[int]) -> str:
    """The text with `compiled=True` in the switches of these lines; a second time changes nothing."""
    wanted = set(function_lines)
    lines = text.splitlines(keepends=True)
    tree = ast.parse(text)
    switches = _makers(tree) + [(call.lineno, call) for call in _decode_calls(tree)]
    places = [call for line, call in switches if line in wanted and not call.keywords]
    for call in sorted(places, key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0), reverse=True):
        assert call.end_lineno is not None and call.end_col_offset is not None
        row = lines[call.end_lineno - 1].encode()
        row = row[: call.end_col_offset - 1] + b", compiled=True" + row[call.end_col_offset - 1 :]
        lines[call.end_lineno - 1] = row.decode()
    return "".join(lines)


def _makers(tree: ast.Module) -> list[tuple[int, ast.Call]]:
    """Line of the function and call of every `name = backward_of(function, ...)` that follows its function."""
    return [(function.lineno, call) for _, function, call in _pairs(tree)]


def _pairs(tree: ast.Module) -> list[tuple[ast.Assign, ast.FunctionDef, ast.Call]]:
    found = []
    for node in ast.walk(tree):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if not isinstance(statements, list):
                continue
            for function, made in itertools.pairwise(statements):
                if not (isinstance(function, ast.FunctionDef) and isinstance(made, ast.Assign)):
                    continue
                call = made.value
                if not (isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == _MAKER and call.args):
                    continue
                if isinstance(call.args[0], ast.Name) and call.args[0].id == function.name:
                    found.append((made, function, call))
    return sorted(found, key=lambda item: item[0].lineno)


def _calls(tree: ast.Module) -> list[int]:
    """Line of the function behind each call of a gradient function, in the order of the calls."""
    made = [(ast.unparse(assign.targets[0]), assign.lineno, function.lineno) for assign, function, _ in _pairs(tree)]
    names = {name for name, _, _ in made}
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
    ]
    lines = []
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        before = [line for name, at, line in made if name == ast.unparse(call.func) and at < call.lineno]
        if before:
            lines.append(before[-1])
    return lines


def _decode_calls(tree: ast.Module) -> list[ast.Call]:
    """Every `decode_step(model)` of the helper, in the order of the text; a program may have such a function, too."""
    names = _decode_names(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) in names]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset))


def _decode_names(tree: ast.Module) -> set[str]:
    """What the helper's function is called after the imports of a file."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names if alias.asname is None]
            names |= {f"{name}.{_DECODE}" for name in modules if name.split(".")[-2:] == [PACKAGE, _DECODE]}
        elif isinstance(node, ast.ImportFrom):
            path = (node.module or "").split(".")
            mine = [alias.asname or alias.name for alias in node.names if alias.name == _DECODE]
            if path[-2:] == [PACKAGE, _DECODE]:
                names |= set(mine)
            elif path[-1] == PACKAGE:
                names |= {f"{name}.{_DECODE}" for name in mine}
    return names


def _decode_lines(tree: ast.Module) -> list[int]:
    return [call.lineno for call in _decode_calls(tree)]


def execution_notes(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """The section of `MIGRATION.md`."""
    lines = ["", "## Execution"]
    for kind, title in _TITLES.items():
        if mine := [step for step in steps if step["kind"] == kind]:
            lines += ["", title, ""]
        for step in mine:
            reason = f": {step['reason']}" if step["reason"] else ""
            lines.append(f"* `{step['file']}:{step['line']}` {step['mode']}{reason}")
    return lines


_TITLES = {
    TRAINING: "Training steps, and whether forward, loss and gradients run as one graph:",
    GENERATION: "Generation steps, and whether the model runs as one graph:",
}


def as_facts(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """For `report.json`."""
    return [asdict(step) for step in steps]
