"""Hugging Face -> X -> Y -> Hugging Face by the commands, for random models, containers, spellings and layouts.

Every byte comes back; `verify` and `diff` agree at each stop, and find a byte that was changed there.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hf_checkpoints import write_model
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from random_models import SMALL, models

from mappings.errors import UserError
from mappings.families import load_family, registry
from mappings.layout import ParallelLayout
from migrate.report import Report, Verdict
from migrate.weights.command import convert, diff, export, verify
from migrate.weights.destinations import Destination
from migrate.weights.opening import Hints, open_checkpoint

FAMILIES = ("llama", "qwen3_moe", "phi3", "bert", "deepseek_v3", "gpt_oss", "gpt2", "falcon", "bloom")
"""Tied, per-expert and fused experts, fused projections, an encoder, MTP layers, transposed matrices, groups, heads of
queries, keys and values in turn."""
ODD = "odd-names"
QUICK = settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])


@dataclass(frozen=True)
class Stop:
    """Where a checkpoint goes, and what must be said of it when it is read."""

    destination: Destination
    hints: Hints
    given: bool = False
    """Whether strategy files that somebody wrote say how to cut."""

    def read_from(self, out: Path) -> Path:
        return out / "model.ckpt" if self.destination.container == "ckpt" else out


@st.composite
def stops(draw: Any, layout: ParallelLayout, spelling: str, dtype: str) -> Stop:
    container = draw(st.sampled_from(["sharded", "strategy", "strategy", "iteration", "mindspore", "ckpt", "hf"]))
    destination = Destination(container, spelling="hf" if container == "sharded" else spelling)
    hints = Hints()
    if container in ("sharded", "strategy", "iteration"):
        destination = replace(destination, layout=layout)
    if container == "strategy":
        how = draw(st.sampled_from(["", "as_ckpt", "remove_redundancy", "both", "mindformers", "given"]))
        both = how == "both"
        destination = replace(
            destination,
            as_ckpt=both or how == "as_ckpt",
            remove_redundancy=both or how == "remove_redundancy",
            mindformers="net" if how == "mindformers" else None,
            step=3 if how == "mindformers" else 0,
        )
        hints = Hints(redundancy_removed=both)  # a .ckpt does not say so itself
    if container == "iteration":
        destination = replace(destination, step=draw(st.integers(0, 10**8 - 1)))
    if container in ("mindspore", "ckpt"):
        destination = replace(destination, crc=dtype != "BF16" and draw(st.booleans()))
    if container in ("mindspore", "hf"):
        destination = replace(destination, max_shard_size=draw(st.sampled_from([1, 900, None])))
    return Stop(destination, hints, container == "strategy" and how == "given")


def passed(report: Report) -> None:
    assert report.exit_code == 0, [(f.code, f.tensor, f.message) for f in report.findings]


def arrive(source: Path, hints: Hints, out: Path, stop: Stop) -> None:
    """Converts; what MindSpore cannot express is said in one line, and then a plain cut is taken."""
    destination = stop.destination
    if stop.given:
        arrive(source, hints, out.with_name("cut"), replace(stop, given=False))
        given = replace(destination, layout=ParallelLayout(), strategy=out.with_name("cut") / "strategy")
        passed(convert(source, out, destination=given, hints=hints))
        assert files(out / "strategy") == files(given.strategy)
        shutil.rmtree(out.with_name("cut"))
        return
    for layout in (destination.layout, replace(destination.layout, tp=1), ParallelLayout(dp=2)):
        try:
            chosen = replace(destination, layout=layout) if destination.layout != ParallelLayout() else destination
            passed(convert(source, out, destination=chosen, hints=hints))
        except UserError as error:
            assert destination.container in ("strategy", "iteration"), error
            assert "\n" not in str(error) and not out.exists()
        else:
            return
    raise AssertionError(f"{destination} is impossible")


def spoil(path: Path, hints: Hints, seed: int) -> tuple[Path, int]:
    """Changes one bit of one element that is no padding; returns where."""
    rng = random.Random(seed)
    tensor = rng.choice([t for t in open_checkpoint(path, hints).tensors if t.stored.arrangement.pieces])
    place = rng.choice(list(tensor.stored.arrangement.placements()))
    size = {"F32": 4, "BF16": 2, "F16": 2, "F64": 8}[tensor.stored.dtype]
    at = tensor.offset + place.offset * size + rng.randrange(size)
    flip(tensor.path, at)
    return tensor.path, at


def flip(path: Path, at: int) -> None:
    """In place, so that links to the file see it, too."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(at)
        value = file.read(1)[0]
        file.seek(at)
        file.write(bytes([value ^ 0x10]))


