"""Which ranks a machine has."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.train.config import LaunchConfig
from ms_models.train.launch.place import NodePlace, describe
from ms_models.train.launch.processes import command_line


def place(layout: ParallelLayout, **launch: Any) -> NodePlace:
    return NodePlace.of(LaunchConfig(**{"master": "10.0.0.1:6000", **launch}), layout)


def test_ranks_lie_on_machines_in_order(tmp_path: Any) -> None:
    second = place(ParallelLayout(dp=2, tp=4), nodes=2, node_rank=1)
    assert (list(second.ranks), second.local_size, second.host, second.port) == ([4, 5, 6, 7], 4, "10.0.0.1", 6000)
    assert [second.node_of(rank) for rank in (0, 3, 4, 7)] == [0, 0, 1, 1]
    assert (describe(second.ranks), describe(range(3, 4))) == ("ranks 4-7", "rank 3")
    command = command_line("m", [], second, 6001, tmp_path)
    for option in ("--worker_num=8", "--local_worker_num=4", "--node_rank=1", "--master_addr=10.0.0.1",
                   "--master_port=6001"):  # fmt: skip
        assert option in command


def test_one_machine_needs_no_address() -> None:
    one = NodePlace.of(LaunchConfig(), ParallelLayout(dp=2))
    assert list(one.ranks) == [0, 1]
    assert one.scheduler_port() > 1024


@pytest.mark.parametrize(
    ("launch", "expected"),
    [
        ({"nodes": 3}, "launch.nodes is 3, which does not divide the 8 ranks of the layout; 2 would"),
        ({"nodes": 2, "node_rank": 2}, "launch.node_rank is 2, but launch.nodes=2 has 0 to 1"),
        ({"nodes": 1, "node_rank": 1}, "launch.node_rank is 1, but launch.nodes=1 has 0 to 0"),
        ({"nodes": 2, "master": None}, "launch.master is missing"),
        ({"nodes": 2, "master": "host"}, "must be HOST:PORT"),
        ({"nodes": 2, "master": "host:80"}, "must be HOST:PORT"),
        ({"nodes": 2, "master": "host:65530"}, "must be HOST:PORT"),
        ({"nodes": 2, "master": ":6000"}, "must be HOST:PORT"),
    ],
)
def test_what_does_not_fit_is_refused(launch: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError) as caught:
        place(ParallelLayout(dp=2, tp=4), **launch)
    assert expected in str(caught.value)


def own_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, 1, 6, "", (address, 6000))])


def test_a_second_node_on_the_host_of_the_first_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = ParallelLayout(dp=2)
    with pytest.raises(UserError, match=r"127\.0\.0\.1 is an address of this machine, which is node 1"):
        place(layout, nodes=2, node_rank=1, master="127.0.0.1:6000").check_host()
    with pytest.raises(UserError, match=r"127\.0\.0\.1 cannot be reached from the other 1 of 2 machines"):
        place(layout, nodes=2, master="127.0.0.1:6000").check_host()
    with pytest.raises(UserError, match="myself is an address of this machine"):
        own_address(monkeypatch, "127.0.0.1")
        place(layout, nodes=2, node_rank=1, master="myself:6000").check_host()


def test_addresses_of_other_machines_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    layout = ParallelLayout(dp=2)
    NodePlace.of(LaunchConfig(), layout).check_host()
    # 192.0.2.0/24 is set aside for documentation (RFC 5737): no machine has it.
    for rank in (0, 1):
        place(layout, nodes=2, node_rank=rank, master="192.0.2.1:6000").check_host()

    def unknown(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    place(layout, nodes=2, node_rank=1, master="later:6000").check_host()


def test_an_address_of_version_six() -> None:
    assert place(ParallelLayout(dp=2), nodes=2, master="[fd00::1]:6000").host == "fd00::1"


def test_tensor_parallel_sums_across_machines_are_warned_of() -> None:
    layout = ParallelLayout(dp=2, tp=4)
    assert place(layout, nodes=2).warnings(layout) == []
    (line,) = place(layout, nodes=4).warnings(layout)
    assert "tp=4 does not divide the 2 ranks of a node" in line


def test_the_scheduler_takes_the_first_free_port() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1] // 2 + 1024
    here = place(ParallelLayout(dp=2), nodes=2, master=f"127.0.0.1:{port}")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        assert here.scheduler_port() > port + 1
