"""The candidate's backward pass, free and forced: `python -m migrate.parity.backward.mindspore_side JOB REF OUT`.

In the forced pass each module gets the reference's inputs, and the reference's gradient arrives at its output, whatever
the candidate has there. What it hands back is recorded, then replaced as well. So each module, and each piece of code
between modules, is judged alone.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mappings.errors import UserError
from migrate.captures.store import Capture, CaptureWriter
from migrate.parity.backward.naming import ARRIVING, CELLS, FORCED, FREE, HANDED, OWN, part, tied_tables
from migrate.parity.capture_mindspore import load, record
from migrate.parity.explain.tree import ROOT
from migrate.parity.forced_mindspore import Forcing, as_raw
from migrate.parity.job import MASKED, Job
from migrate.parity.modules import LOGITS
from migrate.parity.recording import INPUTS, first_output, first_tensor, spread, with_first

Note = Callable[[Any], Any]
"""Takes the gradient that arrives; gives what takes its place, or None."""


class Boundaries(Forcing):
    """Hooks that put a boundary on both sides of every module.

    Attributes:
        gradients: by stage and module; zeros where none arrived.
        anchor: a parameter that every boundary seems to depend on; without it MindSpore leaves out those whose value no
            parameter reaches, and a detached one must be judged, too.
        nothing: zero that depends on every boundary; added to the loss, so that those it does not reach are judged.
        cut: modules whose outputs get no gradient, while nothing is recorded.
    """

    def __init__(self, reference: Capture, batch: tuple[int, int], forced: bool) -> None:
        import mindspore

        super().__init__(reference, batch)
        self.anchor = mindspore.Parameter(mindspore.Tensor(0.0, mindspore.float32), name="anchor of boundaries")
        self.nothing: Any = 0.0
        self.given |= {stage: set(reference.names(stage)) for stage in (ARRIVING, HANDED)}
        self.forced = forced
        self.gradients: dict[str, dict[str, np.ndarray]] = {ARRIVING: {}, HANDED: {}}
        self.cut: set[str] = set()

    def enter(self, name: str, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """A hook before a module; bind `name`."""
        value = first_tensor(args, kwargs)
        if value is None or not value.is_floating_point():
            return None
        new = self.boundary(HANDED, name, value, self.right(INPUTS, name, value))
        kept = {key: new if one is value else one for key, one in kwargs.items()}
        return tuple(new if one is value else one for one in args), kept

    def leave(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a module; bind `name`."""
        value = first_output(output)
        return with_first(output, self.boundary(ARRIVING, name, value, self.right("F", name, value)))

    def choose(self, name: str, module: Any, args: Any, output: Any) -> Any:
        """A hook behind a router; bind `name`. The reference may have a token's experts in another order."""
        weights, chosen = output[-2:]
        forced = super().choose(name, module, args, output) if self.forced else None
        own, experts = chosen.asnumpy().copy(), module.weight.shape[0]
        order = own if forced is None else forced[1].asnumpy()

        def note(gradient: Any) -> Any:
            values = self.to_numpy(gradient)
            each = spread(values.reshape(*values.shape[:2], -1), order.reshape(*values.shape[:2], -1), experts)
            right = self.noted(ARRIVING, name, each)
            return None if right is None else np.take_along_axis(right.reshape(*own.shape[:-1], -1), own, -1)

        note(weights * 0)
        if forced is None:
            return self.through(weights, note), chosen
        return self.through(weights, note, forced[0]), forced[1]

    def head(self, inner: Callable[[Any], Any], x: Any) -> Any:
        """The model's head with a boundary behind it; bind `inner`."""
        logits = inner(x)
        return self.boundary(ARRIVING, LOGITS, logits, self.right("F", LOGITS, logits))

    def boundary(self, stage: str, name: str, value: Any, right: Any) -> Any:
        """The value, or what the reference has in its place, with its gradient recorded and replaced."""

        def note(gradient: Any) -> Any:
            found = self.noted(stage, name, self.to_numpy(gradient))
            return None if found is None else as_raw(found, tuple(gradient.shape), *self.batch)

        note(value * 0)
        return self.through(value, note, right)

    def through(self, value: Any, note: Note, right: Any = None) -> Any:
        """The value (or another in its place), through which gradients go back by way of `note`."""
        from mindspore import Tensor, nn, ops

        class Boundary(nn.Cell):
            def construct(self, x: Any, anchor: Any) -> Any:
                return x if right is None else right

            def bprop(self, x: Any, anchor: Any, out: Any, dout: Any) -> tuple[Any, Any]:
                found = note(dout)
                back = dout if found is None else Tensor(np.ascontiguousarray(found)).astype(dout.dtype)
                return back, ops.zeros_like(anchor)

        passed = Boundary(auto_prefix=False)(value, self.anchor)
        self.nothing = self.nothing + passed.sum() * 0
        return passed

    def noted(self, stage: str, name: str, values: np.ndarray) -> np.ndarray | None:
        """Stores a gradient; None, or what takes its place."""
        if self.cut:
            return np.zeros_like(values) if stage == ARRIVING and name in self.cut else None
        self.gradients[stage][name] = values
        if not self.forced or name not in self.given[stage]:
            return None
        with self.reference.reader(stage) as read:
            found: np.ndarray = read(name)
        return found if found.shape == values.shape else None

    def right(self, stage: str, name: str, value: Any) -> Any:
        """What the reference has in this place, in the forced pass."""
        return super().right(stage, name, value) if self.forced else None


