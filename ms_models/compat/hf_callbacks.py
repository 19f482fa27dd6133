"""What watches and steers a trainer: its state, its switches, and the callbacks that are called between them."""

from __future__ import annotations

import dataclasses
import json
import logging
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class ExportableState:
    """Something whose state goes into a checkpoint as `{"args": ..., "attributes": ...}`."""

    def state(self) -> dict[str, Any]:
        """Arguments and attributes that make it anew."""
        raise NotImplementedError(f"{type(self).__name__} must define `state`")

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Any:
        """Make one from a state."""
        made = cls(**state["args"])
        for name, value in state["attributes"].items():
            setattr(made, name, value)
        return made


@dataclass
class TrainerState:
    """How far a training is; kept in every checkpoint as `trainer_state.json`. A step is an update."""

    epoch: float = 0
    global_step: int = 0
    max_steps: int = 0
    logging_steps: float = 500
    eval_steps: float = 500
    save_steps: float = 500
    train_batch_size: int | None = None
    num_train_epochs: int = 0
    num_input_tokens_seen: int = 0
    total_flos: float = 0
    log_history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_metric: float | None = None
    best_global_step: int | None = None
    best_model_checkpoint: str | None = None
    is_local_process_zero: bool = True
    is_world_process_zero: bool = True
    is_hyper_param_search: bool = False
    trial_name: str | None = None
    trial_params: dict[str, Any] | None = None
    stateful_callbacks: dict[str, Any] = dataclasses.field(default_factory=dict)

    def save_to_json(self, json_path: str | Path) -> None:
        """Write the state."""
        text = json.dumps(dataclasses.asdict(self), indent=2, sort_keys=True) + "\n"
        Path(json_path).write_text(text, encoding="utf-8")

    @classmethod
    def load_from_json(cls, json_path: str | Path) -> TrainerState:
        """Read a state, also one that transformers wrote."""
        return cls(**json.loads(Path(json_path).read_text(encoding="utf-8")))

    def compute_steps(self, args: Any, max_steps: int) -> None:
        """Take over the intervals; those below 1 are shares of the training."""
        for name in ("logging_steps", "eval_steps", "save_steps"):
            steps = getattr(args, name)
            if steps is not None:
                setattr(self, name, math.ceil(max_steps * steps) if steps < 1 else steps)


@dataclass
class TrainerControl(ExportableState):
    """Switches that callbacks set. The training loop resets those of a step or an epoch when the next one begins."""

    should_training_stop: bool = False
    should_epoch_stop: bool = False
    should_save: bool = False
    should_evaluate: bool = False
    should_log: bool = False

    def state(self) -> dict[str, Any]:
        return {"args": dataclasses.asdict(self), "attributes": {}}


class TrainerCallback:
    """Base class: every event may be overridden; one that returns a `TrainerControl` replaces the trainer's.

    Keyword arguments are `model`, `processing_class`, `optimizer`, `lr_scheduler`, `train_dataloader` and
    `eval_dataloader`, and `metrics` or `logs` where there are some.
    """


