"""Two machines in one: network namespaces joined by a wire, two ranks in each; and the wire is cut.

The namespaces share the file system, as machines of a cluster do, and nothing of the network.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from harness import free_port

from ms_models.train.launch import starting as launching
from ms_models.train.services.metrics_file import read_metrics
from tests.ms_models.train.run_helpers import write_config, write_data, write_model

pytestmark = [pytest.mark.multi_process, pytest.mark.grid, pytest.mark.timeout(900)]

PREFIX = f"msm{os.getpid() % 10000}"
ADDRESSES = ("10.231.7.1", "10.231.7.2")
LINK_S = 4.0
STEPS, EVERY, CUT_AFTER = 12, 3, 5
FIGURES = ("step", "loss", "grad_norm", "lr", "tokens")
# The same numbers are added in the same order, only over another network.
TOLERANCE = 0.0


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@dataclass
class Wire:
    """Two namespaces and the cable between them."""

    names: tuple[str, str]

    def set(self, state: str) -> None:
        """`up` or `down`, at the first one's end."""
        run_ip("-n", self.names[0], "link", "set", f"{PREFIX}v0", state)


@pytest.fixture(scope="module")
def wire() -> Iterator[Wire]:
    if shutil.which("ip") is None:
        pytest.skip("iproute2 is missing: there is no `ip` to make network namespaces with")
    names = (f"{PREFIX}n0", f"{PREFIX}n1")
    try:
        run_ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"CAP_NET_ADMIN is missing: a network namespace cannot be made ({error.stderr.strip()})")
    try:
        run_ip("netns", "add", names[1])
        run_ip("link", "add", f"{PREFIX}v0", "netns", names[0], "type", "veth", "peer", "name", f"{PREFIX}v1",
               "netns", names[1])  # fmt: skip
        for number, name in enumerate(names):
            run_ip("-n", name, "addr", "add", f"{ADDRESSES[number]}/24", "dev", f"{PREFIX}v{number}")
            run_ip("-n", name, "link", "set", "lo", "up")
            run_ip("-n", name, "link", "set", f"{PREFIX}v{number}", "up")
        yield Wire(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@dataclass
class Node:
    """The command as it runs on one machine."""

    process: subprocess.Popen[bytes]
    output: Path

    def text(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def wait_for(self, pattern: str, seconds: float) -> float:
        """Seconds until the output holds a line that begins like this."""
        start = time.monotonic()
        while time.monotonic() - start < seconds:
            if re.search(f"^{pattern}", self.text(), re.MULTILINE):
                return time.monotonic() - start
            assert self.process.poll() is None, f"ended while {pattern!r} was waited for:\n{self.text()}"
            time.sleep(0.05)
        raise AssertionError(f"no {pattern!r} within {seconds:g} s:\n{self.text()}")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("nodes")
    write_model(place / "model")
    write_data(place / "data", train=STEPS * 4)
    return place


def config_of(root: Path, name: str, **launch: Any) -> Path:
    train = {"steps": STEPS, "accumulation": 1, "jit": False, "eval_every": 0}
    return write_config(
        root / f"{name}.yaml", root / "model", root / "data", root / name, train=train, layout={"dp": 2, "tp": 2},
        checkpoint={"every": EVERY}, launch=launch,
    )  # fmt: skip


@pytest.fixture(scope="module")
def local(root: Path) -> list[dict[str, Any]]:
    """The same run with four ranks on one machine."""
    assert launching.launch(config_of(root, "local"), echo=lambda line: None) == 0
    return curve(root / "local")


def curve(run: Path) -> list[dict[str, Any]]:
    records = [record for record in read_metrics(run / "metrics.jsonl") if "loss" in record]
    return [{name: record[name] for name in FIGURES} for record in records]


def start(wire: Wire, config: Path, folder: Path) -> tuple[Node, Node]:
    port = free_port() // 2 + 1024  # below those that the kernel gives to connections, with room for the scheduler's
    nodes = []
    for number, name in enumerate(wire.names):
        command = [
            "ip", "netns", "exec", name, sys.executable, "-m", "migrate.cli", "train", str(config),
            "--nnodes", "2", "--node-rank", str(number), "--master", f"{ADDRESSES[0]}:{port}",
        ]  # fmt: skip
        output = folder / f"{config.stem}_node_{number}.txt"
        with output.open("wb") as file:
            nodes.append(Node(subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT), output))
    return nodes[0], nodes[1]


def ranks_of(run: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or [])
        if f"{run}/" in line and "worker" in line:
            found.append(process)
    return found


def end(nodes: tuple[Node, Node]) -> None:
    for node in nodes:
        if node.process.poll() is None:
            node.process.kill()
        node.process.wait()


def test_a_cut_wire_ends_both_sides_and_the_run_goes_on_once_it_is_mended(
    wire: Wire, root: Path, local: list[dict[str, Any]]
) -> None:
    config = config_of(root, "cut", link_s=LINK_S, join_s=120, restarts=1, restart_pause_s=0)
    nodes = first, second = start(wire, config, root)
    try:
        first.wait_for("node 1 .* joined: ranks 2-3", 120)
        second.wait_for("node 1: joined node 0 at .* with ranks 2-3", 30)
        first.wait_for(f"step +{CUT_AFTER}/", 240)
        wire.set("down")
        # Each side names the other, and none of its ranks is left.
        waited = first.wait_for(r"failed: node 1: lost: not heard for 4 s \(.*, ranks 2-3\)", LINK_S + 20)
        waited += second.wait_for("failed: node 0: lost: not heard for 4 s", 20)
        assert waited < LINK_S + 20
        deadline = time.monotonic() + 10
        while (left := ranks_of(root / "cut")) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not left, f"processes survived: {left}"
        wire.set("up")
        first.wait_for(r"resuming after step \d+: 4 processes", 240)
        assert [node.process.wait(240) for node in nodes] == [0, 0], first.text() + second.text()
    finally:
        wire.set("up")
        end(nodes)
    assert len(local) == STEPS
    for reference, found in zip(local, curve(root / "cut"), strict=True):
        for name in FIGURES:
            assert abs(found[name] - reference[name]) <= TOLERANCE * abs(reference[name]), (name, reference, found)
    (record,) = [json.loads(line) for line in (root / "cut" / "restarts.jsonl").read_text().splitlines()]
    assert (record["cause"], record["node"]) == ("lost", 1)
    step = int(record["resumes"][-8:])
    assert EVERY <= step <= CUT_AFTER + EVERY and f"resuming after step {step}: " in first.text()
    merged = (root / "cut" / "logs" / "merged.log").read_text()
    assert {"rank 0", "rank 3", "launcher 0", "launcher 1"} <= set(re.findall(r"^\S+ (.*?) +\|", merged, re.MULTILINE))


def test_without_restarts_a_killed_launcher_ends_the_other_machine(wire: Wire, root: Path) -> None:
    config = config_of(root, "killed", link_s=LINK_S, join_s=60)
    nodes = first, second = start(wire, config, root)
    try:
        first.wait_for("step +2/", 240)
        launcher = psutil.Process(second.process.pid)  # `ip netns exec` becomes the command
        launcher.kill()
        assert first.process.wait(30) == 1
        assert "failed: node 1: lost: its launcher is gone" in first.text()
        deadline = time.monotonic() + 10
        while ranks_of(root / "killed") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert not ranks_of(root / "killed")
    finally:
        end(nodes)
