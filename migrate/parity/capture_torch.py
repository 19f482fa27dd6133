"""The reference side: transformers on PyTorch, CPU. `python -m migrate.parity.capture_torch JOB OUT`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity import update_torch
from migrate.parity.job import Job
from migrate.parity.recording import INPUTS, Recorder


def main(job_path: Path, out: Path) -> None:
    """Computes what the job asks for and stores it in `out`.

    Raises:
        UserError: the weights do not fit the model: transformers would have made up the rest.
    """
    import torch
    import transformers

    job = Job.read(job_path)
    torch.use_deterministic_algorithms(True)
    loader: Any = transformers.AutoModelForCausalLM
    # "eager" spells attention out; the fused kernels order their sums differently from build to build. In fp64 it takes
    # the softmax in fp32, where its mask overflows to NaN; sdpa stays in fp64.
    attention = "eager" if job.dtype == "float32" else "sdpa"
    model, info = loader.from_pretrained(
        job.directory,
        dtype=getattr(torch, job.dtype),
        attn_implementation=attention,
        local_files_only=True,
        output_loading_info=True,
    )
    if problems := {kind: sorted(names) for kind, names in info.items() if names}:
        raise UserError(f"{job.directory}: transformers loads it only in part: {problems}")
    model.eval()
    writer = CaptureWriter(out, {"torch": torch.__version__, "transformers": transformers.__version__})
    batch = {name: torch.from_numpy(values) for name, values in job.batch().items()}
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    if "W" in job.stages:
        with writer.stage("W") as tensors:
            tensors.update({name: value.detach().numpy() for name, value in model.named_parameters()})
    if "F" in job.stages:
        recorder = Recorder(lambda value: value.detach().numpy().copy())
        with writer.stage("F") as tensors, torch.no_grad():
            recorder.outputs = tensors
            handles = []
            for name in job.modules:
                module, enter = model.get_submodule(name), partial(recorder.enter, name)
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                handles.append(module.register_forward_hook(partial(recorder.leave, name)))
            tensors["logits"] = model(**inputs, use_cache=False).logits.numpy()
            for handle in handles:
                handle.remove()
        with writer.stage(INPUTS) as tensors:
            tensors.update(recorder.inputs)
    if "L" in job.stages or "G" in job.stages:
        loss: Any = None
        with writer.stage("L") as tensors:
            loss = model(**inputs, labels=batch["labels"], use_cache=False).loss
            tensors["loss"] = loss.detach().numpy().reshape(1)
        if "G" in job.stages and loss is not None:
            with writer.stage("G") as tensors:
                loss.backward()
                named = model.named_parameters()
                tensors.update({name: value.grad.numpy() for name, value in named if value.grad is not None})
    if "U" in job.stages:
        with writer.stage("U") as tensors:
            update_torch.record(model, tensors)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(str(error))
