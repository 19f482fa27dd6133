"""The part of a trainer that turns batches into updates: losses, gradients, clipping, and what follows an update."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops

from .causal_lm_names import CAUSAL_LM_CLASSES
from .distributed import default_group
from .gradients import total_norm
from .hf_trainer_checkpoints import TrainerCheckpoints
from .hf_trainer_evaluation import switch_mode
from .hf_trainer_optimizers import named_parameters
from .label_smoother import LabelSmoother
from .object_collectives import objects_of_ranks
from .schedulers_plateau import ReduceLROnPlateau


class TrainerSteps(TrainerCheckpoints):
    """Loss, training step and update; a subclass of the trainer may override each method."""

    loss_is_scaled_for_ga: bool | None = None
    """Set by a subclass whose `compute_loss` knows: True if its loss is already a share of the whole update."""

    model_accepts_loss_kwargs: bool
    compute_loss_func: Callable[..., Tensor] | None
    label_smoother: LabelSmoother | None
    current_gradient_accumulation_steps: int
    _loss_shifts_labels: bool
    _tr_loss: np.float32
    _total_loss_scalar: float
    _globalstep_last_logged: int
    _grad_norm: Tensor | None
    _last_rate: float | None

    def training_step(self, model: nn.Cell, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Add the gradients of a batch to `.grad`; its share of the loss of the update."""
        switch_mode(model, True)
        inputs = self._prepare_inputs(inputs)
        with self.compute_loss_context_manager():
            loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
        scaled = self.loss_is_scaled_for_ga
        if scaled is None:
            counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
            scaled = counted or self.compute_loss_func is not None
        if not scaled:
            loss = loss / self.current_gradient_accumulation_steps
        self.accelerator.backward(loss)
        return ops.stop_gradient(loss)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch: the model's own, `compute_loss_func`'s, or the smoothed one of its logits.

        Raises:
            ValueError: the model returns no loss.
        """
        own = self.label_smoother is not None or self.compute_loss_func is not None
        labels = inputs.pop("labels") if own and "labels" in inputs else None
        if self.model_accepts_loss_kwargs and num_items_in_batch is not None:
            inputs = {**inputs, "num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs)
        if self.compute_loss_func is not None:
            loss = self.compute_loss_func(outputs, labels, num_items_in_batch=num_items_in_batch)
        elif labels is not None:
            assert self.label_smoother is not None
            shifted = type(self.accelerator.unwrap_model(model)).__name__ in CAUSAL_LM_CLASSES
            loss = self.label_smoother(outputs, labels, shifted, num_items_in_batch)
        elif isinstance(outputs, dict):
            if "loss" not in outputs:
                raise ValueError(
                    f"the model returned no loss for {', '.join(inputs)}, only {', '.join(map(str, outputs))}"
                )
            loss = outputs["loss"]
        else:
            loss = outputs[0]
        counted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if self.args.average_tokens_across_devices and counted and num_items_in_batch is not None:
            # The count is that of all ranks, and gradients are averaged over them afterwards.
            loss = loss * self.args.world_size if self.args.world_size > 1 else loss
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The batches of an update, and the number of their labels where the loss is to be divided by it."""
        batches = [batch for _, batch in zip(range(num_batches), epoch_iterator, strict=False)]
        return batches, self._get_num_items_in_batch(batches, device)

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        wanted = self.model_accepts_loss_kwargs or self.compute_loss_func is not None
        if not batch_samples or "labels" not in batch_samples[0] or not wanted:
            return None
        total = 0
        for batch in batch_samples:
            labels = batch.get("shift_labels", batch["labels"])
            if not isinstance(labels, Tensor):  # boxes and classes of objects are not counted
                return None
            if "shift_labels" not in batch and self._loss_shifts_labels:
                labels = labels[..., 1:]
            total = total + (labels != -100).sum()
        if self.args.average_tokens_across_devices and self.args.world_size > 1:
            total = Tensor(sum(objects_of_ranks(int(total), default_group())))
        return total

    # -- updates
    def _add_loss(self, loss: Tensor) -> None:
        """Add the loss of a batch to the sum that is logged; a loss that is no number counts as their mean so far."""
        value = np.float32(loss.item())
        if self.args.logging_nan_inf_filter and not np.isfinite(value):
            value = np.float32(self._tr_loss / (1 + self.state.global_step - self._globalstep_last_logged))
        self._tr_loss = np.float32(self._tr_loss + value)

    def _update(self, model: nn.Cell, epoch: float) -> None:
        """Clip the gradients and take a step of optimizer and schedule."""
        parameters = [parameter for _, parameter in named_parameters(self.model)]
        if self.args.max_grad_norm > 0:
            self._grad_norm = self.accelerator.clip_grad_norm_(parameters, self.args.max_grad_norm)
        else:
            self._grad_norm = total_norm([p.grad for p in parameters if getattr(p, "grad", None) is not None])
        self.control = self._event("on_pre_optimizer_step")
        self.optimizer.step()
        self.control = self._event("on_optimizer_step")
        self._last_rate = self._get_learning_rate()
        if not isinstance(self.lr_scheduler, ReduceLROnPlateau):
            self.lr_scheduler.step()
        for parameter in parameters:
            parameter.grad = None
        self.state.global_step += 1
        self.state.epoch = epoch
        self.control = self._event("on_step_end")

    def _maybe_log_save_evaluate(self, ignore_keys: list[str] | None) -> None:
        """Do what the switches say."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            losses = [float(self._tr_loss)]
            if self.args.world_size > 1:
                losses = objects_of_ranks(losses[0], default_group())
            total, self._tr_loss = float(np.float32(np.mean(losses))), np.float32(0)
            logs = {"loss": total / (self.state.global_step - self._globalstep_last_logged)}
            if self._grad_norm is not None:
                logs["grad_norm"] = float(self._grad_norm.item())
            logs["learning_rate"] = self._get_learning_rate() if self._last_rate is None else self._last_rate
            self._total_loss_scalar += total
            self._globalstep_last_logged = self.state.global_step
            self.log(logs, None)
        if self.control.should_evaluate:
            best = self._determine_best_metric(self._evaluate(ignore_keys))
            if self.args.save_strategy == "best":
                self.control.should_save = best
        if self.control.should_save:
            self._save_checkpoint()
            self.control = self._event("on_save")

    def _determine_best_metric(self, metrics: dict[str, float]) -> bool:
        """Whether an evaluation is the best so far; remembered in the state."""
        if self.args.metric_for_best_model is None:
            return False
        value, larger = self._watched(metrics), self.args.greater_is_better
        if self.state.best_metric is None:
            self.state.best_metric = -math.inf if larger else math.inf
        if not (value > self.state.best_metric if larger else value < self.state.best_metric):
            return False
        self.state.best_metric = value
        if self.args.save_strategy != "no":
            self.state.best_global_step = self.state.global_step
        return True

    def _get_learning_rate(self) -> float:
        raise NotImplementedError
