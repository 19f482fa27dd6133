"""Strategy files of all stages together, read and made."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.strategy import Operator, Strategy, TensorLayout, encode_strategy, read_strategy
from mappings.formats.strategy_slices import Slices, slices, tensor_layout
from mappings.layout import MAX_RANKS
from migrate.weights.containers.content import Content
from migrate.weights.containers.stages import Stages
from migrate.weights.containers.states import state_name
from migrate.weights.containers.stored_files import state_style

MERGED_NAME = re.compile("[0-9]+-")  # the stage in front
Layouts = list[dict[str, TensorLayout]]
"""Per stage, by parameter."""


def strategies_of(stages: Stages) -> list[Strategy]:
    """One strategy per stage.

    Raises:
        UserError: a cut has no form in a strategy file.
    """
    result = []
    for stage, cuts in enumerate(stages.cuts):
        layouts = {}
        for name, cut in cuts.items():
            try:
                layouts[name] = tensor_layout(cut)
            except ValueError as error:
                raise UserError(f"tensor {name!r}: {error}") from error
        # MindSpore takes the number of the stage from the first operator, whatever that is.
        result.append(Strategy(1, (Operator("network", stage, ((1,),)),), layouts))
    return result


def stages_of(strategies: Sequence[Path], content: Content) -> Stages:
    """The cut that strategy files of a target ask for.

    Raises:
        UserError: they are malformed, contradict each other, or lack a tensor.
    """
    layouts, ranks = read_layouts(strategies)
    axes = {name: len(expected.arrangement.shape) for name, expected in content.whole.items()}
    style = state_style(content.spelling)
    cuts = []
    for stage in layouts:
        found = {}
        for name, count in axes.items():
            for state in ("", *content.states):
                given = stage.get(state_name(state, name, style)) or (stage.get(name) if state else None)
                if given is not None:
                    found[state_name(state, name, style)] = checked(strategies[0], name, given, count)
        cuts.append(found)
    if lost := [name for name in axes if not any(name in found for found in cuts)]:
        raise UserError(f"{strategies[0]}: has no layout for {', '.join(lost[:5])} ({len(lost)} in all)")
    return Stages(ranks, tuple(cuts))


def read_layouts(paths: Sequence[Path]) -> tuple[Layouts, int]:
    """Layouts of every stage, and the number of ranks of each.

    Raises:
        UserError: files are malformed, contradict each other, or lack a stage.
    """
    found: dict[int, dict[str, TensorLayout]] = {}
    seen: set[bytes] = set()
    for path in paths:
        strategy = read_strategy(path)
        text = encode_strategy(strategy)
        if text in seen:  # ranks of one stage have equal files
            continue
        seen.add(text)
        own = strategy.operators[0].stage if strategy.operators else 0
        is_merged = all(MERGED_NAME.match(name) for name in strategy.layouts)
        for name, one in strategy.layouts.items():
            stage, parameter = own, name
            if is_merged:  # in the file of one stage, a parameter's own name may begin so
                number, _, parameter = name.partition("-")
                stage = int(number)
            if found.setdefault(stage, {}).setdefault(parameter, one) != one:
                raise UserError(f"{path}: parameter {parameter!r}: another file of stage {stage} cuts it differently")
    if not found:
        raise UserError(f"{paths[0]}: has no layouts")
    if sorted(found) != list(range(len(found))):
        raise UserError(f"{paths[0]}: stages {sorted(found)} are given, which are not all")
    sizes = {_mesh_size(one) for stage in found.values() for one in stage.values()}
    if max(sizes) > MAX_RANKS:
        raise UserError(f"{paths[0]}: layouts are for {max(sizes)} ranks, which no run has")
    if len(sizes) > 1:
        raise UserError(f"{paths[0]}: layouts are for {' and '.join(map(str, sorted(sizes)))} ranks")
    return [found[stage] for stage in range(len(found))], sizes.pop()


def checked(source: Path, name: str, given: TensorLayout, axes: int) -> Slices:
    """The cut that a layout describes, for a tensor of a number of axes.

    Raises:
        UserError: the layout contradicts itself or the tensor.
    """
    try:
        return slices(given, axes)
    except ValueError as error:
        raise UserError(f"{source}: parameter {name!r}: {error}") from error


def _mesh_size(one: TensorLayout) -> int:
    return math.prod(one.dev_matrix[0]) if one.dev_matrix else 0
