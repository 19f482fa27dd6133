"""The reference's backward pass: `python -m migrate.parity.backward.torch_side JOB OUT`.

One training step with a hook on both sides of every module. Modules get copies of their inputs, so that what arrives at
a copy is what this module alone hands back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import CaptureWriter
from migrate.parity.axes import by_token
from migrate.parity.backward.naming import ARRIVING, HANDED, OWN, part, tied_tables
from migrate.parity.capture_torch import load
from migrate.parity.job import MASKED, Job
from migrate.parity.modules import CHOICE, LOGITS
from migrate.parity.recording import INPUTS, Recorder, first_output, first_tensor, spread, with_first


class Watch(Recorder):
    """Values as stage F has them, and gradients at both sides of each module.

    Attributes:
        gradients: by stage and module; zeros where none arrived.
        tables: modules without submodules that look something up. What arrives there is not recorded: the row of a
            padding token gets no gradient inside of a table here, and behind it in other code.
        cut: modules whose outputs get no gradient, while nothing is recorded.
    """

    def __init__(self, batch: tuple[int, int], modules: Sequence[str]) -> None:
        super().__init__(lambda value: by_token(value.detach().numpy(), *batch).copy())
        self.routers = {name.removesuffix(CHOICE) for name in modules if name.endswith(CHOICE)}
        self.parents = {name.rpartition(".")[0] for name in modules}
        self.gradients: dict[str, dict[str, np.ndarray]] = {ARRIVING: {}, HANDED: {}}
        self.tables: set[str] = set()
        self.cut: set[str] = set()

    def enter(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A hook before a module; bind `name`."""
        super().enter(name, module, args, kwargs)
        value = first_tensor(args, kwargs)
        if value is None or not value.requires_grad:
            self.tables |= {name} - self.parents
            return None
        inside = value.clone()
        self.watch(HANDED, name, inside)
        new = {key: inside if one is value else one for key, one in kwargs.items()}
        return tuple(inside if one is value else one for one in args), new

    def leave(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a module; bind `name`."""
        super().leave(name, module, args, output)
        value = first_output(output)
        if name in self.routers:
            # Weights are computed from these logits inside of the router; a copy would get nothing.
            value.register_hook(partial(self.note, ARRIVING, name, self.to_numpy))
            return None
        if not value.requires_grad:
            return None
        outside = value.clone()
        self.watch(ARRIVING, name, outside)
        return with_first(output, outside)

    def choose(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a router; bind `name`."""
        super().choose(name, module, args, output)
        weights, chosen = output[-2].clone(), self.to_numpy(output[-1])
        self.watch(ARRIVING, name, weights, lambda value: spread(self.to_numpy(value), chosen, module.weight.shape[0]))
        return (*output[:-2], weights, output[-1])

    def watch(self, stage: str, name: str, tensor: Any, to_array: Callable[[Any], np.ndarray] | None = None) -> None:
        """Records the gradient of a tensor, zeros as long as there is none."""
        to_array = to_array or self.to_numpy
        self.note(stage, name, to_array, tensor.new_zeros(tensor.shape))
        tensor.register_hook(partial(self.note, stage, name, to_array))

    def note(self, stage: str, name: str, to_array: Callable[[Any], np.ndarray], gradient: Any) -> Any:
        """Stores a gradient; None, or what takes its place."""
        if self.cut:
            return gradient * 0 if stage == ARRIVING and name in self.cut else None
        if stage == HANDED or name not in self.tables:
            self.gradients[stage][name] = to_array(gradient)
        return None


def main(job_path: Path, out: Path) -> None:
    """Stores values (`F`, `I`), gradients at modules and gradients of parameters.

    Raises:
        UserError: transformers loads the weights only in part.
    """
    import torch
    import transformers

    job = Job.read(job_path)
    torch.use_deterministic_algorithms(True)
    model = load(job)
    batch = {name: torch.from_numpy(values) for name, values in job.batch().items()}
    rows, length = batch["input_ids"].shape
    watch = Watch((rows, length), job.modules)
    for name in job.modules:
        module = model.get_submodule(name.removesuffix(CHOICE))
        if name.endswith(CHOICE):
            module.register_forward_hook(partial(watch.choose, name))
            continue
        module.register_forward_pre_hook(partial(watch.enter, name), with_kwargs=True)
        module.register_forward_hook(partial(watch.leave, name))
    cache = {} if job.task == MASKED else {"use_cache": False}
    result: Any = model(**batch, **cache)
    watch.outputs[LOGITS] = watch.to_numpy(result.logits)
    watch.watch(ARRIVING, LOGITS, result.logits)
    tables = tied_tables(job)
    result.loss.backward(retain_graph=bool(tables))
    own = _gradients(model, job)
    for table in tables:
        name = f"{table}.weight"
        model.zero_grad()
        watch.cut = {table}
        result.loss.backward(retain_graph=True)
        head = _gradients(model, job)[name]
        if not head.any():  # tied to what this loss does not reach
            continue
        whole = own.pop(name)
        own |= {part(name, LOGITS): head, part(name, table): whole - head}
    writer = CaptureWriter(out, {"torch": torch.__version__, "transformers": transformers.__version__})
    stages = {"F": watch.outputs, INPUTS: watch.inputs, **watch.gradients, OWN: own}
    for stage, found in stages.items():
        with writer.stage(stage) as tensors:
            tensors.update(found)


def _gradients(model: Any, job: Job) -> dict[str, np.ndarray]:
    named = ((job.stored_name(name), value.grad) for name, value in model.named_parameters())
    return {name: gradient.numpy().copy() for name, gradient in named if gradient is not None}


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except UserError as error:
        sys.exit(str(error))