def _nothing(self: Any, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
    """Called at this event; does nothing."""


EVENTS = (
    "on_init_end", "on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end", "on_step_begin",
    "on_pre_optimizer_step", "on_optimizer_step", "on_substep_end", "on_step_end", "on_evaluate", "on_predict",
    "on_save", "on_log", "on_prediction_step", "on_push_begin",
)  # fmt: skip
for _event in EVENTS:
    setattr(TrainerCallback, _event, _nothing)

_RESET = {
    "on_train_begin": ("should_training_stop",),
    "on_epoch_begin": ("should_epoch_stop",),
    "on_step_begin": ("should_log", "should_evaluate", "should_save"),
    "on_evaluate": ("should_evaluate",),
    "on_save": ("should_save",),
    "on_log": ("should_log",),
}
"""Switches that go off before the callbacks of an event are called."""


class CallbackHandler:
    """Calls the callbacks in their order."""

    def __init__(self, callbacks: list[Any], model: Any, processing_class: Any, optimizer: Any, lr_scheduler: Any):
        self.callbacks: list[Any] = []
        for callback in callbacks:
            self.add_callback(callback)
        self.model, self.processing_class = model, processing_class
        self.optimizer, self.lr_scheduler = optimizer, lr_scheduler
        self.train_dataloader: Any = None
        self.eval_dataloader: Any = None

    def add_callback(self, callback: Any) -> None:
        """Add a callback, or one of a class."""
        made = callback() if isinstance(callback, type) else callback
        if type(made) in map(type, self.callbacks):
            log.warning("there is already a %s among the callbacks of this trainer", type(made).__name__)
        self.callbacks.append(made)

    def pop_callback(self, callback: Any) -> Any:
        """Take out a callback, or the first one of a class, and return it; None if there is none."""
        for held in self.callbacks:
            if isinstance(held, callback) if isinstance(callback, type) else held == callback:
                self.callbacks.remove(held)
                return held
        return None

    def call_event(self, event: str, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> Any:
        """Tell every callback; the control that is in force afterwards."""
        for switch in _RESET.get(event, ()):
            setattr(control, switch, False)
        for callback in self.callbacks:
            result = getattr(callback, event)(
                args,
                state,
                control,
                model=self.model,
                processing_class=self.processing_class,
                optimizer=self.optimizer,
                lr_scheduler=self.lr_scheduler,
                train_dataloader=self.train_dataloader,
                eval_dataloader=self.eval_dataloader,
                **kwargs,
            )
            control = control if result is None else result
        return control


class DefaultFlowCallback(TrainerCallback):
    """Logs, evaluates, saves and stops when the arguments say so."""

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        step = state.global_step
        evaluates = args.eval_strategy == "steps" and args.eval_delay <= step
        if (step == 1 and args.logging_first_step) or (
            args.logging_strategy == "steps" and step % state.logging_steps == 0
        ):
            control.should_log = True
        if evaluates and step % state.eval_steps == 0:
            control.should_evaluate = True
        if args.save_strategy == "steps" and state.save_steps > 0 and step % state.save_steps == 0:
            control.should_save = True
        if step >= state.max_steps:
            control.should_training_stop = True
            control.should_evaluate = control.should_evaluate or evaluates
            control.should_save = control.should_save or args.save_strategy == "steps"
        return control

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> TrainerControl:
        if args.logging_strategy == "epoch":
            control.should_log = True
        if args.eval_strategy == "epoch" and args.eval_delay <= state.epoch:
            control.should_evaluate = True
        if args.save_strategy == "epoch":
            control.should_save = True
        return control


class PrinterCallback(TrainerCallback):
    """Prints the logs."""

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if state.is_local_process_zero and logs is not None:
            shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in logs.items() if k != "total_flos"}
            print(shown, flush=True)


class ProgressCallback(PrinterCallback):
    """Prints the logs, without a bar; `max_str_len` is not needed for that."""

    def __init__(self, max_str_len: int = 100) -> None:
        self.max_str_len = max_str_len


class EarlyStoppingCallback(TrainerCallback, ExportableState):
    """Stops when `metric_for_best_model` was not better, by more than the threshold, in `patience` evaluations."""

    def __init__(self, early_stopping_patience: int = 1, early_stopping_threshold: float | None = 0.0) -> None:
        self.early_stopping_patience = early_stopping_patience
        self.early_stopping_threshold = early_stopping_threshold
        self.early_stopping_patience_counter = 0

    def check_metric_value(self, args: Any, state: TrainerState, control: TrainerControl, metric_value: float) -> None:
        """Count an evaluation without progress, or begin again."""
        best = state.best_metric
        better = best is None or (metric_value > best if args.greater_is_better else metric_value < best)
        if better and (best is None or abs(metric_value - best) > (self.early_stopping_threshold or 0.0)):
            self.early_stopping_patience_counter = 0
        else:
            self.early_stopping_patience_counter += 1

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.metric_for_best_model is None or args.eval_strategy == "no":
            raise AssertionError("EarlyStoppingCallback requires metric_for_best_model and an eval strategy")

    def on_evaluate(
        self, args: Any, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
    ) -> None:
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        if metrics.get(name) is None:
            log.warning("early stopping did not find %s in the metrics and is off", name)
            return
        self.check_metric_value(args, state, control, metrics[name])
        if self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True

    def state(self) -> dict[str, Any]:
        return {
            "args": {
                "early_stopping_patience": self.early_stopping_patience,
                "early_stopping_threshold": self.early_stopping_threshold,
            },
            "attributes": {"early_stopping_patience_counter": self.early_stopping_patience_counter},
        }
