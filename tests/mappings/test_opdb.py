"""The judge of torch's operator database: planted faults are found, deaths and hangs are charged to their sample."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import mindspore as ms
import opdb
import opdb_entries
import opdb_run
import pytest
from opdb_pool import Pool, Worker, WorkerDied

from mappings.api import ApiTable
from mappings.api.row import parse_row

ENTRIES = opdb_entries.entries()


@pytest.fixture(scope="module", autouse=True)
def _blocking() -> None:
    ms.runtime.launch_blocking()


def outcomes(key: str, portable: str, signature: str, name: str | None = None) -> list[opdb_run.Outcome]:
    """An entry through one planted row."""
    entry = ENTRIES[key]
    form = name or entry.forms()[0]
    entry_row = {"name": form, "status": "same", "signature": signature, "portable": portable, "returns": "tensor"}
    table = ApiTable([parse_row(entry_row, "planted")])
    return [opdb_run.run(entry, opdb_entries.write(entry, form, raw), table) for raw in entry.samples()]


@pytest.mark.parametrize(
    ("key", "portable", "signature", "reason"),
    [
        ("sqrt", "mindspore.ops.rsqrt($input)", "input", "values"),
        ("exp", "mindspore.ops.exp($input) * 1.0001", "input", "values"),
        ("exp", "mindspore.ops.stop_gradient(mindspore.ops.exp($input))", "input", "gradient"),
        ("exp", "mindspore.ops.exp($input).astype(mindspore.float64)", "input", "data type"),
        ("unsqueeze", "mindspore.ops.expand_dims($input, $dim - $dim)", "input, dim", "shape"),
        ("t", "$input", "input", "shape"),
        ("argsort", "mindspore.ops.argsort($input)", "input, dim=-1, descending=False", "no argument stable"),
        ("unbind", "mindspore.ops.unbind($input, $dim)[1:]", "input, dim=0", "items against"),
        ("sin", "mindspore.ops.no_such_thing($input)", "input", "AttributeError"),
    ],
)
def test_planted_faults(key: str, portable: str, signature: str, reason: str) -> None:
    found = outcomes(key, portable, signature)
    assert any(reason in o.reason for o in found), [o.reason for o in found]
    assert not opdb.fully_right([o.as_dict() for o in found])


def test_a_right_row_is_right_with_gradients() -> None:
    found = outcomes("exp", "mindspore.ops.exp($input)", "input")
    assert {o.outcome for o in found} == {"right"} and all(o.gradient for o in found if "a0" in o.source)
    assert opdb.fully_right([o.as_dict() for o in found])


def test_nothing_is_right_without_samples() -> None:
    assert not opdb.fully_right([])
    assert not opdb.fully_right([opdb_run.Outcome("torch", reason="torch cannot").as_dict()])


def test_random_samples_are_compared_by_shape_and_type() -> None:
    right = outcomes("bernoulli", "mindspore.ops.zeros_like($input)", "input")
    wrong = outcomes("bernoulli", "mindspore.ops.zeros_like($input).astype(mindspore.int32)", "input")
    assert {o.outcome for o in right} == {"right"} and {o.outcome for o in wrong} == {"wrong"}


def test_calls_that_torch_refuses_must_not_give_a_result() -> None:
    entry = ENTRIES["cat"]
    lenient = "mindspore.ops.zeros((1,)) + 0 * len($tensors)"
    row = {
        "name": "torch.cat",
        "status": "same",
        "signature": "tensors, dim=0",
        "portable": lenient,
        "drop": {"dim": "any"},
    }
    table = ApiTable([parse_row(row, "planted")])
    samples = [opdb_entries.write(entry, "torch.cat", raw) for raw in entry.error_samples()]
    found = [opdb_run.run_error(entry, sample, table) for sample in samples]
    assert {"right", "wrong"} <= {o.outcome for o in found}  # `out=` is refused by the signature, the rest is accepted
    assert all("where torch raises" in o.reason for o in found if o.outcome == "wrong")


def test_denominator_and_names() -> None:
    assert len(ENTRIES) >= 670
    forms = {key: entry.forms()[0] for key, entry in ENTRIES.items()}
    assert forms["add"] == "torch.add" and forms["view"] == "torch.Tensor.view" and forms["bool"] == "torch.Tensor.bool"
    assert forms["nn.functional.pad.reflect"] == "torch.nn.functional.pad" and forms["mT"] == "torch.Tensor.mT"
    assert forms["normal.in_place"] == "torch.Tensor.normal_" and forms["__radd__"] == "operator"


def test_samples_are_the_same_at_every_call() -> None:
    first, second = ([raw.input.tolist() for raw in ENTRIES["exp"].samples()] for _ in range(2))
    assert first == second


def kill_at_second_sample(pool_event: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    begun = []

    def event(worker: Worker, timeout: float | None = None) -> dict[str, Any]:
        found = pool_event(worker, timeout)
        if "begin" in found:
            begun.append(found)
            if len(begun) == 2:
                os.kill(worker.process.pid, signal.SIGFPE)
                worker.process.wait()
                worker._buffer = b""
                time.sleep(0.1)
                while os.read(worker.process.stdout.fileno(), 1 << 16):  # type: ignore[union-attr]
                    pass
        return found

    return event


def test_a_death_is_charged_to_its_sample_and_the_rest_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "event", kill_at_second_sample(Worker.event))
    found: dict[str, Any] = {}
    Pool(1).run(["exp"], lambda key, result: found.update(result), primary_only=True)
    expected = len(list(ENTRIES["exp"].samples()))
    assert [o["outcome"] for o in found["torch.exp"]] == ["right", "raised"] + ["right"] * (expected - 2)
    assert "SIGFPE" in found["torch.exp"][1]["reason"]


def test_a_hang_is_ended() -> None:
    worker = Worker(sample_timeout=0.5)
    with pytest.raises(WorkerDied, match="no answer"):
        worker.event()
    assert worker.process.poll() is not None
