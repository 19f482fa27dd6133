"""Questions about an accelerator: refused without one, answered from MindSpore's description with one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import mindspore as ms
import pytest

from ms_models.compat import device_properties as questions


@pytest.mark.parametrize(
    "question", [questions.get_device_properties, questions.get_device_capability, questions.mem_get_info]
)
def test_without_an_accelerator_a_question_raises(question: Any) -> None:
    for index in (None, 0, "cuda:1"):
        with pytest.raises(RuntimeError, match="no accelerator"):
            question(index)
    with pytest.raises(RuntimeError, match="no accelerator"), questions.device_index(0):
        pass


def test_with_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ascend is played by its two descriptions; it cannot be selected on this machine."""
    asked: list[int] = []

    def describe(number: int) -> SimpleNamespace:
        asked.append(number)
        return SimpleNamespace(name="Ascend", total_memory=64, free_memory=48)

    monkeypatch.setattr(questions, "accelerator_available", lambda: True)
    monkeypatch.setattr(ms.hal, "get_device_properties", describe)
    assert questions.mem_get_info() == (48, 64)
    assert questions.get_device_properties("cuda:3").total_memory == 64
    assert asked == [0, 3]
    with pytest.raises(RuntimeError, match="CUDA capability"):
        questions.get_device_capability()
    with questions.device_index(0):
        pass
    with pytest.raises(RuntimeError, match="keeps its device"), questions.device_index(1):
        pass
