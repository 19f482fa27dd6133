"""Conversion by several processes gives what one gives, also when one of them is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from migrate.code import parallel
from migrate.code.analysis import Analysis, analyse
from migrate.code.convert_file import Converted, convert_file
from migrate.code.project import load_project

SAMPLE = Path(__file__).parents[2] / "samples" / "torch_gpt"


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyse(load_project(SAMPLE))


@pytest.fixture(scope="module")
def alone(analysis: Analysis) -> dict[str, Converted]:
    return {module: convert_file(analysis, file) for module, file in analysis.files.items()}


def test_two_processes_give_what_one_gives(analysis: Analysis, alone: dict[str, Converted]) -> None:
    found = parallel.convert_files(analysis, jobs=2)
    assert list(found) == list(alone)  # the order of the reports
    assert found == alone
    assert any(converted.counts.converted for converted in found.values())


def test_a_killed_process_loses_nothing(
    analysis: Analysis, alone: dict[str, Converted], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, convert = os.getpid(), convert_file

    def kill_the_second(analysis: Analysis, file: object, target: str) -> Converted:
        if os.getpid() != here and file is list(analysis.files.values())[1]:
            os.kill(os.getpid(), signal.SIGKILL)
        return convert(analysis, file, target)  # type: ignore[arg-type]

    monkeypatch.setattr(parallel, "convert_file", kill_the_second)
    assert parallel.convert_files(analysis, jobs=2) == alone


def test_a_small_repository_is_converted_by_one_process(analysis: Analysis) -> None:
    assert parallel.default_jobs(analysis) == 1
