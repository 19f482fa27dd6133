"""Models of every family in sizes that are drawn to fit two random layouts."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from mappings.families import load_family
from mappings.layout import ParallelLayout

SMALL = yaml.safe_load((Path(__file__).parents[1] / "mappings_core" / "family_configs.yaml").read_text("utf-8"))


def a_layout(draw: Any, axes: dict[str, list[int]]) -> ParallelLayout:
    values = {axis: draw(st.sampled_from(sizes)) for axis, sizes in axes.items()}
    if values["pp"] == 1:
        values["vpp"] = 1
    values["dp"] = values["ep"] * draw(st.integers(1, 2))
    return ParallelLayout(**values, zero=draw(st.sampled_from([0, 0, 1, 3])), vocab_multiple=draw(st.integers(1, 5)))


@st.composite
def models(draw: Any, name: str) -> tuple[dict[str, Any], list[ParallelLayout], list[str]]:
    """A config.json of a family, and two layouts and spellings that its sizes are drawn to fit."""
    family, body = load_family(name), SMALL[name]
    changes = dict(draw(st.sampled_from(body.get("cases") or body["variants"])))
    architecture = changes.pop("class", family.architectures[0])
    config = {"architectures": [architecture], "model_type": family.model_types[0], **body["config"], **changes}
    experts = "experts" in family.dimensions
    axes = {"tp": [1, 2, 3, 4], "pp": [1, 1, 2, 3], "vpp": [1, 2], "ep": [1, 2, 3] if experts else [1]}
    layouts = [a_layout(draw, axes) for _ in range(2)]
    tp = math.lcm(*(layout.tp for layout in layouts))
    stages = max(layout.pp * layout.vpp for layout in layouts)
    heads = tp * draw(st.integers(1, 2))
    sizes = {
        "vocab": draw(st.integers(1, 40)),
        "layers": draw(st.integers(stages, stages + 1)),
        "heads": heads,
        "kv_heads": draw(st.sampled_from([tp, heads, *(2 for layout in layouts if layout.tp in (2, 4) and tp < 6)])),
        "hidden": heads * draw(st.integers(1, 3)),
        "experts": math.lcm(*(layout.ep for layout in layouts)),
    }
    for symbol, source in family.dimensions.items():
        if "ffn" in symbol:
            sizes[symbol] = tp * draw(st.integers(1, 4))
        fields = [source[key] for key in ("field",) if key in source] + list(source.get("also", ()))
        if symbol in sizes and (held := [field for field in fields if field in config]):
            config[held[0]] = sizes[symbol]
    if "groups" in family.dimensions:  # of falcon and chatglm3: heads of keys where they are shared
        config[family.dimensions["groups"]["field"]] = sizes["kv_heads"]
    spellings = [draw(st.sampled_from(["hf", *plain_spellings(name)])) for _ in range(2)]
    return config, layouts, spellings


def plain_spellings(name: str) -> list[str]:
    """Other spellings whose tensors are stored as they are, not encoded."""
    family = load_family(name)
    config = {"model_type": family.model_types[0], **SMALL[name]["config"]}
    return [s for s in family.spellings if not any(tensor.encoding for tensor in family.spelling(config, s))]
