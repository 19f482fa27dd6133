"""How the host waits for compiled graphs: another way on CPU, and the user's way wherever there is one."""

from __future__ import annotations

import os

import mindspore as ms
import pytest

from ms_models.train.host_thread import SETTING, VARIABLE, wait_quietly


@pytest.mark.parametrize(
    ("device", "given", "expected"),
    [("CPU", None, SETTING), ("CPU", "multi_stream:false", "multi_stream:false"), ("Ascend", None, None)],
)
def test_only_cpu_and_only_where_nothing_is_set(
    device: str, given: str | None, expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored, whatever happens to it here
    monkeypatch.delenv(VARIABLE)
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    monkeypatch.setattr(ms, "get_context", {"device_target": device}.__getitem__)
    wait_quietly()
    assert os.environ.get(VARIABLE) == expected
