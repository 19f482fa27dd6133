"""One rank of a run: `python -m ms_models.train.worker CONFIG [--resume DIRECTORY] [--stop-after N | --evaluate FILE]`.

Started by `launch`, which has checked the configuration and prepared the data.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path

from mappings.errors import UserError
from ms_models.train import phases
from ms_models.train.checkpoints.run_directory import LOGS
from ms_models.train.config import load
from ms_models.train.errors import RunError
from ms_models.train.launch import stacks, status
from ms_models.train.launch.tethered import die_with_parent


def main(argv: list[str] | None = None) -> int:
    """Runs this rank to its end and reports how it went; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--stop-after", type=int)
    parser.add_argument("--evaluate", type=Path)
    args = parser.parse_args(argv)
    die_with_parent()
    if os.environ.get("MS_ROLE") == "MS_SCHED":
        from mindspore.communication import init

        init()  # serves the workers until they have all ended
        return 0
    config = load(args.config)
    logs, rank = Path(config.output.directory) / LOGS, int(os.environ.get("RANK_ID", "0"))
    status.report(logs, rank, status.RUNNING)
    stacks.answer_requests(logs, rank)
    phases.open_record(logs, rank)
    phases.enter("start")
    kind: status.Kind
    try:
        if args.evaluate is not None:
            from ms_models.train.standalone import evaluate_once

            evaluate_once(config, resume=args.resume, result=args.evaluate)
        else:
            from ms_models.train.loop import run

            run(config, resume=args.resume, stop_after=args.stop_after)
    except Exception as error:  # noqa: BLE001 - the last frame of the process: reported to the launcher and logged
        traceback.print_exc()
        kind = "user" if isinstance(error, UserError) else "run" if isinstance(error, RunError) else "defect"
        message = str(error) if kind != "defect" else f"{type(error).__name__}: {error}"
        status.report(logs, rank, status.FAILED, kind, message)
        return 1
    phases.enter("end")
    status.report(logs, rank, status.FINISHED)
    return 0


if __name__ == "__main__":
    sys.exit(main())
