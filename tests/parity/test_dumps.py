"""Captures of two scripts: written by the pasted helpers, matched by name, compared stage by stage."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mappings.errors import UserError
from migrate.cli import main
from migrate.parity.dumps import dumps
from migrate.parity.matching import match, plain, read_map
from migrate.report import Verdict

TORCH = """
import torch
{helper}
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))
torch.nn.init.normal_(model[1].weight)
model.register_buffer("scale", torch.ones(3))
model.register_buffer("table", torch.ones(3), persistent=False)
x = torch.linspace(-1, 1, 20).reshape(4, 5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
capture = Capture({out!r})
capture.weights(model)
with capture.activations(model):
    loss = (model(x) ** 2).mean()
capture.loss(loss)
loss.backward()
capture.gradients(model)
optimizer.step()
capture.updated(model)
torch.save(model.state_dict(), {out!r} + "/after.pt")
"""
MINDSPORE = """
import mindspore, numpy as np
from mindspore import nn, Tensor, ops
mindspore.runtime.launch_blocking()
{helper}
class Linear(nn.Cell):
    def __init__(self, i, o):
        super().__init__()
        self.weight = mindspore.Parameter(ops.zeros((o, i), mindspore.float32))
        self.bias = mindspore.Parameter(ops.zeros((o,), mindspore.float32))
    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias
model = nn.SequentialCell(Linear(5, 7), nn.LayerNorm((7,), epsilon={eps}), Linear(7, 3))
model.register_buffer("scale", ops.ones(3))
first = np.load({reference!r} + "/W.npz")
names = dict(gamma="weight", beta="bias")
for parameter in model.get_parameters():
    head, _, tail = parameter.name.rpartition(".")
    parameter.set_data(Tensor(first[head + "." + names.get(tail, tail)]))
x = Tensor(np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5))
def forward(x):
    return (model(x) ** 2).mean()
capture = Capture({out!r})
capture.weights(model)
with capture.activations(model):
    loss = forward(x)
capture.loss(loss)
parameters = model.trainable_params()
gradients = mindspore.grad(forward, None, mindspore.ParameterTuple(parameters))(x)
capture.gradients(parameters, gradients)
for parameter, gradient in zip(parameters, gradients):
    ops.assign(parameter, parameter - {lr} * gradient)
capture.updated(model)
"""


def run(source: str, framework: str, capsys: pytest.CaptureFixture[str], **values: object) -> None:
    assert main(["parity", "helper", framework]) == 0
    helper = capsys.readouterr().out
    program = source.replace("{helper}", helper)
    for name, value in values.items():
        program = program.replace(f"{{{name}!r}}", repr(value)).replace(f"{{{name}}}", str(value))
    outcome = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stderr[-2000:]


@pytest.fixture
def reference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    run(TORCH, "torch", capsys, out=str(tmp_path / "torch"))
    return tmp_path / "torch"


def test_two_scripts_agree_and_a_fault_is_located(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = {"reference": str(reference)}
    run(MINDSPORE, "mindspore", capsys, **common, out=str(tmp_path / "equal"), eps=1e-5, lr=0.1)
    report = dumps(reference, tmp_path / "equal")
    assert report.exit_code == 0, report.findings
    assert [(stage.name[0], stage.compared) for stage in report.stages] == [
        ("W", 7), ("F", 3), ("L", 1), ("G", 6), ("U", 6),
    ]  # fmt: skip
    assert report.facts["matched"] == {"exact": 17, "spelling": 6}
    run(MINDSPORE, "mindspore", capsys, **common, out=str(tmp_path / "eps"), eps=1e-2, lr=0.1)
    [found, later] = dumps(reference, tmp_path / "eps").findings
    assert (found.code, found.tensor, later.code) == ("P201", "1", "P202")
    run(MINDSPORE, "mindspore", capsys, **common, out=str(tmp_path / "lr"), eps=1e-5, lr=0.1001)
    report = dumps(reference, tmp_path / "lr")
    assert [stage.verdict for stage in report.stages] == [Verdict.PASS] * 4 + [Verdict.FAIL]
    assert report.findings[0].code == "P601"
    assert main(["parity", "dumps", str(reference), str(tmp_path / "lr")]) == 1
    assert main(["parity", "dumps", str(reference), str(tmp_path / "lr"), "--stages", "W,F,L,G"]) == 0


def write(folder: Path, **stages: dict[str, np.ndarray]) -> Path:
    import json

    folder.mkdir()
    body: dict[str, object] = {"format": "msmigrate-capture-1", "versions": {}, "errors": {}}
    body["stages"] = {stage: {"file": f"{stage}.npz", "names": list(tensors)} for stage, tensors in stages.items()}
    for stage, tensors in stages.items():
        np.savez(folder / f"{stage}.npz", **tensors)
    (folder / "manifest.json").write_text(json.dumps(body))
    return folder


ONE = np.arange(1, 7, dtype=np.float32).reshape(2, 3)


def test_a_tensor_without_partner_fails_unless_it_is_allowed(tmp_path: Path) -> None:
    left = write(tmp_path / "a", W={"x": ONE, "y": ONE})
    right = write(tmp_path / "b", W={"x": ONE, "z": ONE})
    report = dumps(left, right)
    assert [found.code for found in report.findings] == ["P002", "P002"]
    assert dumps(left, right, allow=["y", "z"]).exit_code == 0
    assert dumps(left, right, names={"y": "z"}).exit_code == 0
    none = write(tmp_path / "c", W={"q": ONE})
    assert dumps(left, none, allow=["x", "y", "q"]).exit_code == 1, "a comparison of nothing passes nothing"


SMALL = np.array([3e-8, -2e-8, 1e-8], np.float32)


def test_gradients_that_are_rounding_need_a_second_dump(tmp_path: Path) -> None:
    """Of a bias in front of a softmax; Adam's first step is the sign of it."""
    weights = {"w": ONE, "bias": ONE[0]}

    def side(name: str, bias: np.ndarray, gradient: np.ndarray = ONE, before: dict[str, np.ndarray] = weights) -> Path:
        after = {"w": ONE - 0.01, "bias": before["bias"] - 0.01 * np.sign(bias)}
        return write(tmp_path / name, W=before, G={"w": gradient, "bias": bias}, U=after)

    reference, candidate = side("reference", SMALL), side("candidate", -SMALL)
    report = dumps(reference, candidate, keep_going=True)
    assert [(found.code, found.tensor) for found in report.findings] == [
        ("P401", "bias"), ("P409", "bias"), ("P601", "bias"),
    ]  # fmt: skip
    again = side("again", SMALL[::-1])
    assert dumps(reference, candidate, noise=again).exit_code == 0
    assert main(["parity", "dumps", str(reference), str(candidate), "--noise", str(again)]) == 0
    # What is no rounding is not forgiven: a gradient that is off, or a bias with a gradient of its own.
    assert dumps(reference, side("scaled", -SMALL, 1.01 * ONE), noise=again).findings[0].tensor == "w"
    large = dumps(reference, side("large", 1e5 * SMALL), noise=again, keep_going=True)
    assert [(found.code, found.tensor) for found in large.findings] == [("P401", "bias")]
    steady = dumps(reference, candidate, noise=side("steady", SMALL))
    assert steady.findings[0].tensor == "bias" and "own rounding: 0" in steady.findings[0].message


