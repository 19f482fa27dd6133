"""Padding of a source is dropped, so it has to be zeros, or somebody has to allow it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from container_runs import with_states
from hf_checkpoints import config, tensors_of, write_model
from random_layouts import KINDS, built, random_layout

from mappings.arrangement import Arrangement, concat, stack
from mappings.errors import UserError
from mappings.formats.safetensors import read_header
from mappings.layout import ParallelLayout
from migrate.report import Severity
from migrate.weights.command import convert, diff, export, reshard, verify
from migrate.weights.containers import hf
from migrate.weights.destinations import Destination
from migrate.weights.opening import Hints
from migrate.weights.padding import CHUNK, gaps

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def marked(arrangement: Arrangement) -> np.ndarray:
    found = np.zeros(arrangement.size, bool)
    for start, count in gaps(arrangement):
        assert count > 0 and not found[start : start + count].any()
        found[start : start + count] = True
    return found.reshape(arrangement.shape)


def test_gaps_are_what_no_piece_covers() -> None:
    padded = 0
    for seed in range(60):
        rng, numbers = random.Random(seed), np.random.default_rng(seed)
        shapes = [(rng.randint(1, 9), rng.randint(1, 9)) for _ in range(3)]
        atoms = {f"a{n}": numbers.integers(1, 99, rng.choice(shapes)).astype("<u2") for n in range(6)}
        for whole in random_layout(rng, atoms, [*KINDS, "padded", "columns"]):
            cut = rng.randint(0, whole.shape[0])
            for arrangement in (
                whole,
                whole.reshape(-1),
                whole.pad(0, whole.shape[0] + 3).reshape(-1),
                whole.pad(0, whole.shape[0] + 3).transpose(),
                stack(len(whole.shape), [whole, whole.pad(0, whole.shape[0])]),
                stack(0, [whole, Arrangement.zeros(whole.shape)]),
                whole.slice(0, 0, cut),
            ):
                empty = built(arrangement, atoms) == 0
                assert np.array_equal(marked(arrangement), empty), (seed, arrangement)
                padded += int(empty.any())
    assert padded > 500


def test_gaps_of_scalars_and_of_nothing() -> None:
    assert list(gaps(Arrangement.zeros(()))) == [(0, 1)] and list(gaps(Arrangement.of("a", ()))) == []
    assert list(gaps(Arrangement.zeros((3, 0)))) == [] and list(gaps(Arrangement.of("a", (0, 4)).pad(0, 2))) == [(0, 8)]
    nothing = Arrangement.of("b", (0,))
    assert list(gaps(concat(0, [Arrangement.of("a", (4,)), nothing]).pad(0, 6))) == [(4, 2)]


def spoil(path: Path, name: str, row: int, value: int = 1) -> None:
    """Sets the last byte of the first element of a row."""
    entry = next(entry for entry in read_header(path)[0] if entry.name == name)
    width = entry.nbytes // entry.shape[0]
    with path.open("r+b") as file:
        file.seek(entry.offset + row * width + entry.itemsize - 1)
        file.write(bytes([value]))


def found(report) -> list[tuple[str | None, str | None, str]]:
    return [(f.file, f.tensor, f.message) for f in report.findings if f.code == "W026"]


LAYOUT = ParallelLayout(tp=2, vocab_multiple=4)  # 37 rows become 40


@pytest.mark.parametrize(
    ("destination", "file"),
    [
        (Destination(layout=LAYOUT), "model-rank00001.safetensors"),
        (Destination("strategy", LAYOUT), "rank_1/checkpoint_1.safetensors"),
        (Destination("iteration", LAYOUT), "iteration_00000000/model-0000001-0000002.safetensors"),
    ],
    ids=lambda value: getattr(value, "container", ""),
)
def test_rows_behind_the_vocabulary_that_are_not_zero(tmp_path: Path, destination: Destination, file: str) -> None:
    write_model(tmp_path / "hf", config("llama"))
    assert convert(tmp_path / "hf", tmp_path / "out", destination=destination).exit_code == 0
    spoil(tmp_path / "out" / file, HEAD, 17)
    spoil(tmp_path / "out" / file, HEAD, 18)
    (tmp_path / "out/conversion_manifest.json").unlink(missing_ok=True)
    report = export(tmp_path / "out", tmp_path / "back")
    where = file.removeprefix("iteration_00000000/")
    assert found(report) == [(where, HEAD, "2 of 48 elements of padding are not zero, the first at [17, 0]")]
    assert report.exit_code == 1 and sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out"]
    assert found(verify(tmp_path / "out")) == found(report)
    assert diff(tmp_path / "hf", tmp_path / "out").exit_code == 0  # padding is no part of the model
    report = export(tmp_path / "out", tmp_path / "back", hints=Hints(allow=("lm_*",)))
    assert report.exit_code == 0 and found(report) == []
    notes = [f.message for f in report.findings if f.code == "W021" and f.severity is Severity.NOTE]
    assert any(text.endswith("the first at [17, 0]; left out, allowed by 'lm_*'") for text in notes)
    assert tensors_of(tmp_path / "back") == tensors_of(tmp_path / "hf")
    with pytest.raises(UserError, match=r"--allow 'model\.\*' fits no unexpected tensor"):
        export(tmp_path / "out", tmp_path / "other", hints=Hints(allow=("lm_*", "model.*")))


def test_a_vocabulary_longer_than_config_says(tmp_path: Path) -> None:
    """Of a Hugging Face directory: tokens that somebody added without a word in config.json, larger than one read."""
    write_model(tmp_path / "hf", config("llama", vocab_size=80_000, hidden_size=4, num_attention_heads=1, head_dim=4))
    body = config("llama", vocab_size=37, hidden_size=4, num_attention_heads=1, head_dim=4)
    assert CHUNK < (80_000 - 37) * 16  # more than one read
    (tmp_path / "hf/config.json").write_text(json.dumps(body))
    report = convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout())
    assert {tensor for _, tensor, _ in found(report)} == {HEAD, EMBEDDING}
    assert all("of 319852 elements" in message and "[37, 0]" in message for _, _, message in found(report))


def test_shares_of_zero_and_optimizer_state(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama", hidden_size=20, head_dim=4))
    with_states(hf.read(tmp_path / "hf"), tmp_path / "training")
    layout = ParallelLayout(dp=3, zero=1)  # 20 rows become 21: the last share of the state is 6 rows and one of padding
    assert convert(tmp_path / "training", tmp_path / "run", layout=layout).exit_code == 0
    file = "optimizer-rank00002.safetensors"
    spoil(tmp_path / "run" / file, "exp_avg.model.norm.weight", 6)
    report = reshard(tmp_path / "run", tmp_path / "out", layout=ParallelLayout())
    name = "exp_avg.model.norm.weight"
    assert found(report) == [(file, name, "1 of 1 elements of padding are not zero, the first at [6]")]
    # What is left out is not looked at.
    assert export(tmp_path / "run", tmp_path / "back").exit_code == 0
    assert convert(tmp_path / "run", tmp_path / "weights", layout=layout, weights_only=True).exit_code == 0


def test_ranks_that_hold_nothing_but_padding(tmp_path: Path) -> None:
    write_model(tmp_path / "hf", config("llama", vocab_size=2))
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(tp=4))
    spoil(tmp_path / "out/model-rank00003.safetensors", EMBEDDING, 0)
    report = export(tmp_path / "out", tmp_path / "back")
    assert [(file, name) for file, name, _ in found(report)] == [("model-rank00003.safetensors", EMBEDDING)]


def test_a_view_of_a_longer_vocabulary_is_refused(tmp_path: Path) -> None:
    """What lies between the elements of a view may be anything, so its padding could not be told from it."""
    import torch

    model = config("llama")
    write_model(tmp_path / "made", model)
    from safetensors.torch import load_file

    arrays = load_file(tmp_path / "made/model.safetensors")
    arrays[HEAD] = torch.cat([arrays[HEAD], torch.zeros(3, 16)])
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text(json.dumps(model))
    torch.save(arrays, tmp_path / "hf/pytorch_model.bin")
    assert convert(tmp_path / "hf", tmp_path / "out", layout=LAYOUT).exit_code == 0
    arrays[HEAD] = arrays[HEAD].T.contiguous().T
    torch.save(arrays, tmp_path / "hf/pytorch_model.bin")
    report = convert(tmp_path / "hf", tmp_path / "again", layout=LAYOUT)
    assert [(f.code, f.tensor) for f in report.findings if f.severity is Severity.ERROR] == [("W003", HEAD)]
