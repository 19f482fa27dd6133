"""One rank of the candidate trains: `python -m migrate.parity.training.rank JOB BATCHES OUT LAYOUT`, under msrun.

Each rank leaves the curves that it knows in OUT/rank<N>; all must be the same.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity.capture_mindspore import load
from migrate.parity.job import MASKED, Job
from migrate.parity.layouts.joining import join, micro_batches, own_rows
from migrate.parity.layouts.request import Request
from migrate.parity.training.mindspore_side import train
from migrate.parity.training.run import LOSS, NORM, STAGE, read_batches


def main(job_path: Path, batches: Path, out: Path, layout: str) -> None:
    """Stores loss and gradient norm by step, as this rank has them.

    Raises:
        UserError: the model cannot be built or loaded in this layout.
        RuntimeError: a step was not taken; the rank ends, and so the launch, for the others would wait.
    """
    request = Request.read(layout)
    if (mesh := join(request)) is None:
        return
    import mindspore

    folder = out / f"rank{mesh.rank}"
    folder.mkdir()
    writer = CaptureWriter(folder, {"mindspore": mindspore.__version__})
    job = Job.read(job_path)
    with writer.stage(STAGE) as tensors:
        steps = [micro_batches(batch, own_rows(len(batch["input_ids"]), mesh)) for batch in read_batches(batches)]
        losses, norms = train(load(job, mesh, request.options), steps, job.task == MASKED)
        tensors[LOSS], tensors[NORM] = np.array(losses), np.array(norms)
    if STAGE in writer.body["errors"]:
        raise RuntimeError(writer.body["errors"][STAGE])


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
    except UserError as error:
        sys.exit(f"UserError: {error}")