def test_a_second_dump_is_of_the_same_script(tmp_path: Path) -> None:
    reference = write(tmp_path / "reference", W={"x": ONE}, G={"x": ONE})
    for name, stages, expected in (
        ("other", {"W": {"y": ONE}, "G": {"y": ONE}}, "W of .* has other tensors, e.g. x"),
        ("short", {"W": {"x": ONE}}, "has no stage G"),
        ("moved", {"W": {"x": 1.001 * ONE}, "G": {"x": ONE}}, "x has other values"),
    ):
        with pytest.raises(UserError, match=expected):
            dumps(reference, reference, noise=write(tmp_path / name, **stages))


def test_missing_stages_and_shapes(tmp_path: Path) -> None:
    left = write(tmp_path / "a", W={"x": ONE}, L={"loss": ONE[:1, 0]})
    short = dumps(left, write(tmp_path / "b", W={"x": ONE}))
    assert short.exit_code == 2 and "--stages" in short.findings[0].fix
    report = dumps(left, write(tmp_path / "c", W={"x": ONE.T}))
    assert report.findings[0].code == "P003" and report.exit_code == 1
    with pytest.raises(UserError, match="none of the stages"):
        dumps(left, left, stages=["X"])


def test_names_are_matched_in_passes_and_never_by_guess() -> None:
    found = match(
        ["a.weight", "b.weight", "c.running_mean", "d"], ["a.gamma", "b.weight", "c.moving_mean", "e"], {"d": "e"}
    )
    assert found.pairs == [
        ("a.weight", "a.gamma", "spelling"),
        ("b.weight", "b.weight", "exact"),
        ("c.running_mean", "c.moving_mean", "spelling"),
        ("d", "e", "file"),
    ]
    two = match(["a.weight"], ["a.gamma", "module.a.weight"], {})
    assert two.lacking == ["a.weight"] and two.strange == ["a.gamma", "module.a.weight"]
    assert plain("module.norm.beta") == "norm.bias"
    with pytest.raises(UserError, match="no such tensor"):
        match(["a"], ["b"], {"a": "c"})


def test_map_files(tmp_path: Path) -> None:
    path = tmp_path / "map.yaml"
    path.write_text("a: b\n")
    assert read_map(path) == {"a": "b"}
    path.write_text("- a\n")
    with pytest.raises(UserError, match="must be a mapping"):
        read_map(path)
    assert main(["parity", "helper", "jax"]) == 2
