"""The reference side: transformers on PyTorch, CPU. `python -m migrate.parity.capture_torch JOB OUT`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity import update_torch
from migrate.parity.axes import by_token
from migrate.parity.job import MASKED, Job
from migrate.parity.modules import CHOICE
from migrate.parity.recording import INPUTS, Recorder
from migrate.parity.stored_weights import stored_weights


def main(job_path: Path, out: Path) -> None:
    """Computes what the job asks for and stores it in `out`.

    Raises:
        UserError: the weights do not fit the model: transformers would have made up the rest.
    """
    import torch
    import transformers

    job = Job.read(job_path)
    torch.use_deterministic_algorithms(True)
    model = load(job)
    stored = job.stored_name
    writer = CaptureWriter(out, {"torch": torch.__version__, "transformers": transformers.__version__})
    if job.reordered:
        torch.set_num_threads(2 if torch.get_num_threads() == 1 else 1)
    step = -1 if job.reordered else 1
    batch = {name: torch.from_numpy(values[::step].copy()) for name, values in job.batch().items()}
    inputs: dict[str, Any] = {name: values for name, values in batch.items() if name != "labels"}
    if job.task != MASKED:
        inputs["use_cache"] = False
    if "W" in job.stages:
        with writer.stage("W") as tensors:
            persistent = model.state_dict().keys() & dict(model.named_buffers()).keys()
            named = [*model.named_parameters(), *(pair for pair in model.named_buffers() if pair[0] in persistent)]
            tensors.update({stored(name): value.detach().numpy() for name, value in named})
            tensors.update(stored_weights(job.directory, [name for name in job.kept if name not in tensors]))
    if "F" in job.stages:
        rows, length = batch["input_ids"].shape
        recorder = Recorder(lambda value: by_token(value.detach().numpy(), rows, length)[::step].copy())
        with writer.stage("F") as tensors, torch.no_grad():
            recorder.outputs = tensors
            handles = []
            for name in job.modules:
                if name.endswith(CHOICE):
                    router = model.get_submodule(name.removesuffix(CHOICE))
                    handles.append(router.register_forward_hook(partial(recorder.choose, name)))
                    continue
                module, enter = model.get_submodule(name), partial(recorder.enter, name)
                handles.append(module.register_forward_pre_hook(enter, with_kwargs=True))
                handles.append(module.register_forward_hook(partial(recorder.leave, name)))
            tensors["logits"] = model(**inputs).logits.numpy()[::step]
            for handle in handles:
                handle.remove()
        with writer.stage(INPUTS) as tensors:
            tensors.update(recorder.inputs)
    if "L" in job.stages or "G" in job.stages:
        loss: Any = None
        with writer.stage("L") as tensors:
            loss = model(**inputs, labels=batch["labels"]).loss
            tensors["loss"] = loss.detach().numpy().reshape(1)
        if "G" in job.stages and loss is not None:
            with writer.stage("G") as tensors:
                loss.backward()
                named = model.named_parameters()
                tensors.update({stored(name): value.grad.numpy() for name, value in named if value.grad is not None})
    if "U" in job.stages:
        with writer.stage("U") as tensors:
            update_torch.record(model, tensors, stored, job.untrained)


def load(job: Job) -> Any:
    """The model of a job in transformers, in evaluation mode: nothing is dropped, whatever `config.json` says.

    Raises:
        UserError: transformers finds only some of the weights, or more than those that it may leave aside.
    """
    import torch
    import transformers

    kind: Any = transformers.AutoModelForMaskedLM if job.task == MASKED else transformers.AutoModelForCausalLM
    # "eager" spells out attention and experts; fused kernels order their sums differently from build to build, and
    # grouped products refuse widths that are no multiple of 4.
    model, info = kind.from_pretrained(
        job.directory,
        dtype=getattr(torch, job.dtype),
        attn_implementation="eager",
        experts_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
    )
    info["unexpected_keys"] = set(info.get("unexpected_keys", ())) - set(job.not_loaded)
    if problems := {kind: sorted(names) for kind, names in info.items() if names}:
        raise UserError(f"{job.directory}: transformers loads it only in part: {problems}")
    model.eval()
    if job.dtype == "float64":
        # Eager attention asks for a softmax in fp32, where the mask of fp64 overflows to NaN.
        softmax = torch.nn.functional.softmax
        torch.nn.functional.softmax = lambda x, dim=None, _stacklevel=3, dtype=None: softmax(x, dim)  # type: ignore[assignment]
    return model


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(str(error))
