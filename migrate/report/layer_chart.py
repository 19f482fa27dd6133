"""Relative differences of many tensors by layer, as one small chart: a dot per tensor, the limit as a line."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from markupsafe import Markup

WIDTH, HEIGHT = 760, 220
LEFT, RIGHT, TOP, BOTTOM = 64, 14, 12, 44
LOW, HIGH = -10, 0
"""Exponents of the axis; what is smaller or larger stands on its edge."""
LABELS = 16
"""At most so many names below the axis."""
CHARACTER = 7
"""Width of a character of a name."""
_LAYER = re.compile(r"\.(\d+)\.")


def layer_chart(rows: Sequence[Mapping[str, Any]], label: str, by: str = "layer") -> Markup | None:
    """Draws the tensors of one stage.

    Args:
        rows: `name`, `relative`, `limit` and `differs` of each, in any order.
        label: of the vertical axis.
        by: `layer`, or `module`, for the modules that were compared, which the rows name.

    Returns:
        None where there is nothing to draw.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    if by == "module":
        for row in rows:
            groups.setdefault(str(row["module"]), []).append({**row, "name": f"{row['module']}: {row['name']}"})
    else:
        for row in sorted(rows, key=lambda row: _place(str(row["name"]))):
            groups.setdefault(_group(str(row["name"])), []).append(row)
    if not groups:
        return None
    width = (WIDTH - LEFT - RIGHT) / len(groups)
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)} by {by}">', *_axis(label, by)]
    stride = math.ceil(len(groups) / LABELS)
    for index, (name, members) in enumerate(groups.items()):
        left = LEFT + index * width
        if index % stride == 0:
            text = f'<text class="tick" x="{left + width / 2:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">'
            parts.append(f"{text}{escape(_cut(name, stride * width))}</text>")
        limits = [float(row["limit"]) for row in members if isinstance(row.get("limit"), int | float)]
        if limits and max(limits) > 0:
            y = _y(max(limits))
            parts.append(f'<line class="limit" x1="{left:.1f}" y1="{y:.1f}" x2="{left + width:.1f}" y2="{y:.1f}"/>')
        for number, row in enumerate(members):
            parts.append(_dot(row, left + width * (number + 1) / (len(members) + 1)))
    parts.append("</svg>")
    return Markup("".join(parts))


def _place(name: str) -> tuple[int, int]:
    """Tensors before the layers, the layers by number, tensors behind them."""
    if found := _LAYER.search(name):
        return 1, int(found.group(1))
    return (0 if "embed" in name or ".wte" in name or ".wpe" in name else 2), 0


def _group(name: str) -> str:
    before, number = _place(name)
    return ("in", str(number), "out")[before]


def _y(value: float) -> float:
    exponent = LOW if value <= 0 else min(HIGH, max(LOW, math.log10(value))) if math.isfinite(value) else HIGH
    return TOP + (HIGH - exponent) / (HIGH - LOW) * (HEIGHT - TOP - BOTTOM)


def _cut(name: str, width: float) -> str:
    """The end of a name that fits."""
    most = max(4, int(width / CHARACTER))
    return name if len(name) <= most else f"...{name[3 - most :]}"


def _axis(label: str, by: str) -> list[str]:
    parts = []
    for exponent in range(LOW, HIGH + 1, 2):
        y = _y(10.0**exponent)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        name = "1" if exponent == 0 else f"1e{exponent}"
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{name}</text>')
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="label" x="{middle_x}" y="{HEIGHT - 6}" text-anchor="middle">{by}</text>')
    turned = f'transform="rotate(-90 14 {middle_y})"'
    parts.append(f'<text class="label" x="14" y="{middle_y}" text-anchor="middle" {turned}>{escape(label)}</text>')
    return parts


def _dot(row: Mapping[str, Any], x: float) -> str:
    value = float(row.get("relative", 0))
    kind, radius = ("point bad", 4) if row.get("differs") else ("point", 2.5)
    title = f"<title>{escape(str(row['name']))}: {value:.3g}</title>"
    return f'<circle class="{kind}" cx="{x:.1f}" cy="{_y(value):.1f}" r="{radius}">{title}</circle>'
