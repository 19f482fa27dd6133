"""`NodePlace`: which ranks of a run this machine has, and where its launcher finds the first machine's."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass

from mappings.errors import UserError
from mappings.layout import ParallelLayout
from ms_models.train.config.launch import LaunchConfig

SCHEDULER_PORTS = 16
"""Ports above that of `launch.master` of which the scheduler of an attempt takes the first free one."""


@dataclass(frozen=True)
class NodePlace:
    """One machine of a run; ranks lie on the machines in order, evenly."""

    node: int
    nodes: int
    world_size: int
    host: str = "127.0.0.1"
    """Of the first machine, as the others reach it."""
    port: int = 0
    """Of the first machine's launcher; the scheduler of MindSpore takes one of the next `SCHEDULER_PORTS`."""

    @classmethod
    def of(cls, launch: LaunchConfig, layout: ParallelLayout) -> NodePlace:
        """The place that a configuration gives this machine.

        Raises:
            UserError: the ranks do not divide, or the first machine's address is missing or wrong.
        """
        world, nodes = layout.world_size, launch.nodes
        if world % nodes:
            fitting = [count for count in range(nodes, 0, -1) if world % count == 0]
            raise UserError(f"launch.nodes is {nodes}, which does not divide the {world} ranks of the layout; "
                            f"{fitting[0]} would")  # fmt: skip
        if not 0 <= launch.node_rank < nodes:
            raise UserError(f"launch.node_rank is {launch.node_rank}, but launch.nodes={nodes} has 0 to {nodes - 1}")
        if nodes == 1:
            return cls(0, 1, world)
        if launch.master is None:
            raise UserError(f"launch.master is missing; launch.nodes={nodes} needs HOST:PORT of the first machine")
        host, colon, port = launch.master.rpartition(":")
        if not (colon and host and port.isdecimal() and 1024 <= int(port) <= 65535 - SCHEDULER_PORTS):
            raise UserError(f"launch.master is {launch.master!r}; must be HOST:PORT with a port from 1024 to "
                            f"{65535 - SCHEDULER_PORTS}")  # fmt: skip
        return cls(launch.node_rank, nodes, world, host.strip("[]"), int(port))

    def check_host(self) -> None:
        """The first machine can be what `launch.master` says it is, as far as this machine can tell.

        MindSpore starts its scheduler wherever the master's address is one of the machine's own: a second node on the
        same host starts a second one, and the processes of both end with an error behind the last step.

        Raises:
            UserError: this is another node, but the address is its own; or it is one that no other machine can reach.
        """
        if self.nodes == 1:
            return
        address = self._address()
        if address is None:
            return  # joining says so, with the time it waited
        if self.node > 0 and _is_own(address):
            raise UserError(
                f"launch.master: {self.host} is an address of this machine, which is node {self.node}; MindSpore would "
                "start a second scheduler here: give the address of node 0, or start all ranks of one machine "
                "with --nnodes 1"
            )
        if self.node == 0 and ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            raise UserError(
                f"launch.master: {self.host} cannot be reached from the other {self.nodes - 1} of {self.nodes} "
                "machines; give the address that they know this one by, or start all ranks of one machine "
                "with --nnodes 1"
            )

    def _address(self) -> str | None:
        """The first address of the host's name; None where it is not known (yet)."""
        try:
            return str(socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0][4][0])
        except OSError:
            return None

    @property
    def local_size(self) -> int:
        """Ranks of each machine."""
        return self.world_size // self.nodes

    @property
    def ranks(self) -> range:
        """Ranks of this machine."""
        return self.ranks_of(self.node)

    def ranks_of(self, node: int) -> range:
        """Ranks of a machine."""
        return range(node * self.local_size, (node + 1) * self.local_size)

    def node_of(self, rank: int) -> int:
        """The machine of a rank."""
        return rank // self.local_size

    def warnings(self, layout: ParallelLayout) -> list[str]:
        """What works but is slow about these machines with a layout."""
        if self.nodes == 1 or self.local_size % layout.tp == 0:
            return []
        return [
            f"warning: tp={layout.tp} does not divide the {self.local_size} ranks of a node, so that the sums of each "
            "layer cross the network; lower layout.tp or take fewer nodes"
        ]

    def scheduler_port(self) -> int:
        """On the first machine: a free port for MindSpore's scheduler.

        Raises:
            UserError: none of them is free.
        """
        if self.nodes == 1:
            return _free(self.host, 0) or 0
        for port in range(self.port + 1, self.port + 1 + SCHEDULER_PORTS):
            if _free(self.host, port):
                return port
        raise UserError(f"launch.master: none of the ports {self.port + 1} to {self.port + SCHEDULER_PORTS} is free on "
                        f"{self.host} for the scheduler; choose another port")  # fmt: skip


def describe(ranks: range) -> str:
    """Ranks of a machine, for messages."""
    return f"rank {ranks.start}" if len(ranks) == 1 else f"ranks {ranks.start}-{ranks.stop - 1}"


def _is_own(address: str) -> bool:
    """Whether an address is one of this machine's, or of its network namespace: only to such can a socket be bound."""
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True


def _free(host: str, port: int) -> int | None:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return None
        return int(probe.getsockname()[1])
