"""`Forward`: calls the forward of an adapted model and makes a summed loss of what it returns."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import mindspore as ms
from mindspore import Tensor, nn, ops

from mappings.errors import UserError
from ms_models.parallel.logarithm import Log
from ms_models.train.config.adapter import INPUTS, AdapterConfig

CONSTANT = -1


class Forward(nn.Cell):
    """The summed loss of a batch, and the number of its labels.

    A label counts where it is not `ignore_index`; of labels that forward shifts itself (`same`), where it is not the
    first of its row. A mean is taken to be over exactly these and is multiplied back by their number. A batch without
    any has the loss 0: forward is given labels that count then, since a mean over none is no number, nor its gradient.

    Args:
        module: the model.
        config: of the adapter.

    Raises:
        UserError: forward has no parameter of a name, or others without a default.
    """

    def __init__(self, module: nn.Cell, config: AdapterConfig) -> None:
        super().__init__(auto_prefix=False)
        self.module = module
        self.config = config
        self.sources, self.constants = _binding(module, config)
        self.shifts = config.labels == "same"
        self.of_logits = config.output == "logits"
        self.is_mean = config.reduction == "mean"
        self.ignored = config.ignore_index
        self.log = Log()
        self.place = _place(config.select)
        self.logits_place = _place(config.select if config.output == "logits" else config.logits)

    def construct(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Loss and number of labels, fp32 scalars.

        Args:
            input_ids: `[B, S]` int32.
            labels: `[B, S]` int32, as `labels` of the configuration says.
            attention_mask: `[B, S]` int32, 0 for padding.
        """
        targets, count = self.targets(labels)
        return self.total(self.call(input_ids, self.safe(labels, count), attention_mask), targets, count), count

    def measure(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """`[2]` fp32: the summed loss, and how many labels are the model's likeliest token; needs logits.

        Args:
            input_ids: see `construct`.
            labels: see `construct`.
            attention_mask: see `construct`.
        """
        targets, count = self.targets(labels)
        output = self.call(input_ids, self.safe(labels, count), attention_mask)
        likeliest = self.aligned(self.logits(output)).astype(ms.float32).argmax(axis=-1)
        hits = ops.logical_and(likeliest == targets, targets != self.ignored).astype(ms.float32).sum()
        return ops.stack((self.total(output, targets, count), hits))

    def targets(self, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The labels of the positions that have one, and how many count, fp32."""
        targets = labels[:, 1:] if self.shifts else labels
        return targets, (targets != self.ignored).astype(ms.float32).sum()

    def safe(self, labels: Tensor, count: Tensor) -> Tensor:
        """The labels, of a batch without any that counts others that do."""
        return ops.where(count > 0, labels, ops.zeros_like(labels))

    def aligned(self, logits: Tensor) -> Tensor:
        """The logits of the positions that have a target."""
        return logits[:, :-1] if self.shifts else logits

    def total(self, output: Any, targets: Tensor, count: Tensor) -> Tensor:
        """The summed loss of what forward returned."""
        if self.of_logits:
            return self.cross_entropy(self.aligned(self.selected(output)), targets)
        value = self.selected(output).astype(ms.float32).reshape(())
        return value * (count if self.is_mean else (count > 0).astype(ms.float32))

    def call(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None) -> Any:
        """What forward returns."""
        given = (input_ids, labels, attention_mask)
        args: tuple[Any, ...] = ()
        for source, constant in zip(self.sources, self.constants):  # noqa: B905 - ms.jit knows no strict
            args = args + ((constant if source == CONSTANT else given[source]),)
        return self.module(*args)

    def selected(self, output: Any) -> Any:
        """The part of it that is used."""
        return _at(output, *self.place)

    def logits(self, output: Any) -> Any:
        """The logits in it."""
        return _at(output, *self.logits_place)

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Summed over the targets that count, in fp32."""
        rows = logits.reshape(-1, logits.shape[-1]).astype(ms.float32)
        labels = targets.reshape(-1)
        counted = labels != self.ignored
        safe = ops.where(counted, labels, ops.zeros_like(labels))
        # The largest is subtracted first, so that nothing overflows.
        shifted = rows - ops.stop_gradient(rows).max(axis=-1).expand_dims(-1)
        picked = ops.gather_elements(shifted, 1, safe.astype(ms.int32).expand_dims(-1)).squeeze(-1)
        losses = self.log(ops.exp(shifted).sum(axis=-1)) - picked
        return ops.where(counted, losses, ops.zeros_like(losses)).sum()


def _place(select: Any) -> tuple[int, str]:
    """A position (-1 for none) and a name (empty for none): a graph knows both from the start."""
    return (select if type(select) is int else CONSTANT), (select if type(select) is str else "")


def _at(output: Any, position: int, name: str) -> Any:
    if name:
        if isinstance(output, dict):
            return output[name]
        return getattr(output, name)
    return output if position == CONSTANT else output[position]


def _binding(module: nn.Cell, config: AdapterConfig) -> tuple[tuple[int, ...], tuple[Any, ...]]:
    """For each positional parameter of forward, which input it takes (-1 for none) and its constant otherwise."""
    name = f"forward of {config.class_name}"
    parameters: Mapping[str, inspect.Parameter] = inspect.signature(module.construct).parameters
    wanted = {given: INPUTS.index(source) for source, given in config.inputs.items()}
    if both := set(wanted) & set(config.constants):
        raise UserError(f"model.adapter: {', '.join(sorted(both))} is given by both 'inputs' and 'constants'")
    known = [key for key, one in parameters.items() if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    for given in (*wanted, *config.constants):
        if given not in known:
            raise UserError(f"model.adapter.inputs: {name} has no parameter {given!r}; it has {', '.join(known)}")
    last = max(known.index(given) for given in (*wanted, *config.constants))
    sources, constants = [], []
    for place, key in enumerate(known):
        default = parameters[key].default
        is_given = key in wanted or key in config.constants
        if not is_given and default is inspect.Parameter.empty:
            raise UserError(f"model.adapter.inputs: {name} needs {key!r}; name it in 'inputs' or 'constants'")
        if place <= last:
            sources.append(wanted.get(key, CONSTANT))
            constants.append(config.constants.get(key, default) if key not in wanted else None)
    return tuple(sources), tuple(constants)
