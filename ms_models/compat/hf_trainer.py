"""`Trainer`: the training loop of transformers, with its order of events, on MindSpore.

`training_step` goes back through the operations as they ran (`tape`), so that a `compute_loss` may be any code.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Tensor, nn

from .accelerator import Accelerator
from .batch_shards import skip_first_batches
from .collators import DataCollatorWithPadding, default_data_collator
from .hf_callbacks import (
    CallbackHandler,
    DefaultFlowCallback,
    PrinterCallback,
    ProgressCallback,
    TrainerControl,
    TrainerState,
)
from .hf_results import TrainOutput
from .hf_seeds import enable_full_determinism, set_seed
from .hf_special_tokens import align_special_tokens
from .hf_trainer_checkpoints import checkpoints
from .hf_trainer_data import has_length
from .hf_trainer_evaluation import speed_metrics
from .hf_trainer_metrics import TrainerMetrics
from .hf_trainer_optimizers import TrainerOptimizers
from .hf_trainer_steps import TrainerSteps
from .hf_training_plan import TrainingPlan
from .label_smoother import LabelSmoother
from .model_losses import LOSS_MAPPING, ForCausalLMLoss
from .tape import record
from .training_arguments import TrainingArguments


class Trainer(TrainerOptimizers, TrainerMetrics, TrainerSteps):
    """Trains, evaluates and predicts with a model that returns its loss, or with a loss function.

    Raises:
        RuntimeError: neither or both of `model` and `model_init`, or an optimizer given in two ways.
        ValueError: arguments that need something that was not given.
    """

    is_deepspeed_enabled = is_fsdp_enabled = is_model_parallel = False
    """Asked by subclasses."""

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Callable[[list[Any]], Any] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        compute_metrics: Callable[..., dict[str, float]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        optimizer_cls_and_kwargs: tuple[Any, dict[str, Any]] | None = None,
        preprocess_logits_for_metrics: Callable[..., Any] | None = None,
        tokenizer: Any = None,
    ) -> None:
        self.args = TrainingArguments("tmp_trainer") if args is None else args
        self._seed()
        self.accelerator = Accelerator()
        if (model is None) == (model_init is None):
            raise RuntimeError("`Trainer` requires either a `model` or `model_init` argument, but not both")
        self.model_init = model_init
        self.model = self.model_wrapped = self.call_model_init() if model is None else model
        self._inspect_model()
        self.processing_class = tokenizer if processing_class is None else processing_class
        pads = hasattr(self.processing_class, "pad")
        self.data_collator = data_collator or (
            DataCollatorWithPadding(self.processing_class) if pads else default_data_collator
        )
        self.train_dataset, self.eval_dataset = train_dataset, eval_dataset
        self.compute_loss_func, self.compute_metrics = compute_loss_func, compute_metrics
        self.preprocess_logits_for_metrics = preprocess_logits_for_metrics
        self.optimizer, self.lr_scheduler = optimizers
        self.optimizer_cls_and_kwargs = optimizer_cls_and_kwargs
        self._check()
        printer = PrinterCallback if self.args.disable_tqdm else ProgressCallback
        self.callback_handler = CallbackHandler(
            [DefaultFlowCallback, *(callbacks or []), printer],
            self.model,
            self.processing_class,
            self.optimizer,
            self.lr_scheduler,
        )
        self.control, self.is_in_train = TrainerControl(), False
        self.state = TrainerState(
            is_local_process_zero=self.is_local_process_zero(), is_world_process_zero=self.is_world_process_zero()
        )
        if self.args.should_save:
            os.makedirs(self.args.output_dir, exist_ok=True)
        self.control = self._event("on_init_end")
        if getattr(self.model, "config", None) is not None:
            self.model.config.use_cache = self.args.use_cache

    def _seed(self) -> None:
        (enable_full_determinism if self.args.full_determinism else set_seed)(self.args.seed)

    def call_model_init(self, trial: Any = None) -> Any:
        """A new model of `model_init`."""
        assert self.model_init is not None
        return self.model_init(trial) if inspect.signature(self.model_init).parameters else self.model_init()

    def _inspect_model(self) -> None:
        """Find out which arguments are labels, and whether the loss may be divided by the number of labels."""
        parameters = inspect.signature(self.model.construct).parameters
        takes_any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self.model_accepts_loss_kwargs = getattr(self.model, "accepts_loss_kwargs", takes_any)
        positions = ("start_positions", "end_positions") if "QuestionAnswering" in type(self.model).__name__ else ()
        found = [name for name in parameters if "label" in name or name in positions]
        self.label_names = found if self.args.label_names is None else self.args.label_names
        self.can_return_loss = "return_loss" in parameters and parameters["return_loss"].default is True
        config = getattr(self.model, "config", None)
        # Its loss compares each label with the prediction from the token before, so the first one does not count.
        kind = re.search("|".join(LOSS_MAPPING), type(self.model).__name__)
        shifted = hasattr(self.model, "loss_function") and kind is not None and LOSS_MAPPING[kind[0]] is ForCausalLMLoss
        self._loss_shifts_labels = shifted and not getattr(config, "is_encoder_decoder", False)
        smooth = self.args.label_smoothing_factor != 0
        if smooth and getattr(config, "problem_type", None) == "multi_label_classification":
            raise ValueError("label_smoothing_factor does not fit multi-label classification; set it to 0")
        self.label_smoother = LabelSmoother(self.args.label_smoothing_factor) if smooth else None

    def _check(self) -> None:
        args = self.args
        if args.eval_strategy != "no" and self.eval_dataset is None:
            raise ValueError(f"eval_strategy is {args.eval_strategy.value}, but there is no eval_dataset")
        if (args.save_strategy == "best" or args.load_best_model_at_end) and args.metric_for_best_model is None:
            raise ValueError("metric_for_best_model must be given to save or load the best model")
        if self.optimizer_cls_and_kwargs is not None and self.optimizer is not None:
            raise RuntimeError("give either `optimizers` or `optimizer_cls_and_kwargs`")
        if self.model_init is not None and (self.optimizer is not None or self.lr_scheduler is not None):
            raise RuntimeError("`optimizers` belong to one model; with `model_init`, override create_optimizer")
        if self.train_dataset is not None and not has_length(self.train_dataset) and args.max_steps <= 0:
            raise ValueError("the train_dataset has no length, so max_steps has to be given")

    # -- training
    def train(
        self, resume_from_checkpoint: str | bool | None = None, trial: Any = None, ignore_keys_for_eval: Any = None
    ) -> TrainOutput:
        """Train, from the start or from a checkpoint (a directory, or True for the newest one)."""
        checkpoint = self._last_checkpoint(resume_from_checkpoint) if resume_from_checkpoint else None
        self.is_in_train = True
        if self.model_init is not None:
            self._seed()
            self.model = self.model_wrapped = self.call_model_init(trial)
            self.optimizer = self.lr_scheduler = None
        if hasattr(getattr(self.model, "config", None), "get_text_config") and self.processing_class is not None:
            align_special_tokens(self.model, self.processing_class)
        if checkpoint is not None:
            self._load_from_checkpoint(checkpoint)
        loader = self.get_train_dataloader()
        plan = TrainingPlan(self, loader)
        started, skipped = self._begin(plan, checkpoint)
        model = self._ready(plan.max_steps, checkpoint)
        self.callback_handler.train_dataloader = loader
        start_time, first_step = time.time(), self.state.global_step
        self._tr_loss, self._total_loss_scalar = np.float32(0), 0.0
        self._globalstep_last_logged = first_step
        self.optimizer.zero_grad()
        self.control = self._event("on_train_begin")
        if self.args.eval_on_start:
            self._evaluate(ignore_keys_for_eval, skip_scheduler=True)
        for epoch in range(started, plan.epochs):
            self.control = self._event("on_epoch_begin")
            resumed = checkpoint if epoch == started else None
            self._run_epoch(model, epoch, loader, plan, resumed, skipped if resumed else 0, ignore_keys_for_eval)
            if self.control.should_training_stop:
                break
        return self._finish(plan, start_time, first_step)

    def _begin(self, plan: TrainingPlan, checkpoint: str | None) -> tuple[int, int]:
        """Set the state; the epoch to begin with, and how many of its batches are behind a checkpoint."""
        self.state = TrainerState(train_batch_size=self.args.train_batch_size)
        self.state.compute_steps(self.args, plan.max_steps)
        self.state.stateful_callbacks = self._callback_states()
        held = self._load_state(checkpoint) if checkpoint is not None else None
        epochs = skipped = 0
        if held is not None:
            self.state = held
            self._load_callback_state()
            epochs, updates = divmod(held.global_step, plan.updates_per_epoch)
            skipped = 0 if self.args.ignore_data_skip else updates * self.args.gradient_accumulation_steps
        self.state.max_steps, self.state.num_train_epochs = plan.max_steps, plan.epochs
        self.state.is_local_process_zero = self.is_local_process_zero()
        self.state.is_world_process_zero = self.is_world_process_zero()
        return epochs, skipped

    def _ready(self, max_steps: int, checkpoint: str | None) -> nn.Cell:
        """Make optimizer and schedule, with their states of a checkpoint; the model as it is called."""
        if self._created_lr_scheduler:  # the length of another training
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self.create_optimizer()
        self.model_wrapped = model = self.accelerator.prepare_model(self.model_wrapped)
        self.create_scheduler(max_steps)
        if checkpoint is not None:
            self._load_optimizer_and_scheduler(checkpoint)
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        return model

    def _run_epoch(
        self,
        model: Any,
        epoch: int,
        loader: Any,
        plan: TrainingPlan,
        checkpoint: str | None,
        skipped: int,
        ignored: Any,
    ) -> None:
        """One pass over the data, or the rest of one."""
        every = self.args.gradient_accumulation_steps
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        batches = iter(skip_first_batches(loader, skipped) if skipped else loader)
        if checkpoint is not None and not skipped:
            self._load_rng_state(checkpoint)
        step, self._grad_norm, self._last_rate = skipped - 1, None, None
        for update in range(skipped // every, plan.updates_per_epoch):
            last = update == plan.updates_per_epoch - 1
            group, items = self.get_batch_samples(batches, plan.last_group(every) if last else every, self.args.device)
            self.current_gradient_accumulation_steps = len(group)
            if checkpoint is not None and skipped and update == skipped // every:
                self._load_rng_state(checkpoint)  # after the batches of before were drawn
            for number, inputs in enumerate(group):
                step += 1
                updates = (step + 1) % every == 0 or step + 1 == plan.batches_per_epoch
                self.accelerator.gradient_state.sync_gradients = updates
                if step % every == 0:
                    self.control = self._event("on_step_begin")
                local = number < len(group) - 1
                record()  # a callback or a metric may have used a gradient function
                with self.accelerator.no_sync(model) if local else contextlib.nullcontext():
                    self._add_loss(self.training_step(model, inputs, items))
                if updates:
                    self._update(model, epoch + (step + 1) / plan.batches_per_epoch)
                    self._maybe_log_save_evaluate(ignored)
                else:
                    self.control = self._event("on_substep_end")
                if self.control.should_epoch_stop or self.control.should_training_stop:
                    break
            if self.control.should_epoch_stop or self.control.should_training_stop:
                break
        if step < 0:
            self.control.should_training_stop = True
        self.control = self._event("on_epoch_end")
        self._maybe_log_save_evaluate(ignored)

    def _finish(self, plan: TrainingPlan, start_time: float, first_step: int) -> TrainOutput:
        """Log the summary, and go back to the best weights where the arguments ask for it."""
        self._total_loss_scalar += float(self._tr_loss)
        steps = self.state.global_step - first_step
        mean = self._total_loss_scalar / max(steps, 0.001)
        metrics = speed_metrics("train", start_time, plan.samples * steps / max(plan.max_steps, 1), steps)
        metrics.update({"total_flos": self.state.total_flos, "train_loss": mean})
        self.log(metrics)
        best = self.state.best_model_checkpoint
        if self.args.load_best_model_at_end and best is not None:
            self._load_best_model()
        if self.args.should_save and best is not None and self.args.save_total_limit == 1:
            for directory in checkpoints(self.args.output_dir):
                if not directory.samefile(best):
                    shutil.rmtree(directory, ignore_errors=True)
        self.control = self._event("on_train_end")
        self.is_in_train = False
        return TrainOutput(self.state.global_step, mean, metrics)

    # -- callbacks and processes
    def add_callback(self, callback: Any) -> None:
        """Add a callback, or one of a class."""
        self.callback_handler.add_callback(callback)

    def pop_callback(self, callback: Any) -> Any:
        """Take out a callback, or the first one of a class, and return it."""
        return self.callback_handler.pop_callback(callback)

    def remove_callback(self, callback: Any) -> None:
        """Take out a callback, or the first one of a class."""
        self.callback_handler.pop_callback(callback)

    def is_local_process_zero(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.args.local_process_index == 0

    def is_world_process_zero(self) -> bool:
        """Whether this is rank 0."""
        return self.args.process_index == 0

    def push_to_hub(self, *args: Any, **kwargs: Any) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Trainer.push_to_hub: call save_model and upload the directory")

    def hyperparameter_search(self, *args: Any, **kwargs: Any) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Trainer.hyperparameter_search: make a trainer for every trial")
