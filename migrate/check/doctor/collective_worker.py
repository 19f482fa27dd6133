"""One rank of doctor's all-reduce, started by msrun: `python -m migrate.check.collective_worker OUT`."""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(out: Path) -> None:
    """Sums `rank + 1` over all ranks and writes what arrived to `out/rank<N>.json`."""
    import mindspore
    import numpy as np
    from mindspore.communication import get_group_size, get_rank, init

    init()
    rank, size = get_rank(), get_group_size()
    total = mindspore.ops.AllReduce()(mindspore.Tensor(np.full(3, rank + 1, np.float32))).asnumpy()
    (out / f"rank{rank}.json").write_text(json.dumps({"size": size, "sum": total.tolist()}), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
