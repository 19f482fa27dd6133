"""The candidate side: ms_models on MindSpore, fp32. `python -m migrate.parity.capture_mindspore JOB OUT`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity import update_mindspore
from migrate.parity.axes import by_token
from migrate.parity.job import MASKED, Job
from migrate.parity.modules import CHOICE, LOGITS_OF_ROUTER
from migrate.parity.recording import INPUTS, Recorder


def main(job_path: Path, out: Path) -> None:
    """Computes what the job asks for and stores it in `out`.

    Raises:
        UserError: the model cannot be built or loaded.
    """
    import mindspore

    mindspore.runtime.launch_blocking()  # otherwise an error surfaces at a later line and blames another stage
    job = Job.read(job_path)
    model = load(job)
    writer = CaptureWriter(out, {"mindspore": mindspore.__version__, "numpy": np.__version__})
    batch = {name: mindspore.Tensor(values.astype(np.int32)) for name, values in job.batch().items()}
    ids, mask, labels = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
    segments = (batch["token_type_ids"],) if job.task == MASKED else ()
    if "W" in job.stages:
        with writer.stage("W") as tensors:
            tensors.update({parameter.name: parameter.asnumpy() for parameter in model.get_parameters()})
    if "F" in job.stages:
        recorder = Recorder(lambda value: by_token(value.asnumpy().copy(), *ids.shape))
        with writer.stage("F") as tensors:
            recorder.outputs = tensors
            handles = record(model.modules(), job.modules, recorder)
            tensors["logits"] = model(ids, mask, *segments).asnumpy()
            for handle in handles:
                handle.remove()
        with writer.stage(INPUTS) as tensors:
            tensors.update(recorder.inputs)
    if "L" in job.stages or "G" in job.stages:
        parameters = [parameter for parameter in model.trainable_params() if parameter.name not in job.idle]
        result: Any = None
        with writer.stage("L") as tensors:

            def mean_loss() -> tuple[Any, Any]:
                total, count = model.loss(ids, labels, mask, *segments)
                return total / count, count

            if "G" in job.stages:
                result = mindspore.value_and_grad(mean_loss, None, parameters, has_aux=True)()
                loss, count = result[0]
            else:
                loss, count = mean_loss()
            tensors["loss"] = loss.asnumpy().reshape(1)
            tensors["valid_labels"] = count.asnumpy().reshape(1)
        if "G" in job.stages and result is not None:
            with writer.stage("G") as tensors:
                pairs = zip(parameters, result[1], strict=True)
                tensors.update({parameter.name: gradient.asnumpy() for parameter, gradient in pairs})
    if "U" in job.stages:
        with writer.stage("U") as tensors:
            update_mindspore.record(model, tensors, job.idle)


def load(job: Job, mesh: Any = None, options: Any = None) -> Any:
    """The model of a job in ms_models, in evaluation mode: encoders drop nothing then.

    Args:
        job: of this side.
        mesh: place of this process; one process on its own by default.
        options: how ranks work together.
    """
    from ms_models import AutoModelForCausalLM
    from ms_models.auto_masked_lm import AutoModelForMaskedLM

    kind: Any = AutoModelForMaskedLM if job.task == MASKED else AutoModelForCausalLM
    model = kind.from_pretrained(job.directory, mesh, options)
    model.set_train(False)
    if job.idle:
        model.further_weight = 0.0  # the loss of transformers is that of the next token alone
    return model


def record(cells: Mapping[str, Any], names: Sequence[str], recorder: Recorder) -> list[Any]:
    """Hooks around the named cells; their handles."""
    handles = []
    for name in names:
        if name.endswith(CHOICE):
            router = cells[name.removesuffix(CHOICE)]
            handles.append(router.register_forward_hook(partial(recorder.choose, name)))
            continue
        handles.append(cells[name].register_forward_pre_hook(partial(recorder.enter, name), with_kwargs=True))
        cell = cells.get(f"{name}.{LOGITS_OF_ROUTER}", cells[name])
        handles.append(cell.register_forward_hook(partial(recorder.leave, name)))
    return handles


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(str(error))
