"""Symptoms of the layout."""

from __future__ import annotations

from collections.abc import Iterator

from migrate.report.model import Severity
from migrate.run_record import RunRecord
from migrate.trouble.rule import Evidence, TroubleRule

BUBBLE = 0.2


def tensor_parallel_across_nodes(run: RunRecord) -> Iterator[Evidence]:
    """More tensor-parallel ranks than a node has, or groups that straddle nodes."""
    nodes, tp = int(run.setting("launch.nodes", 1)), int(run.setting("layout.tp", 1))
    local = run.world_size // nodes
    if nodes > 1 and local % tp:
        yield Evidence(f"tp {tp} over nodes of {local} ranks", "config.yaml", "layout.tp")


def bubble(run: RunRecord) -> Iterator[Evidence]:
    """Idle share of a pipeline: (pp - 1) / (vpp m + pp - 1) with m micro-batches (Narayanan et al. 2021)."""
    pp, vpp = int(run.setting("layout.pp", 1)), int(run.setting("layout.vpp", 1))
    micro = int(run.setting("train.accumulation", 1))
    idle = (pp - 1) / (vpp * micro + pp - 1)
    if idle > BUBBLE:
        yield Evidence(f"{micro} micro-batches over {pp} stages leave {idle:.0%} of the time idle", "config.yaml",
                       "train.accumulation")  # fmt: skip


RULES = (
    TroubleRule(
        "TB01", "tensor parallelism crosses nodes", Severity.WARNING,
        "The sums of every layer go over the network between machines, which is ten times slower than inside one.",
        "Lower layout.tp to what divides the ranks of a node and raise layout.pp; msmigrate plan ranks the layouts.",
        tensor_parallel_across_nodes,
    ),
    TroubleRule(
        "TB02", "pipeline stages are idle", Severity.WARNING,
        "Too few micro-batches for the number of stages.",
        "Raise train.accumulation to 4 to 8 times layout.pp, or use layout.vpp 2 with parallel.schedule interleaved.",
        bubble,
    ),
)  # fmt: skip
"""Rows of the trouble table."""