def main(job_path: Path, reference: Path, out: Path) -> None:
    """Stores gradients at modules and of parameters, of the free pass and of the forced one.

    Raises:
        UserError: the model cannot be built or loaded, or the reference has no gradients of modules.
    """
    import mindspore

    mindspore.runtime.launch_blocking()
    job, right = Job.read(job_path), Capture.read(reference)
    if ARRIVING not in right.stages or OWN not in right.stages:
        raise UserError(f"{reference}: holds no gradients of modules, so there is nothing to force")
    model = load(job)
    (out / CELLS).write_text(json.dumps(_classes(model, job)), encoding="utf-8")
    for kind in (FREE, FORCED):
        (out / kind).mkdir()
        writer = CaptureWriter(out / kind, {"mindspore": mindspore.__version__})
        boundaries = Boundaries(right, job.batch()["input_ids"].shape, kind == FORCED)  # type: ignore[arg-type]
        handles, head = record(model.modules(), job.modules, boundaries), model.head
        model.head = partial(boundaries.head, head)
        with writer.stage(OWN) as tensors:
            own = _gradients(model, job, boundaries)
            for table in tied_tables(job):
                name, boundaries.cut = f"{table}.weight", {table}
                if part(name, table) not in right.names(OWN):
                    continue
                of_head = _gradients(model, job, boundaries)[name]
                whole = own.pop(name)
                own |= {part(name, LOGITS): of_head, part(name, table): whole - of_head}
            tensors.update(own)
        for stage, found in boundaries.gradients.items():
            with writer.stage(stage) as tensors:
                tensors.update(found)
        for handle in handles:
            handle.remove()
        model.head = head


def _gradients(model: Any, job: Job, boundaries: Boundaries) -> dict[str, np.ndarray]:
    import mindspore

    batch = {name: mindspore.Tensor(values.astype(np.int32)) for name, values in job.batch().items()}
    ids, mask, labels = (batch[name] for name in ("input_ids", "attention_mask", "labels"))
    segments = (batch["token_type_ids"],) if job.task == MASKED else ()
    parameters = [parameter for parameter in model.trainable_params() if parameter.name not in job.idle]

    def mean_loss() -> Any:
        total, count = model.loss(ids, labels, mask, *segments)
        return total / count + boundaries.nothing

    boundaries.nothing = 0.0
    gradients = mindspore.value_and_grad(mean_loss, None, [*parameters, boundaries.anchor])()[1][:-1]
    return {one.name: gradient.asnumpy().copy() for one, gradient in zip(parameters, gradients, strict=True)}


def _classes(model: Any, job: Job) -> dict[str, list[tuple[str, str]]]:
    """By module: the classes of its cell and of those inside that are no modules themselves, ms_models' own only."""
    cells = model.modules()
    named = {id(cells[name]) for name in job.modules if name in cells}
    found: dict[str, list[tuple[str, str]]] = {}
    for name, cell in ((ROOT, model), *((name, cells[name]) for name in job.modules if name in cells)):
        kinds: dict[type, None] = {}
        todo = [cell]
        while todo:
            one = todo.pop()
            kinds |= dict.fromkeys(type(one).__mro__)
            todo += [inside for inside in one.cells() if id(inside) not in named]
        own = [kind for kind in kinds if kind.__module__.startswith("ms_models.")]
        found[name] = [(inspect.getfile(kind), f"{kind.__module__}.{kind.__qualname__}") for kind in own]
    return found


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
    except UserError as error:
        sys.exit(str(error))
