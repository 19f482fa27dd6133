"""The part of a trainer that makes its optimizer and schedule."""

from __future__ import annotations

import re
from typing import Any

from mindspore import Parameter, nn

from .hf_schedules import get_scheduler
from .normalization import LayerNorm
from .optim import SGD, AdamW, Optimizer
from .optim_squares import Adagrad, RMSprop
from .training_choices import OptimizerNames

_NOT_DECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")
_KINDS: dict[str, tuple[type[Optimizer], tuple[str, ...], str]] = {
    OptimizerNames.SGD.value: (SGD, ("momentum", "dampening", "weight_decay"), "nesterov"),
    OptimizerNames.ADAGRAD.value: (Adagrad, ("lr_decay", "weight_decay", "eps"), ""),
    OptimizerNames.RMSPROP.value: (RMSprop, ("momentum", "alpha", "eps", "weight_decay"), "centered"),
}
"""Class, and the numbers and the switch that `optim_args` may set."""


class TrainerOptimizers:
    """Makes what was not given to the trainer; a subclass of the trainer may override each method."""

    args: Any
    model: Any
    optimizer: Any
    lr_scheduler: Any
    optimizer_cls_and_kwargs: Any
    _created_lr_scheduler = False

    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        """Make the optimizer and the schedule."""
        self.create_optimizer()
        self.create_scheduler(num_training_steps)

    def create_optimizer(self, model: Any = None) -> Any:
        """The optimizer: one group of parameters with weight decay, one without."""
        model = self.model if model is None else model
        if self.optimizer is None:
            decayed = set(self.get_decay_parameter_names(model))
            groups: list[dict[str, Any]] = [
                {"params": [], "weight_decay": self.args.weight_decay},
                {"params": [], "weight_decay": 0.0},
            ]
            for name, parameter in named_parameters(model):
                if parameter.requires_grad:
                    groups[name not in decayed]["params"].append(parameter)
            kind, settings = self.optimizer_cls_and_kwargs or self.get_optimizer_cls_and_kwargs(self.args, model)
            self.optimizer = kind(groups, **settings)
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """The schedule, for a training of so many updates."""
        if self.lr_scheduler is None:
            self.lr_scheduler = get_scheduler(
                self.args.lr_scheduler_type,
                self.optimizer if optimizer is None else optimizer,
                num_warmup_steps=self.args.get_warmup_steps(num_training_steps),
                num_training_steps=num_training_steps,
                scheduler_specific_kwargs=self.args.lr_scheduler_kwargs,
            )
            self._created_lr_scheduler = True
        return self.lr_scheduler

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, dict[str, Any]]:
        """Class and settings of the optimizer that the arguments name."""
        settings: dict[str, Any] = {"lr": args.learning_rate}
        name = OptimizerNames(args.optim).value
        if name not in _KINDS:
            return AdamW, {**settings, "betas": (args.adam_beta1, args.adam_beta2), "eps": args.adam_epsilon}
        kind, numbers, switch = _KINDS[name]
        given = dict(item.split("=") for item in (args.optim_args or "").replace(" ", "").split(",") if item)
        settings.update({key: float(given[key]) for key in numbers if key in given})
        if switch and switch in given:
            settings[switch] = given[switch].lower() in ("true", "1", "yes")
        return kind, settings

    def get_decay_parameter_names(self, model: Any) -> list[str]:
        """Parameters with weight decay: all but biases and those of normalisation layers."""
        norms = {
            f"{path}.{name}" if path else name
            for path, cell in model.cells_and_names()
            if isinstance(cell, LayerNorm | nn.LayerNorm)
            for name in cell._params
        }
        names = [name for name, _ in named_parameters(model, once=False)]
        return [name for name in names if name not in norms and not _NOT_DECAYED.search(name.lower())]

    def _get_learning_rate(self) -> float:
        """The rate that the schedule set last."""
        schedule = self.lr_scheduler
        rate = schedule.get_last_lr()[0] if hasattr(schedule, "_last_lr") else self.optimizer.param_groups[0]["lr"]
        return float(rate)

    def get_learning_rates(self) -> list[float]:
        """The rate of each group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_num_trainable_parameters(self) -> int:
        """Numbers that are trained."""
        return sum(p.size for _, p in named_parameters(self.model) if p.requires_grad)


def named_parameters(model: nn.Cell, once: bool = True) -> list[tuple[str, Parameter]]:
    """Dotted names and parameters in the order of their registration; shared ones come under their first name."""
    found, seen = [], set()
    for path, cell in model.cells_and_names():
        for name, parameter in cell._params.items():
            if parameter is None or (once and id(parameter) in seen):
                continue
            seen.add(id(parameter))
            found.append((f"{path}.{name}" if path else name, parameter))
    return found
