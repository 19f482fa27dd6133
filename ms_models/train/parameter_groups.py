"""`ParameterGroups`: which weight decay and which share of the learning rate a parameter gets."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import mindspore as ms
from mindspore import Tensor

from mappings.errors import UserError
from ms_models.parallel.collectives import all_reduce
from ms_models.parallel.mesh import Mesh
from ms_models.train.config import OptimizerConfig


def decays(shape: Sequence[int]) -> bool:
    """Whether weight decay applies where nothing is said: to matrices (embeddings too), not to norms and biases."""
    return len(shape) >= 2


@dataclass(frozen=True)
class Treatment:
    """What the optimizer does with a parameter; one of torch's `param_groups`."""

    weight_decay: float
    lr_factor: float = 1.0
    """Of the scheduled learning rate."""


class ParameterGroups:
    """Reads `optimizer.weight_decay`, `optimizer.no_decay` and `optimizer.groups`."""

    def __init__(self, config: OptimizerConfig) -> None:
        self.config = config
        self._still = [re.compile(pattern) for pattern in config.no_decay or ()]
        self._groups = [(re.compile(group.match), group) for group in config.groups]

    def of(self, name: str, shape: Sequence[int]) -> Treatment:
        """The treatment of a parameter: of the first group that its name matches, else the general one."""
        config = self.config
        if config.no_decay is None:
            decay = config.weight_decay if decays(shape) else 0.0
        else:
            decay = 0.0 if any(pattern.search(name) for pattern in self._still) else config.weight_decay
        number = self._taken(name)
        if number is None:
            return Treatment(decay)
        group = self._groups[number][1]
        return Treatment(decay if group.weight_decay is None else group.weight_decay, group.lr_factor)

    def check(self, names: Sequence[str], mesh: Mesh) -> None:
        """Refuses patterns that match no parameter of any rank; every rank calls it.

        A group whose matches all went to groups before it is refused, too.

        Args:
            names: trainable parameters of this rank.
            mesh: of the run.

        Raises:
            UserError: names the patterns.
        """
        taken = [self._taken(name) for name in names]
        seen = [any(pattern.search(name) for name in names) for pattern in self._still]
        seen += [number in taken for number in range(len(self._groups))]
        if not seen:
            return
        # A stage of a pipeline has some of the parameters only.
        world = mesh.group("tp", "cp", "dp", "pp")
        counts = all_reduce(Tensor([float(one) for one in seen], ms.float32), world).asnumpy()
        fields = [f"optimizer.no_decay[{n}] {pattern.pattern!r}" for n, pattern in enumerate(self._still)]
        fields += [f"optimizer.groups[{n}].match {pattern.pattern!r}" for n, (pattern, _) in enumerate(self._groups)]
        if idle := [field for field, count in zip(fields, counts, strict=True) if not count]:
            raise UserError(
                f"config: {', '.join(idle)}: no parameter is left for it; names look like {', '.join(names[:3])}"
            )

    def _taken(self, name: str) -> int | None:
        return next((number for number, (pattern, _) in enumerate(self._groups) if pattern.search(name)), None)
