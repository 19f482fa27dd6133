"""One job of another tool, in a process of its own: times the call alone, without imports, and prints it as JSON.

python tests/benchmarks/weights_rivals.py JOB ARGUMENT ...
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path


def load_distributed(full: str, strategy: str, out: str) -> Callable[[], object]:
    """Slices a full MindSpore directory into the files of every rank."""
    import mindspore

    return lambda: mindspore.load_distributed_checkpoint(
        None,
        predict_strategy=strategy,
        format="safetensors",
        unified_safetensors_dir=full,
        dst_safetensors_dir=out,
        max_process_num=os.cpu_count(),
    )


def unify(ranks: str, strategy: str, out: str) -> Callable[[], object]:
    """Joins the files of every rank into a full MindSpore directory."""
    import mindspore

    return lambda: mindspore.unified_safetensors(ranks, strategy, out, max_process_num=os.cpu_count())


def transform(ranks: str, source: str, target: str, out: str, form: str) -> Callable[[], object]:
    """Takes the files of every rank from one strategy to another; "ckpt" is what MindSpore does by itself."""
    import mindspore

    return lambda: mindspore.transform_checkpoints(
        ranks, out, "model_", source, target, process_num=os.cpu_count(), output_format=form
    )


def to_ckpt(source: str, out: str) -> Callable[[], object]:
    """Rewrites one safetensors file as a `.ckpt`."""
    import mindspore

    return lambda: mindspore.safetensors_to_ckpt(source, out)


def torch_copy(source: str, out: str) -> Callable[[], object]:
    """Loads and saves every file with `safetensors.torch`."""
    from safetensors.torch import load_file, save_file

    def run() -> None:
        for path in sorted(Path(source).glob("*.safetensors")):
            save_file(load_file(path), Path(out) / path.name, {"format": "pt"})

    return run


def plain_copy(source: str, out: str) -> Callable[[], object]:
    """Copies every file inside the kernel: no tool can be faster that writes the same bytes."""

    def run() -> None:
        for path in sorted(Path(source).glob("*.safetensors")):
            with path.open("rb") as reader, (Path(out) / path.name).open("wb") as writer:
                left = path.stat().st_size
                while left:
                    left -= os.copy_file_range(reader.fileno(), writer.fileno(), left)
                os.fsync(writer.fileno())

    return run


JOBS = {job.__name__: job for job in (load_distributed, unify, transform, to_ckpt, torch_copy, plain_copy)}


def main() -> None:
    job = JOBS[sys.argv[1]](*sys.argv[2:])
    start = time.perf_counter()
    job()
    print(json.dumps({"seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
