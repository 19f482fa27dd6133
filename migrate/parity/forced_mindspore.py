"""The candidate, every module of it fed with the reference's inputs: `... migrate.parity.forced_mindspore JOB REF OUT`.

What arrives at a module is recorded, then replaced by the reference's input; what it makes of that is recorded, then
replaced by the reference's output. So each module, and each piece of code between modules, is judged alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.axes import by_token
from migrate.parity.capture_mindspore import load, record
from migrate.parity.job import MASKED, Job
from migrate.parity.recording import INPUTS, Recorder, first_output, first_tensor, with_first


class Forcing(Recorder):
    """Hooks that record what the candidate computes and hand on what the reference had."""

    def __init__(self, reference: Capture, batch: tuple[int, int]) -> None:
        super().__init__(lambda value: by_token(value.asnumpy().copy(), *batch))
        self.batch = batch
        self.given = {stage: set(reference.names(stage)) for stage in (INPUTS, "F")}
        self.reference = reference

    def enter(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A hook before a module; bind `name`."""
        super().enter(name, module, args, kwargs)
        value = first_tensor(args, kwargs)
        right = None if value is None else self.right(INPUTS, name, value)
        if right is None:
            return None
        new = {key: right if one is value else one for key, one in kwargs.items()}
        return tuple(right if one is value else one for one in args), new

    def leave(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a module; bind `name`."""
        super().leave(name, module, args, output)
        right = self.right("F", name, first_output(output))
        return output if right is None else with_first(output, right)

    def choose(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a router; bind `name`. The experts behind it get the reference's weights."""
        from mindspore import Tensor

        super().choose(name, module, args, output)
        if name not in self.given["F"]:
            return None
        with self.reference.reader("F") as read:
            each: np.ndarray = read(name)
        count = int((each != 0).sum(-1).max())
        chosen = np.argsort(-each, -1, kind="stable")[..., :count]
        shape = (*output[-1].shape[:-1], count)
        weights = np.take_along_axis(each, chosen, -1).reshape(shape)
        return Tensor(weights).astype(output[0].dtype), Tensor(chosen.reshape(shape).astype(np.int32))

    def right(self, stage: str, name: str, value: Any) -> Any:
        """What the reference has in this place; None if it has nothing of this size."""
        from mindspore import Tensor

        if name not in self.given[stage]:
            return None
        with self.reference.reader(stage) as read:
            values: np.ndarray = read(name)
        laid_out = as_raw(values, tuple(value.shape), *self.batch)
        return None if laid_out is None else Tensor(np.ascontiguousarray(laid_out)).astype(value.dtype)


def as_raw(values: np.ndarray, shape: tuple[int, ...], batch: int, length: int) -> np.ndarray | None:
    """What `by_token` has put in order, in a module's own layout; None if it does not fit.

    Args:
        values: of the reference.
        shape: of what the module computes with.
        batch: rows of the batch.
        length: of the rows.
    """
    if values.shape == shape and shape[:2] == (batch, length):
        return values
    if values.shape[:2] == (batch, length):
        if shape == (batch * length, *values.shape[2:]):
            return values.reshape(shape)
        if shape == (1, *values.shape[1:]):  # computed once for all rows; of unequal ones it is asked for each
            return values[:1] if (values == values[:1]).all() else values
        if len(shape) == 4 and shape == (values.shape[0], values.shape[2], values.shape[1], values.shape[3]):
            return values.swapaxes(1, 2)
    return values if values.shape == shape else None


def main(job_path: Path, reference: Path, out: Path) -> None:
    """Stores what arrived at the modules (`I`) and what they made of the reference's inputs (`F`).

    Raises:
        UserError: the model cannot be built or loaded, or the reference has no stage F.
    """
    import mindspore

    mindspore.runtime.launch_blocking()
    job, right = Job.read(job_path), Capture.read(reference)
    if "F" not in right.stages or INPUTS not in right.stages:
        raise UserError(f"{reference}: holds no activations, so there is nothing to force")
    model = load(job)
    writer = CaptureWriter(out, {"mindspore": mindspore.__version__})
    batch = {name: mindspore.Tensor(values.astype(np.int32)) for name, values in job.batch().items()}
    ids, mask = batch["input_ids"], batch["attention_mask"]
    segments = (batch["token_type_ids"],) if job.task == MASKED else ()
    forcing = Forcing(right, tuple(ids.shape))
    with writer.stage("F") as tensors:
        forcing.outputs = tensors
        record(model.modules(), job.modules, forcing)
        tensors["logits"] = model(ids, mask, *segments).asnumpy()
    with writer.stage(INPUTS) as tensors:
        tensors.update(forcing.inputs)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
    except UserError as error:
        sys.exit(str(error))
