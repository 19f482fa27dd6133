"""The chart: values land where the axes say, and differences are relative to the first curve."""

from __future__ import annotations

import math
import re

import pytest

from migrate.report.chart import HEIGHT, LEFT, TOP, WIDTH, differences, line_chart
from migrate.report.model import Curve


def labels(svg: str) -> list[str]:
    return re.findall(r'class="tick"[^>]*>([^<]+)<', svg)


def polylines(svg: str) -> list[list[tuple[float, float]]]:
    groups = re.findall(r'points="([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in group.split()] for group in groups]  # type: ignore[misc]


def test_a_straight_line_stays_straight_and_fills_the_plot() -> None:
    svg = line_chart([Curve("a", [0.0, 5.0, 10.0], [1.0, 2.0, 3.0])], x_label="step", y_label="loss")
    ((first, middle, last),) = polylines(svg)
    assert first[0] == LEFT and last[1] == TOP
    assert middle == pytest.approx(((first[0] + last[0]) / 2, (first[1] + last[1]) / 2), abs=0.1)
    assert {"0", "10", "1", "2", "3"} <= set(labels(svg))


def test_a_decade_is_a_constant_distance_on_the_log_axis() -> None:
    svg = line_chart([Curve("a", [0.0, 1.0, 2.0], [1e-8, 1e-6, 1e-4])], x_label="x", y_label="y", log=True)
    ((_, a), (_, b), (_, c)) = polylines(svg)[0]
    assert a - b == pytest.approx(b - c, abs=0.2)
    assert {"1e-8", "1e-6", "1e-4"} <= set(labels(svg))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("values", [[2.0, 2.0], [2.5, 2.6], [1e-30, 1e30], [1e6, 1e6 + 1]])
def test_axes_hold_any_range(values: list[float], log: bool) -> None:
    svg = line_chart([Curve("a", [1.0, 2.0], values)], x_label="x", y_label="y", log=log)
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in polylines(svg)[0])
    assert 2 <= len(labels(svg)) <= 20


def test_values_without_a_place_are_left_out() -> None:
    curve = Curve("a", [1.0, 2.0, 3.0], [math.nan, 0.0, 1.0])
    assert len(polylines(line_chart([curve], x_label="x", y_label="y"))[0]) == 2
    assert len(polylines(line_chart([curve], x_label="x", y_label="y", log=True))[0]) == 1
    assert "no values" in line_chart([Curve("a", [1.0], [0.0])], x_label="x", y_label="y", log=True)


def test_values_can_be_read_under_the_pointer() -> None:
    svg = line_chart([Curve("tp=2", [7.0], [3.14159265])], x_label="x", y_label="y")
    assert "<title>tp=2, 7: 3.14159265</title>" in svg


def test_differences_are_relative_and_at_common_steps_only() -> None:
    reference = Curve("a", [1.0, 2.0, 3.0], [4.0, -2.0, 1.0])
    (apart,) = differences([reference, Curve("b", [2.0, 3.0, 4.0], [-2.2, 1.0, 9.0])])
    assert apart.x == [2.0, 3.0]
    assert apart.y == pytest.approx([0.1, 0.0])
    assert differences([reference]) == []