def judge(original: Path, path: Path, hints: Hints, seed: int) -> None:
    passed(verify(path, source=original, hints=hints))
    passed(diff(original, path, second_hints=hints))
    where = spoil(path, hints, seed)
    found = verify(path, source=original, hints=hints)
    assert {"digests", "source", "replicas"} & {s.name for s in found.stages if s.verdict is Verdict.FAIL}
    assert any(f.code in ("W013", "W014") for f in found.findings), "verify finds it without digests, too"
    assert diff(original, path, second_hints=hints).exit_code == 1
    flip(*where)


@pytest.mark.parametrize("name", FAMILIES)
@QUICK
@given(data=st.data())
def test_any_to_any(name: str, data: Any) -> None:
    there_and_back(name, data)


@pytest.fixture
def odd_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family whose names have hyphens and letters beyond ASCII."""
    registry.families()  # all of the package's, before there is another folder
    monkeypatch.setattr(registry, "FOLDER", Path(__file__).parent / "families")
    monkeypatch.setitem(SMALL, ODD, SMALL["llama"] | {"cases": [{}, {"tie_word_embeddings": True}]})
    assert load_family(ODD).name == ODD


@QUICK
@given(data=st.data())
def test_any_to_any_in_names_of_every_kind(odd_names: None, data: Any) -> None:
    there_and_back(ODD, data)


def there_and_back(name: str, data: Any) -> None:
    config, layouts, spellings = data.draw(models(name))
    dtype = data.draw(st.sampled_from(["F32", "BF16", "F64"]))
    chosen = [data.draw(stops(layout, spelling, dtype)) for layout, spelling in zip(layouts, spellings, strict=True)]
    seed = data.draw(st.integers(0, 1 << 30))
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_model(root / "hf", config, dtype=dtype, shards=data.draw(st.integers(1, 3)), seed=seed)
        original = place = root / "hf"
        hints = Hints()
        for number, stop in enumerate(chosen):
            out = root / str(number)
            arrive(place, hints, out, stop)
            place, hints = stop.read_from(out), stop.hints
            judge(root / "hf", place, hints, seed + number)
            if stop.destination.container == "hf":
                original = place  # has files of its own
        passed(export(place, root / "back", hints=hints))
        judge(root / "hf", root / "back", Hints(), seed)
        given, found = files(original), files(root / "back")
        assert [name for name in {*given, *found} if given.get(name) != found.get(name)] == []


def files(directory: Path) -> dict[str, bytes]:
    """What an export must give back: all but what is left behind with a note."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "README.md"}


def test_more_ranks_than_tensors(tmp_path: Path) -> None:
    """Without redundancy some ranks have nothing left to hold; their files are empty."""
    model = {"model_type": "llama", **SMALL["llama"]["config"], "num_hidden_layers": 1}
    write_model(tmp_path / "hf", model)
    destination = Destination("strategy", ParallelLayout(dp=20), as_ckpt=True, remove_redundancy=True)
    passed(convert(tmp_path / "hf", tmp_path / "ranks", destination=destination))
    assert min(path.stat().st_size for path in (tmp_path / "ranks").glob("rank_*/*")) == 0
    judge(tmp_path / "hf", tmp_path / "ranks", Hints(redundancy_removed=True), 0)


def test_a_directory_in_other_names_says_which(tmp_path: Path) -> None:
    """The shapes of these two spellings are the same, only the order of rows differs."""
    write_model(tmp_path / "hf", {"model_type": "llama", **SMALL["llama"]["config"]})
    for spelling in ("mindformers", "mindformers_contiguous"):
        passed(convert(tmp_path / "hf", tmp_path / spelling, destination=Destination("hf", spelling=spelling)))
        judge(tmp_path / "hf", tmp_path / spelling, Hints(), 1)
