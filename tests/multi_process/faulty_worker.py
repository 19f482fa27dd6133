"""The worker with a planted fault, named in the environment: what the comparison of layouts must detect."""

from __future__ import annotations

import os
import sys
from typing import Any

from ms_models.train import worker


def plant(fault: str) -> None:
    """Breaks the runner the way real ones were broken."""
    from ms_models.parallel import optimizer_sharding
    from ms_models.train import step

    if fault == "no reduction over dp":
        optimizer_sharding.Bucket.scatter = lambda self, flat: flat[self.index]  # type: ignore[method-assign]
        optimizer_sharding.Bucket.finish = lambda self, kept: kept  # type: ignore[method-assign]
    elif fault == "average of rank averages":
        true_counts = step.Trainer._sum_counts

        def own_counts(self: Any, counts: Any) -> int:
            true_counts(self, counts)
            return sum(counts) * self.mesh.layout.dp

        step.Trainer._sum_counts = own_counts  # type: ignore[method-assign]
    elif fault == "replicated weights counted on every rank":
        true_init = optimizer_sharding.OptimizerSharding.__init__

        def count_all(self: Any, *args: Any) -> None:
            true_init(self, *args)
            for bucket in self.buckets:
                bucket.is_counted = True

        optimizer_sharding.OptimizerSharding.__init__ = count_all  # type: ignore[method-assign, assignment]
    else:
        raise ValueError(f"no such fault: {fault}")


if __name__ == "__main__":
    if os.environ.get("MS_ROLE") != "MS_SCHED":
        plant(os.environ["MSMIGRATE_TEST_FAULT"])
    sys.exit(worker.main())
