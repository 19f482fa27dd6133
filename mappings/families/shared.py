"""Spellings that several families share: `mappings/families/spellings/<name>.yaml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mappings.families.yaml_files import read_yaml

Row = Mapping[str, Any]
FOLDER = Path(__file__).parent / "spellings"
BLOCK = "{block}"


def shared_spellings(name: str, atoms: set[str], layer_count: str) -> dict[str, dict[str, Any]]:
    """The spellings of a shared file, with the rows all of whose atoms a family has.

    `{block}` in a name stands for each of the file's `blocks` in the layers where its condition holds. Blocks behind
    the decoder layers are left out for families that have no such layers.

    Args:
        name: of the file.
        atoms: templates of the family's atoms.
        layer_count: the family's number of layer indices.

    Raises:
        ValueError: there is no such file.
    """
    path = FOLDER / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(
            f"no spelling {name!r} is shared (known: {', '.join(sorted(p.stem for p in FOLDER.glob('*')))})"
        )
    data = read_yaml(path)
    blocks: dict[str, str] = data.get("blocks", {})
    if layer_count == "layers":
        blocks = dict(list(blocks.items())[:1])
    result: dict[str, dict[str, Any]] = {}
    for spelling, body in data["spellings"].items():
        body = body if isinstance(body, dict) else {"from": "hf", "rows": body}
        rows = [made for row in body["rows"] if _fits(row, atoms) for made in _expanded(row, blocks)]
        result[spelling] = {**body, "rows": rows}
    return result


def _fits(row: Row, atoms: set[str]) -> bool:
    of = [row["of"]] if isinstance(row["of"], str) else row["of"].values()
    return all(atom in atoms for atom in of)


def _expanded(row: Row, blocks: Mapping[str, str]) -> Iterator[Row]:
    if BLOCK not in row["name"]:
        yield row
        return
    for block, condition in blocks.items():
        # One block is there for all layers.
        when = {"when": condition} if len(blocks) > 1 else {}
        yield {**row, "name": row["name"].replace(BLOCK, block), **when}
