"""Files beside the tensors, mutated: they are read, or there is one error that names the file; never anything else."""

from __future__ import annotations

import json
import tempfile
import time
import tracemalloc
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hf_checkpoints import config, write_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from migrate.weights.command import convert, export, verify
from migrate.weights.destinations import Destination

SECONDS, MEMORY = 20, 48 << 20
LAYOUT = ParallelLayout(tp=2)
KINDS = {
    "sharded": Destination(layout=LAYOUT),
    "mindspore": Destination("mindspore"),
    "strategy": Destination("strategy", LAYOUT, "mindformers", as_ckpt=True),
    "iteration": Destination("iteration", LAYOUT, "mindformers"),
    "ckpt": Destination("ckpt"),
}
JSON = {
    "hf/config.json": "hf",
    "sharded/config.json": "sharded",
    "hf/model.safetensors.index.json": "hf",
    "sharded/manifest.json": "sharded",
    "mindspore/param_name_map.json": "mindspore",
    "mindspore/conversion_manifest.json": "mindspore",
    "iteration/iteration_00000000/metadata.json": "iteration",
    "iteration/latest_checkpointed_iteration.txt": "iteration",
}
BINARY = {
    "strategy/strategy/ckpt_strategy_rank_1.ckpt": "strategy",
    "strategy/rank_0/checkpoint_0.ckpt": "strategy",
    "ckpt/model.ckpt": "ckpt/model.ckpt",
}
VALUES: list[Any] = [
    None, True, -1, 0, 1.5, 2**31, 2**63, 10**30, "", "..", "../x", "/etc/passwd", "a\nb", "\0", "BF16", "hf", "nobody",
    [], [[]], {}, {"": ""}, [0, 2**40], [-1, 3], "x" * 5000, float("nan"), float("inf"),
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mutated")
    write_model(root / "hf", config("qwen2", num_key_value_heads=2), shards=2)
    for name, destination in KINDS.items():
        assert convert(root / "hf", root / name, destination=destination).exit_code == 0
    return root


def attempt(place: Path, file: str, source: str, data: bytes) -> None:
    """Export and verify of a checkpoint with one file changed."""
    path = place / file
    whole = path.read_bytes()
    path.unlink()  # it may be linked
    path.write_bytes(data)
    start = time.monotonic()
    tracemalloc.start()
    try:
        for number in range(2):
            with tempfile.TemporaryDirectory() as folder:
                try:
                    if number:
                        verify(place / source)
                    else:
                        export(place / source, Path(folder) / "out")
                except UserError as error:
                    assert "\n" not in str(error) and str(error)
                    assert list(Path(folder).iterdir()) == [], "nothing stays"
        assert tracemalloc.get_traced_memory()[1] < MEMORY
        assert time.monotonic() - start < SECONDS
    finally:
        tracemalloc.stop()
        path.unlink()
        path.write_bytes(whole)


def nodes(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where every value in a JSON document is."""
    found = [path]
    if isinstance(value, dict):
        for key, one in value.items():
            found += nodes(one, (*path, key))
    if isinstance(value, list):
        for index, one in enumerate(value):
            found += nodes(one, (*path, index))
    return found


def mutated_json(draw: Any, text: bytes) -> bytes:
    value = json.loads(text)
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(nodes(value)))
        new = deepcopy(draw(st.sampled_from(VALUES)))  # a second change may be inside it
        if not path:
            return json.dumps(new).encode()
        inside = value
        for step in path[:-1]:
            inside = inside[step]
        match draw(st.sampled_from(["value", "value", "gone", "renamed", "twice"])):
            case "gone":
                del inside[path[-1]]
            case "renamed" if isinstance(inside, dict):
                inside[str(new)[:99]] = inside.pop(path[-1])
            case "twice" if isinstance(inside, list):
                inside.append(inside[path[-1]])
            case _:
                inside[path[-1]] = new
    return json.dumps(value).encode()


def mutated_bytes(draw: Any, data: bytes, head: int = 400) -> bytes:
    """A few bytes changed, mostly near the beginning, where the structure is."""
    raw = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.one_of(st.integers(0, min(head, len(raw) - 1)), st.integers(0, len(raw) - 1)))
        piece = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"\xff" * 9 + b"\x01", b"\xff\xff\xff\x7f"])))
        match draw(st.sampled_from(["replace", "insert", "cut", "end", "double"])):
            case "replace":
                raw[at : at + len(piece)] = piece
            case "insert":
                raw[at:at] = piece
            case "cut":
                del raw[at : at + draw(st.integers(1, 20))]
            case "end":
                del raw[at:]
            case "double":
                raw[at:at] = raw[at : at + 30]
        if not raw:
            break
    return bytes(raw)


QUICK = settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@pytest.mark.parametrize("file", JSON)
@QUICK
@given(data=st.data())
def test_json(place: Path, file: str, data: Any) -> None:
    text = (place / file).read_bytes()
    as_json = file.endswith(".json") and data.draw(st.integers(0, 3)) > 0
    attempt(place, file, JSON[file], (mutated_json if as_json else mutated_bytes)(data.draw, text))


@pytest.mark.parametrize("file", BINARY)
@QUICK
@given(data=st.data())
def test_protobufs(place: Path, file: str, data: Any) -> None:
    attempt(place, file, BINARY[file], mutated_bytes(data.draw, (place / file).read_bytes()))


def _changed(body: Any, path: tuple[Any, ...], value: Any) -> bytes:
    inside = body
    for step in path[:-1]:
        inside = inside[step]
    inside[path[-1]] = value
    return json.dumps(body).encode()


FIRST = ("source", "files", "model-00001-of-00002.safetensors")


@pytest.mark.parametrize(
    ("file", "path", "value"),
    [
        ("hf/model.safetensors.index.json", ("metadata",), True),
        ("hf/model.safetensors.index.json", ("metadata",), [1]),
        ("mindspore/conversion_manifest.json", ("files",), {}),
        ("mindspore/conversion_manifest.json", ("source", "left_out"), [[]]),
        ("mindspore/conversion_manifest.json", (*FIRST, "tensors", 1, 0), []),
        ("mindspore/conversion_manifest.json", FIRST, None),
        ("mindspore/conversion_manifest.json", ("source", "spelling"), []),
        ("mindspore/conversion_manifest.json", ("source", "index"), 3),
        ("mindspore/conversion_manifest.json", ("source", "index", "metadata"), "x"),
        ("mindspore/conversion_manifest.json", ("source", "tied"), {"lm_head.weight": []}),
        ("sharded/manifest.json", ("source", "spelling"), {}),
        ("sharded/manifest.json", ("files", "config.json"), {"a\nb": 1}),
        ("mindspore/conversion_manifest.json", ("files", "config.json"), {"a\nb": 1}),
        ("mindspore/conversion_manifest.json", ("a\nb",), 1),
        ("sharded/manifest.json", ("weights", "1"), [[]]),
        ("sharded/manifest.json", ("source", "left_out"), [{}]),
    ],
)
def test_what_was_found(place: Path, file: str, path: tuple[Any, ...], value: Any) -> None:
    """Malformed records of the source's files."""
    attempt(place, file, JSON[file], _changed(json.loads((place / file).read_bytes()), path, value))
