"""AdamW with PyTorch's arithmetic, one jitted update for all parameters.

Why not `mindspore.experimental.optim.AdamW`, which agrees with torch as well: measured on 50 parameters (1 M elements,
2 cores) its jitted update compiles in 4.1 s against 1.6 s here, at the same 35-39 ms per step, and it keeps a third
moment per parameter that AdamW does not use (half as much optimizer memory again).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ParameterTuple, Tensor, mutable, ops

from mappings.errors import UserError
from ms_models.families.causal_lm import CausalLM
from ms_models.parallel.optimizer_sharding import OptimizerSharding
from ms_models.train.config import OptimizerConfig
from ms_models.train.parameter_groups import ParameterGroups, Treatment

MOMENTS = ("exp_avg", "exp_avg_sq")
MASTER = "master"


def shard(model: CausalLM, config: OptimizerConfig) -> OptimizerSharding:
    """Buckets of parameters that are in the same chunk (ZeRO 3: layer), are treated alike and are of one dtype."""
    parameters = model.trainable_params()
    chunks = {p.name: chunk for chunk in range(len(model.place.chunks)) for p in model.parameters_of(chunk)}
    if model.mesh.layout.zero == 3:
        chunks |= {p.name: -1 - n for n, layer in enumerate(model.body.layers) for p in layer.trainable_params()}
    groups = ParameterGroups(config)
    labels = [(chunks[p.name], *label(p, groups)) for p in parameters]
    return OptimizerSharding(parameters, model.held, model.mesh, labels, model.place.options.bucket_elements)


def label(parameter: Parameter, groups: ParameterGroups) -> tuple[Treatment, str]:
    """What the optimizer tells parameters apart by."""
    return groups.of(parameter.name, parameter.shape), str(parameter.dtype)


class AdamW:
    """Decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), bias-corrected as in torch.optim.AdamW.

    Moments are fp32, of the rows that this rank keeps; so are master copies of parameters in a narrower dtype, which
    are then rounded once an update.

    Args:
        sharding: of the parameters.
        config: settings.
        compiled: `ms.jit`, or the identity.
        kept: where replicas divide the parameters (`ParameterSharding`), the rows that this rank has, `[width]` of each
            bucket, fp32; they are updated then, and nothing is gathered.

    Attributes:
        step: updates made so far.
        flat: state to its buffers, one for each bucket.
    """

    def __init__(
        self,
        sharding: OptimizerSharding,
        config: OptimizerConfig,
        compiled: Callable[[Any], Any],
        kept: ParameterTuple | None = None,
    ) -> None:
        self.sharding, self.config, self.kept = sharding, config, kept
        self.step = 0
        self.flat = {moment: sharding.states(moment) for moment in MOMENTS}
        if any(parameter.dtype != ms.float32 for parameter in sharding.parameters):
            self.flat[MASTER] = sharding.states(MASTER)
            for bucket, master in zip(sharding.buckets, self.flat[MASTER], strict=True):
                ops.assign(master, bucket.kept([sharding.parameters[index] for index in bucket.indices]))
        groups = ParameterGroups(config)
        self._treatments = [groups.of(bucket.names[0], bucket.shapes[0]) for bucket in sharding.buckets]
        self._kinds = list(dict.fromkeys(self._treatments))
        self._update = compiled(self._make_update())

    def update(self, gradients: Sequence[Tensor], lr: float, scale: float) -> Tensor:
        """One step with the gradients (`GradientBuffers.reduce`) times `scale`; then every rank has all parameters.

        New numbers do not recompile: they enter as tensors.

        Returns:
            `[2]` fp32: sums of squares of what was added to the parameters and of the parameters before, over the
            elements that this rank counts.
        """
        self.step += 1
        beta1, beta2 = self.config.betas
        # In double precision on the host, as torch does: 1 - 0.999 in fp32 is off by 1e-5 of itself. The bias
        # correction of the second moment is taken out of the root: one operation less on everything.
        root = float(np.sqrt(1 - beta2**self.step))
        decays = [1 - lr * kind.lr_factor * kind.weight_decay for kind in self._kinds]
        sizes = [lr * kind.lr_factor * root / (1 - beta1**self.step) for kind in self._kinds]
        # mutable: otherwise their values are part of the graph, which is compiled again at every step
        squares: Tensor = self._update(
            mutable(tuple(gradients)),
            Tensor(scale, ms.float32),
            mutable(tuple(Tensor(value, ms.float32) for value in decays)),
            mutable(tuple(Tensor(value, ms.float32) for value in sizes)),
            Tensor(self.config.eps * root, ms.float32),
        )
        return squares

    def state(self) -> dict[str, np.ndarray]:
        """What this rank keeps, as fp32 arrays by `<state>.<parameter name>`."""
        return {
            f"{state}.{name}": value
            for state, buffers in self.flat.items()
            for bucket, buffer in zip(self.sharding.buckets, buffers, strict=True)
            for name, value in bucket.named(buffer.asnumpy()).items()
        }

    def whole_state(self) -> dict[str, np.ndarray]:
        """The same of whole parameters, gathered from the ranks that divide them, all of which must call this."""
        return {
            f"{state}.{name}": value
            for state, buffers in self.flat.items()
            for name, value in self.sharding.whole(buffers).items()
        }

    def load_state(self, state: Mapping[str, np.ndarray], step: int, where: str) -> None:
        """Restores what this rank keeps, and the step.

        Raises:
            UserError: a state is missing, superfluous or misshapen; lists them all.
        """
        own = {
            f"{kind}.{name}": shape
            for kind in self.flat
            for bucket in self.sharding.buckets
            for name, shape in zip(bucket.names, bucket.kept_shapes, strict=True)
        }
        problems = [f"{name} is missing" for name in own if name not in state]
        problems += [f"{name} is unexpected" for name in state if name not in own]
        problems += [
            f"{name} has shape {list(value.shape)} instead of {list(own[name])}"
            for name, value in state.items()
            if name in own and value.shape != own[name]
        ]
        if problems:
            raise UserError(f"{where}: optimizer state does not fit the model: {'; '.join(problems[:8])}")
        for kind, buffers in self.flat.items():
            for bucket, buffer in zip(self.sharding.buckets, buffers, strict=True):
                parts = [state[f"{kind}.{name}"].reshape(-1) for name in bucket.names]
                ops.assign(buffer, Tensor(np.concatenate(parts).astype(np.float32)))
        self.step = step

    def _make_update(self) -> Callable[..., Tensor]:
        buckets, parameters = self.sharding.buckets, self.sharding.parameters
        first, second = (self.flat[moment] for moment in MOMENTS)
        masters = self.flat.get(MASTER) if self.kept is None else self.kept
        gathers = self.kept is None
        kinds = tuple(self._kinds.index(treatment) for treatment in self._treatments)
        decaying = tuple(treatment.weight_decay != 0 for treatment in self._treatments)
        counted = tuple(bucket.is_counted for bucket in buckets)
        dot = ops.MatMul(transpose_b=True)  # several times faster than a sum of squares on CPU
        beta1, beta2 = self.config.betas
        rest1, rest2 = 1 - beta1, 1 - beta2  # not in `update`: a graph subtracts numbers in fp32

        def update(
            gradients: tuple[Tensor, ...],
            scale: Tensor,
            factors: tuple[Tensor, ...],
            sizes: tuple[Tensor, ...],
            eps: Tensor,
        ) -> Tensor:
            moved, size_before = ops.zeros((1, 1), ms.float32), ops.zeros((1, 1), ms.float32)
            for i, bucket in enumerate(buckets):
                gradient = gradients[i] * scale
                m = first[i] + (gradient - first[i]) * rest1
                v = second[i] * beta2 + gradient * gradient * rest2
                ops.assign(first[i], m)
                ops.assign(second[i], v)
                members = [parameters[index] for index in bucket.indices]
                kept = bucket.kept(members) if masters is None else masters[i]
                before = kept
                if decaying[i]:
                    kept = kept * factors[kinds[i]]
                kept = kept - sizes[kinds[i]] * (m / (ops.sqrt(v) + eps))
                if counted[i]:
                    step_row, row = (kept - before).reshape(1, -1), before.reshape(1, -1)
                    moved, size_before = moved + dot(step_row, step_row), size_before + dot(row, row)
                if masters is not None:
                    ops.assign(masters[i], kept)
                if gathers:
                    whole = bucket.split(bucket.gather(kept.astype(members[0].dtype)))
                    for place, member in enumerate(members):
                        ops.assign(member, whole[place])
            return ops.concat((moved, size_before), 0).reshape(-1)

        return update
