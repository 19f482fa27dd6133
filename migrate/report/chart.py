"""Line charts as inline SVG, without a library and without scripts. Colours come from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from markupsafe import Markup

from migrate.report.model import Curve

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 40
COLOURS = 8  # series-0 to series-7 in the style sheet
# The first curve is a broad pale band, the others dashed lines over it: curves that coincide stay visible.
DASHES = ("", "", "7 4", "2 4", "10 3 2 3")
POINTS = 80  # up to so many values each gets a dot that tells its value


def line_chart(
    curves: Sequence[Curve],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Draws curves over a common pair of axes.

    Args:
        curves: at least one; values that are not finite are left out, with `log` also those that are not positive.
        x_label: below the axis.
        y_label: beside the axis.
        log: logarithmic y axis.
        marks: places on the x axis that get a vertical line, each with what happened there; those off the axis are
            left out.
    """
    drawn = [[(x, y) for x, y in zip(c.x, c.y, strict=True) if math.isfinite(y) and (y > 0 or not log)] for c in curves]
    points = [point for curve in drawn for point in curve]
    if not points:
        return Markup('<p class="empty">no values to draw</p>')
    xs, ys = zip(*points, strict=True)
    x_axis = _Axis(min(xs), max(xs), LEFT, WIDTH - RIGHT, log=False)
    y_axis = _Axis(min(ys), max(ys), HEIGHT - BOTTOM, TOP, log=log)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(y_label)} by {escape(x_label)}">',
        *_grid(x_axis, y_axis, x_label, y_label),
        *(_mark(x_axis.position(x), text) for x, text in marks if min(xs) <= x <= max(xs)),
        *(
            _series(curve, index, points, x_axis, y_axis)
            for index, (curve, points) in enumerate(zip(curves, drawn, strict=True))
        ),
        "</svg>",
    ]
    return Markup("".join(parts))


def swatch(index: int) -> Markup:
    """A short piece of the line of curve `index`, for a legend."""
    line = f'<line x1="1" y1="6" x2="33" y2="6" {_stroke(index)}/>'
    return Markup(f'<svg class="swatch" viewBox="0 0 34 12" aria-hidden="true">{line}</svg>')


def differences(curves: Sequence[Curve]) -> list[Curve]:
    """Relative difference of every later curve to the first, at the steps both have. Zeros stay zeros."""
    if not curves:
        return []
    reference = dict(zip(curves[0].x, curves[0].y, strict=True))
    result = []
    for curve in curves[1:]:
        shared = [(x, y) for x, y in zip(curve.x, curve.y, strict=True) if reference.get(x)]
        values = [abs(y - reference[x]) / abs(reference[x]) for x, y in shared]
        result.append(Curve(curve.name, [x for x, _ in shared], values, curve.group))
    return result


class _Axis:
    """Maps values to pixels, and picks round tick values."""

    def __init__(self, low: float, high: float, start: float, stop: float, *, log: bool) -> None:
        self.log, self.start, self.stop = log, start, stop
        if log:
            low, high = math.log10(low), math.log10(high)
            if high - low < 1:  # at least one decade, so that a tick label stands on the axis
                low, high = math.floor(low), math.floor(low) + max(1, math.ceil(high - math.floor(low)))
        elif low == high:
            pad = abs(low) * 0.05 or 1.0
            low, high = low - pad, high + pad
        self.low, self.high = low, high

    def position(self, value: float) -> float:
        """Pixel of a value."""
        value = math.log10(value) if self.log else value
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self) -> list[tuple[float, str]]:
        """Tick values with their labels."""
        if self.log:
            exponents = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
            stride = max(1, math.ceil(len(exponents) / 6))
            return [(10.0**e, f"1e{e}") for e in exponents if e % stride == 0]
        step = _round_step((self.high - self.low) / 6)
        first = math.ceil(self.low / step - 1e-9)
        values = [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(value, f"{value:.10g}" if abs(value) < 1e15 else f"{value:g}") for value in values]


def _round_step(rough: float) -> float:
    size = 10.0 ** math.floor(math.log10(rough))
    return next(factor * size for factor in (1, 2, 5, 10) if factor * size >= rough * (1 - 1e-9))


def _grid(x_axis: _Axis, y_axis: _Axis, x_label: str, y_label: str) -> list[str]:
    parts = []
    for value, label in y_axis.ticks():
        y = y_axis.position(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{label}</text>')
    for value, label in x_axis.ticks():
        x = x_axis.position(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{label}</text>')
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="label" x="{middle_x}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f'transform="rotate(-90 14 {middle_y})"'
    parts.append(f'<text class="label" x="14" y="{middle_y}" text-anchor="middle" {turned}>{escape(y_label)}</text>')
    return parts


def _mark(x: float, text: str) -> str:
    title = f"<title>{escape(text)}</title>"
    return f'<path class="mark" d="M{x:.1f},{TOP} V{HEIGHT - BOTTOM}">{title}</path>'


def _stroke(index: int) -> str:
    dash = DASHES[index] if index < len(DASHES) else DASHES[1 + index % (len(DASHES) - 1)]
    width, opacity = (6, 0.35) if index == 0 else (2, 1)
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return f'class="series series-{index % COLOURS}" stroke-width="{width}" stroke-opacity="{opacity}"{dashes}'


def _series(curve: Curve, index: int, points: Sequence[tuple[float, float]], x_axis: _Axis, y_axis: _Axis) -> str:
    placed = [(x_axis.position(x), y_axis.position(y)) for x, y in points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
    parts = [f'<polyline {_stroke(index)} points="{path}"/>']
    if len(points) <= POINTS:
        for (x, y), (px, py) in zip(points, placed, strict=True):
            title = f"<title>{escape(curve.name)}, {x:g}: {y:.9g}</title>"
            parts.append(
                f'<circle class="dot series-{index % COLOURS}" cx="{px:.1f}" cy="{py:.1f}" r="3">{title}</circle>'
            )
    return "".join(parts)
