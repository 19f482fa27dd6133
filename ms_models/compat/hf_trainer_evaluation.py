"""The part of a trainer that evaluates and predicts."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, _no_grad, ops

from .hf_results import Batches, EvalLoopOutput, EvalPrediction, PredictionOutput, batch_size_of, plain_numbers
from .hf_trainer_data import TrainerData, has_length
from .schedulers_plateau import ReduceLROnPlateau


class TrainerEvaluation(TrainerData):
    """Losses, predictions and metrics of a data set; a subclass of the trainer may override each method."""

    state: Any
    control: Any
    optimizer: Any
    lr_scheduler: Any
    callback_handler: Any
    compute_metrics: Callable[..., dict[str, float]] | None
    preprocess_logits_for_metrics: Callable[..., Any] | None
    can_return_loss: bool

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Loss and metrics of the evaluation data, their names behind the prefix; several data sets by their names."""
        given = eval_dataset is not None
        dataset = eval_dataset if given else self.eval_dataset
        if isinstance(dataset, dict):
            metrics: dict[str, float] = {}
            for name, part in dataset.items():
                prefix = f"{metric_key_prefix}_{name}"
                metrics.update(self.evaluate(part if given else name, ignore_keys, prefix))
            return metrics
        loader, start = self.get_eval_dataloader(dataset), time.time()
        loss_only = True if self.compute_metrics is None else None
        output = self.evaluation_loop(loader, "Evaluation", loss_only, ignore_keys, metric_key_prefix)
        output.metrics.update(self._speed(metric_key_prefix, start, output.num_samples))
        self.log(output.metrics)
        self.control = self._event("on_evaluate", metrics=output.metrics)
        return output.metrics

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Predictions of a data set, with labels and metrics where it has labels."""
        loader, start = self.get_test_dataloader(test_dataset), time.time()
        output = self.evaluation_loop(loader, "Prediction", None, ignore_keys, metric_key_prefix)
        output.metrics.update(self._speed(metric_key_prefix, start, output.num_samples))
        self.control = self._event("on_predict", metrics=output.metrics)
        return PredictionOutput(output.predictions, output.label_ids, output.metrics)

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Go through a loader; the losses count by samples, predictions and labels are padded to one width."""
        args = self.args
        loss_only = args.prediction_loss_only if prediction_loss_only is None else prediction_loss_only
        switch_mode(self.model, False)
        self.callback_handler.eval_dataloader = dataloader
        batch_size, seen = args.eval_batch_size, 0
        losses, (predictions, labels, inputs) = Batches(), (Batches(args.eval_do_concat_batches) for _ in range(3))
        for batch in dataloader:
            found = batch_size_of(batch)
            seen += found or 0
            loss, logits, truth = self.prediction_step(self.model, batch, loss_only, ignore_keys)
            if loss is not None:
                losses.add(self.accelerator.gather_for_metrics(ops.tile(loss.reshape((1,)), (batch_size or found,))))
            if "inputs" in args.include_for_metrics:
                inputs.add(self._over_ranks(batch[getattr(self.model, "main_input_name", "input_ids")]))
            if truth is not None:
                truth = self.accelerator.pad_across_processes(truth, dim=1, pad_index=-100)
            if logits is not None:
                logits = self.accelerator.pad_across_processes(logits, dim=1, pad_index=-100)
                if self.preprocess_logits_for_metrics is not None:
                    logits = self.preprocess_logits_for_metrics(logits, truth)
                predictions.add(self.accelerator.gather_for_metrics(logits))
            if truth is not None:
                labels.add(self.accelerator.gather_for_metrics(truth))
            self.control = self._event("on_prediction_step")
        dataset: Any = getattr(dataloader, "dataset", None)
        samples = len(dataset) if has_length(dataset) else seen
        all_losses, all_predictions, all_labels = losses.arrays(), predictions.arrays(), labels.arrays()
        metrics: dict[str, Any] = {}
        if self.compute_metrics is not None and all_predictions is not None and all_labels is not None:
            more = {"inputs": inputs.arrays(), "losses": all_losses if "loss" in args.include_for_metrics else None}
            metrics = plain_numbers(self.compute_metrics(EvalPrediction(all_predictions, all_labels, **more)))
        if all_losses is not None:
            finite = np.isfinite(all_losses)
            kept = all_losses[finite] if args.logging_nan_inf_filter and finite.any() else all_losses
            metrics[f"{metric_key_prefix}_loss"] = kept.mean().item()
        for key in [key for key in metrics if not key.startswith(f"{metric_key_prefix}_")]:
            metrics[f"{metric_key_prefix}_{key}"] = metrics.pop(key)
        return EvalLoopOutput(all_predictions, all_labels, metrics, samples)

    def prediction_step(
        self, model: Any, inputs: dict[str, Any], prediction_loss_only: bool, ignore_keys: list[str] | None = None
    ) -> tuple[Tensor | None, Any, Any]:
        """Loss, logits and labels of a batch; None for what there is not, or is not wanted."""
        names = self.label_names
        has_labels = bool(names) and all(inputs.get(name) is not None for name in names)
        returns_loss = inputs.get("return_loss")
        with_loss = has_labels or (not names and (self.can_return_loss if returns_loss is None else returns_loss))
        inputs = self._prepare_inputs(inputs)
        if ignore_keys is None:
            config = getattr(self.model, "config", None)
            ignore_keys = [] if config is None else getattr(config, "keys_to_ignore_at_inference", ["cache"])
        labels: Any = tuple(inputs.get(name) for name in names) if with_loss else None
        labels = labels[0] if labels is not None and len(labels) == 1 else labels
        loss = None
        with _no_grad():
            if with_loss:
                items = self._get_num_items_in_batch([inputs], self.args.device)
                with self.compute_loss_context_manager():
                    loss, outputs = self.compute_loss(model, inputs, return_outputs=True, num_items_in_batch=items)
                loss = loss.mean()
            else:
                with self.compute_loss_context_manager():
                    outputs = model(**inputs)
        if prediction_loss_only:
            return loss, None, None
        if isinstance(outputs, dict):
            left_out = [*ignore_keys, "loss"] if with_loss else ignore_keys
            logits: Any = tuple(value for key, value in outputs.items() if key not in left_out)
        else:
            logits = outputs[1:] if with_loss else outputs
        return loss, logits[0] if len(logits) == 1 else logits, labels

    def compute_loss_context_manager(self) -> contextlib.AbstractContextManager[Any]:
        """What `compute_loss` runs in; a subclass may enter contexts of its own."""
        return contextlib.nullcontext()

    def _evaluate(self, ignore_keys: list[str] | None = None, skip_scheduler: bool = False) -> dict[str, float]:
        """Evaluate during training; `ReduceLROnPlateau` learns the metric."""
        metrics = self.evaluate(ignore_keys=ignore_keys)
        if isinstance(self.lr_scheduler, ReduceLROnPlateau) and not skip_scheduler:
            self.lr_scheduler.step(self._watched(metrics))
        return metrics

    def _watched(self, metrics: dict[str, float]) -> float:
        """`metric_for_best_model` among the metrics of an evaluation.

        Raises:
            KeyError: it is not there.
        """
        name = f"eval_{self.args.metric_for_best_model.removeprefix('eval_')}"
        if name not in metrics:
            raise KeyError(f"metric_for_best_model is {name}, but the metrics are {', '.join(metrics)}")
        return metrics[name]

    def _over_ranks(self, tensors: Any) -> Any:
        filled = self.accelerator.pad_across_processes(tensors, dim=1, pad_index=-100)
        return self.accelerator.gather_for_metrics(filled)

    def _speed(self, prefix: str, start: float, samples: int) -> dict[str, float]:
        steps = math.ceil(samples / (self.args.eval_batch_size * self.args.world_size))
        return speed_metrics(prefix, start, samples, steps)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Keep logs in the history, with epoch and step, and tell the callbacks."""
        logs["epoch"] = self.state.epoch
        self.state.log_history.append({**logs, "step": self.state.global_step})
        self.control = self._event("on_log", logs=logs)

    def _event(self, name: str, **more: Any) -> Any:
        return self.callback_handler.call_event(name, self.args, self.state, self.control, **more)

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The loss of a batch, defined by the trainer."""
        raise NotImplementedError

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        raise NotImplementedError


def switch_mode(model: Any, training: bool) -> None:
    """Training or evaluation mode; a module may have a `train` of its own."""
    if hasattr(model, "train"):
        model.train(training)
    else:
        model.set_train(training)


def speed_metrics(
    split: str, start_time: float, num_samples: float | None = None, num_steps: float | None = None
) -> dict[str, float]:
    """Seconds since the start, and samples and steps for each of them."""
    seconds = time.time() - start_time
    result = {f"{split}_runtime": round(seconds, 4)}
    for name, count in (("samples", num_samples), ("steps", num_steps)):
        if count is not None and seconds:
            result[f"{split}_{name}_per_second"] = round(count / seconds, 3)
    return result
