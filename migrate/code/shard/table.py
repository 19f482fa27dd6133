"""What was cut how, for `report.json` and `MIGRATION.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.code.context import code_of
from migrate.code.shard.decide import CutLayer, Sharding
from migrate.code.shard.layers import EMBEDDING, LayerInfo

COLLECTIVES = {
    "column": "none forward; sum of input gradients backward",
    "row": "sum of outputs forward; none backward",
    "embedding": "sum of rows forward; none backward",
    "lm_head": "gather of logits forward; sum of input gradients backward",
}


def sharding_rows(sharding: Sharding) -> dict[str, Any]:
    """The facts for machines: a list of cut layers, and one of whole ones with reasons."""
    return {
        "cut": [_row(cut) for cut in sharding.cut],
        "whole": [{**_place(layer), "why": why} for layer, why in sharding.whole],
    }


def _row(cut: CutLayer) -> dict[str, Any]:
    outputs, inputs = _shape(cut.layer)
    rank = f"{inputs} / tp" if cut.cut == "row" else inputs
    share = f"ceil({outputs} / tp)" if cut.cut == "vocabulary" else f"{outputs} / tp"
    local = [outputs if cut.cut == "row" else share, rank]
    key = cut.layer_class if cut.cut == "vocabulary" else cut.cut
    return {
        **_place(cut.layer),
        "class": cut.layer_class,
        "cut": cut.cut,
        "shape": [outputs, inputs],
        "rank_shape": local,
        "heads": cut.heads,
        "parts": cut.parts,
        "collective": COLLECTIVES[key],
    }


def _place(layer: LayerInfo) -> dict[str, Any]:
    name = f"{layer.ref.owner.rpartition('.')[2]}.{layer.ref.attribute}.weight"
    return {"parameter": name, "file": str(layer.file.source.path), "line": layer.line}


def _shape(layer: LayerInfo) -> tuple[str, str]:
    """Text of the two lengths of a weight; products and sums in brackets."""
    names = ("num_embeddings", "embedding_dim") if layer.kind == EMBEDDING else ("out_features", "in_features")
    texts = []
    for name in names:
        given = (layer.arguments or {}).get(name)
        text = "?" if given is None else code_of(given.value)
        texts.append(f"({text})" if " " in text else text)
    return texts[0], texts[1]


def sharding_notes(rows: Mapping[str, Any]) -> list[str]:
    """The section of `MIGRATION.md`."""
    lines = [
        "",
        "## How layers are cut over ranks",
        "",
        "`msrun --worker_num=N --local_worker_num=N train.py` cuts them over N ranks; one process holds all and "
        "computes the same. Every rank reads the same batches. Parameters keep their names: `state_dict` and "
        "`load_state_dict` speak of whole tensors, and every rank has to call them. The cells are those of "
        "`ms_models.parallel`; their files came along in `ms_compat/`. Data parallel replicas besides: call "
        "`ms_compat.current.set_mesh` before a model is built.",
        "",
    ]
    if not rows["cut"]:
        lines.append("No layer was cut.")
    else:
        lines += [
            "| class | parameter | cut | whole shape | on a rank | stays together | communication | source |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for row in rows["cut"]:
        together = [f"{row['heads']} heads"] if row["heads"] else []
        together += [f"parts {row['parts']}"] if row["parts"] else []
        lines.append(
            f"| {row['class']} | `{row['parameter']}` | {row['cut']} | `[{', '.join(row['shape'])}]` "
            f"| `[{', '.join(row['rank_shape'])}]` | {', '.join(together)} | {row['collective']} "
            f"| `{row['file']}:{row['line']}` |"
        )
    if rows["whole"]:
        lines += ["", "These layers stay whole on every rank:", ""]
        lines += [f"* `{row['parameter']}` (`{row['file']}:{row['line']}`): {row['why']}" for row in rows["whole"]]
    return lines
