"""Faults planted into the optimizer, all found at stage U; see `plants`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from planting import planted
from plants import Plant, Replacement

EMBEDDING = "model.embed_tokens.weight in step {}"
PLANTS = {
    "no bias correction": Plant("U", EMBEDDING.format(1), "moments begin at zero"),
    "bias correction one step late": Plant("U", EMBEDDING.format(1), "steps counted from 0"),
    "epsilon": Plant("U", EMBEDDING.format(1), "1e-6 for 1e-8, the default of another optimizer"),
    "epsilon within the root": Plant("U", EMBEDDING.format(1), "added before the root"),
    "another beta2": Plant("U", EMBEDDING.format(1), "0.999, the default"),
    "decay of norms and biases": Plant("U", "model.layers.0.input_layernorm.weight in step 1", "all in one group"),
    "no decay of the embedding": Plant("U", EMBEDDING.format(1), "the table taken out of the decay"),
    "decay in the gradient": Plant("U", EMBEDDING.format(1), "Adam with L2 for AdamW"),
    "decay not scaled by the learning rate": Plant("U", EMBEDDING.format(1), "decay of another convention"),
    "no clipping": Plant("U", EMBEDDING.format(1), "forgotten"),
    "clipping by parameter": Plant("U", EMBEDDING.format(1), "each parameter by its own norm"),
    "clipping by the largest parameter": Plant("U", "gradient norm of step 1", "the largest norm for that of all"),
    "a tied table counted twice in the norm": Plant("U", "gradient norm of step 1", "parameters listed twice"),
    "accumulation averaged once more": Plant("U", "gradient norm of step 1", "divided twice"),
    "accumulation not averaged": Plant("U", "gradient norm of step 1", "a sum over micro-batches"),
    "the last micro-batch only": Plant("U", "gradient norm of step 1", "gradients overwritten"),
    "warmup from zero": Plant("U", "learning rate of step 1", "steps counted from 0"),
    "no warmup": Plant("U", "learning rate of step 1", "forgotten"),
}
BENIGN = ("nothing", "clipping without the small number", "another order of buckets")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    from mindspore import ops

    from ms_models.train import optimizer, parameter_groups, schedule, step
    from ms_models.train.gradients import GradientBuffers

    update, reduce, norm, adder = (
        optimizer.AdamW.update, GradientBuffers.reduce, GradientBuffers.norm, GradientBuffers.adder,
    )  # fmt: skip
    rate = schedule.learning_rate

    def counted(change: Callable[[int], int]) -> Callable[..., Any]:
        def faulty(self: Any, gradients: Any, lr: float, scale: float) -> Any:
            own, self.step = self.step, change(self.step)
            result = update(self, gradients, lr, scale)
            self.step = own + 1
            return result

        return faulty

    def configured(**changes: Any) -> Callable[..., Any]:
        def faulty(self: Any, gradients: Any, lr: float, scale: float) -> Any:
            self.config = replace(self.config, **changes)
            return update(self, gradients, lr, scale)

        return faulty

    def coupled(self: Any, gradients: Any, lr: float, scale: float) -> Any:
        members = self.sharding.parameters
        mixed = [
            gradient + bucket.kept([members[i] for i in bucket.indices]) * (kind.weight_decay / scale)
            for gradient, bucket, kind in zip(gradients, self.sharding.buckets, self._treatments, strict=True)
        ]
        before, self._kinds = self._kinds, [replace(kind, weight_decay=0.0) for kind in self._kinds]
        result = update(self, mixed, lr, scale)
        self._kinds = before
        return result

    def unscaled(self: Any, gradients: Any, lr: float, scale: float) -> Any:
        before = self._kinds
        self._kinds = [replace(kind, weight_decay=kind.weight_decay / lr / 100) for kind in before]
        result = update(self, gradients, lr, scale)
        self._kinds = before
        return result

    def in_root(self: Any, gradients: Any, lr: float, scale: float) -> Any:
        root = ops.sqrt
        with planted(ops, "sqrt", lambda x: root(x + self.config.eps)):
            return update(self, gradients, lr, scale)

    def last_only(self: Any, parameters: Any) -> Any:
        add = adder(self, parameters)

        def faulty(gradients: Any) -> None:
            self.zero()
            add(gradients)

        return faulty

    def largest(self: Any, reduced: Any) -> float:
        return max(float(ms.ops.square(kept).sum().asnumpy()) ** 0.5 for kept in reduced)

    def by_parameter(self: Any, gradients: Any, lr: float, scale: float) -> Any:
        clipped = []
        for gradient, bucket in zip(gradients, self.sharding.buckets, strict=True):
            values = gradient.asnumpy().copy()
            for part in bucket.named(values).values():  # views
                part *= min(1.0, self.config.clip_norm / float(np.linalg.norm(part)))
            clipped.append(ms.Tensor(values))
        return update(self, clipped, lr, scale)

    def twice(self: Any, reduced: Any) -> float:
        table = next(i for i, b in enumerate(self.sharding.buckets) if "model.embed_tokens.weight" in b.names)
        again = float(ops.square(reduced[table]).sum().asnumpy())
        return float((norm(self, reduced) ** 2 + again) ** 0.5)

    def reversed_sum(self: Any, reduced: Any) -> float:
        squares = [float(ops.square(ops.flip(kept, (0,))).sum().asnumpy()) for kept in reversed(reduced)]
        return float(sum(squares) ** 0.5)

    adam, buffers, groups = optimizer.AdamW, GradientBuffers, parameter_groups
    rows = 131
    return {
        "nothing": (adam, "update", update),
        "clipping without the small number": (step, "clip_factor", lambda n, limit: min(1.0, limit / n)),
        "another order of buckets": (buffers, "norm", reversed_sum),
        "no bias correction": (adam, "update", counted(lambda done: done + 10**6)),
        "bias correction one step late": (adam, "update", counted(lambda done: done + 1)),
        "epsilon": (adam, "update", configured(eps=1e-6)),
        "epsilon within the root": (adam, "update", in_root),
        "another beta2": (adam, "update", configured(betas=(0.9, 0.999))),
        "decay of norms and biases": (groups, "decays", lambda shape: True),
        "no decay of the embedding": (groups, "decays", lambda shape: len(shape) >= 2 and shape[0] != rows),
        "decay in the gradient": (adam, "update", coupled),
        "decay not scaled by the learning rate": (adam, "update", unscaled),
        "no clipping": (step, "clip_factor", lambda n, limit: 1.0),
        "clipping by parameter": [(step, "clip_factor", lambda n, limit: 1.0), (adam, "update", by_parameter)],
        "clipping by the largest parameter": (buffers, "norm", largest),
        "a tied table counted twice in the norm": (buffers, "norm", twice),
        "accumulation averaged once more": (buffers, "reduce", lambda self: tuple(g / 2 for g in reduce(self))),
        "accumulation not averaged": (buffers, "reduce", lambda self: tuple(g * 2 for g in reduce(self))),
        "the last micro-batch only": (buffers, "adder", last_only),
        "warmup from zero": (schedule, "learning_rate", lambda n, *rest: rate(max(1, n - 1), *rest) * (n > 1)),
        "no warmup": (schedule, "learning_rate", lambda n, steps, o, s: rate(n, steps, o, replace(s, warmup_steps=0))),
    }
