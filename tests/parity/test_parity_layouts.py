"""`parity model --layout`: every layout of two ranks equals PyTorch, and what only ranks get wrong is found."""

from __future__ import annotations

from pathlib import Path

import plants_layouts
import pytest
from layout_launch import Launch, asked_for
from layout_launch import launch as start
from parity_models import make

from mappings.errors import UserError
from migrate.parity import command
from migrate.parity.layouts.request import Request


@pytest.fixture(scope="module")
def launch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Every fault that is asked for, and what is none, in one launch."""
    root = tmp_path_factory.mktemp("layouts")
    models = {name: make(family, root / name, **own) for name, (family, own) in plants_layouts.MODELS.items()}
    cases = {name: case[:2] for name, case in (*plants_layouts.PLANTS.items(), *plants_layouts.BENIGN.items())}
    return start(asked_for(request, cases), models, root, 1200)


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", plants_layouts.PLANTS)
def test_a_fault_of_several_ranks_is_found_and_located(name: str, launch: Launch) -> None:
    model, layout, stage, place = plants_layouts.PLANTS[name]
    assert launch.first_wrong(name, (model, layout)) == (stage, place)


@pytest.mark.grid
@pytest.mark.multi_process
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("name", plants_layouts.BENIGN)
def test_a_layout_gives_no_alarm(name: str, launch: Launch) -> None:
    assert launch.first_wrong(name, plants_layouts.BENIGN[name]) == (None, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tp=2,sequence_paralel=true", "is no NAME=VALUE of a layout; did you mean 'sequence_parallel'"),
        ("tp", "'tp' is no NAME=VALUE"),
        ("tp=two", "tp must be a whole number"),
        ("tp=5", "tp"),
        ("sequence_parallel=true", "sequence_parallel divides sequences over tp, which is 1"),
        ("dp=2,pp=2,zero=3", "take zero=2"),
    ],
)
def test_a_layout_that_does_not_fit_is_refused_before_anything_starts(text: str, words: str, tmp_path: Path) -> None:
    directory = make("llama", tmp_path / "model")
    with pytest.raises(UserError, match=words):
        command.model(directory, layout=text, timeout_s=1)


def test_a_request_survives_its_text() -> None:
    for text in ("tp=2,pp=2,sequence_parallel=true", "dp=4,ep=2,zero=1", "cp=2,context=ulysses", "pp=2,schedule=gpipe"):
        request = Request.read(text)
        assert Request.read(request.text) == request
    assert str(Request.read("tp=2,sequence_parallel=true")) == "tp=2 sequence_parallel=True"
