"""How many chunks of micro-batches a pipeline stage holds at a time, and how long it idles; in closed form.

`ms_models/parallel/schedules` makes the tables these formulas stand for; `tests/plan/test_plan_pipeline.py` compares
them. Sources: Huang et al. 2019 (GPipe), Narayanan et al. 2019 and 2021 (1F1B, interleaved, arXiv 2104.04473), Qi et
al. 2023 (zero bubble, arXiv 2401.10241).
"""

from __future__ import annotations

from dataclasses import dataclass

from mappings.errors import UserError


@dataclass(frozen=True)
class PassCosts:
    """Time of one micro-batch on a stage, in any unit."""

    forward: float
    backward: float
    backward_input: float
    """Of a backward pass in two parts; the other part is as long."""


def chunks_held(schedule: str, pp: int, vpp: int, micro_batches: int, stage: int) -> int:
    """Most chunks (of vpp per stage) whose micro-batch is between forward and backward pass on a stage."""
    if schedule == "gpipe":
        return micro_batches
    if schedule == "1f1b":
        return min(pp - stage, micro_batches)
    if schedule == "zero_bubble":
        return min(pp, micro_batches)
    if schedule == "interleaved":
        return min(2 * (pp - stage - 1) + (vpp - 1) * pp + 1, micro_batches * vpp)
    raise UserError(f"plan: unknown schedule {schedule!r}")


def idle(schedule: str, pp: int, vpp: int, costs: PassCosts) -> float:
    """Time per step in which a stage waits for others, where all stages cost the same."""
    both = costs.forward + costs.backward
    if schedule == "zero_bubble":
        # While a stage waits it computes gradients of weights that it has put off; what is left is a gradient of inputs
        # per stage (read off the tables at costs from 1 : 1 : 1 to 1 : 3 : 3).
        return (pp - 1) * max(costs.forward, costs.backward_input)
    return (pp - 1) * both / (vpp if schedule == "interleaved" else 1)
