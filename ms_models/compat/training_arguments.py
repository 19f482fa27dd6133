"""`TrainingArguments`: how a trainer trains, with the names and defaults of transformers."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from .device import accelerator_type, device
from .distributed import barrier, get_rank, get_world_size, init_process_group, is_initialized, launched_ranks
from .training_choices import IntervalStrategy, OptimizerNames, SaveStrategy, SchedulerType
from .training_refusals import check_arguments

_SWITCH = {"nargs": "?", "const": True}
"""On a command line the name alone means True."""


@dataclass
class TrainingArguments:
    """Fields that say how tensors are computed are obeyed or refused; fields about hardware have no effect.

    The last block holds names of transformers 4, which are turned into today's.

    Raises:
        NotImplementedError: a setting that would change the result and has no counterpart on MindSpore.
        ValueError: settings that contradict each other.
    """

    output_dir: str | None = None
    per_device_train_batch_size: int = 8
    num_train_epochs: float = 3.0
    max_steps: int = -1
    learning_rate: float = 5e-5
    lr_scheduler_type: SchedulerType | str = "linear"
    lr_scheduler_kwargs: dict | str | None = None
    warmup_steps: float = 0
    optim: OptimizerNames | str = "adamw_torch_fused"
    optim_args: str | None = None
    weight_decay: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    optim_target_modules: str | None = None
    gradient_accumulation_steps: int = 1
    average_tokens_across_devices: bool = True
    max_grad_norm: float = 1.0
    label_smoothing_factor: float = 0.0
    bf16: bool = False
    fp16: bool = False
    bf16_full_eval: bool = False
    fp16_full_eval: bool = False
    tf32: bool | None = None
    activation_checkpointing: bool | None = field(default=None, metadata=_SWITCH)
    activation_checkpointing_kwargs: dict | str | None = None
    gradient_checkpointing: bool | None = field(default=None, metadata=_SWITCH)
    gradient_checkpointing_kwargs: dict | str | None = None
    torch_compile: bool = False
    torch_compile_backend: str | None = None
    torch_compile_mode: str | None = None
    use_liger_kernel: bool = False
    liger_kernel_config: dict | str | None = None
    use_cache: bool = False
    neftune_noise_alpha: float | None = None
    torch_empty_cache_steps: int | None = None
    auto_find_batch_size: bool = False
    logging_strategy: IntervalStrategy | str = "steps"
    logging_steps: float = 500
    logging_first_step: bool = False
    log_on_each_node: bool = True
    logging_nan_inf_filter: bool = True
    include_num_input_tokens_seen: str | bool = "no"
    log_level: str = "passive"
    log_level_replica: str = "warning"
    disable_tqdm: bool | None = None
    report_to: None | str | list[str] = "none"  # noqa: RUF036  (the order that HfArgumentParser takes)
    run_name: str | None = None
    project: str = "huggingface"
    trackio_space_id: str | None = None
    trackio_bucket_id: str | None = None
    trackio_static_space_id: str | None = None
    eval_strategy: IntervalStrategy | str = "no"
    eval_steps: float | None = None
    eval_delay: float = 0
    per_device_eval_batch_size: int = 8
    prediction_loss_only: bool = False
    eval_on_start: bool = False
    eval_do_concat_batches: bool = True
    eval_use_gather_object: bool = False
    eval_accumulation_steps: int | None = None
    include_for_metrics: list[str] = field(default_factory=list)
    batch_eval_metrics: bool = False
    save_only_model: bool = False
    save_strategy: SaveStrategy | str = "steps"
    save_steps: float = 500
    save_on_each_node: bool = False
    save_total_limit: int | None = None
    enable_jit_checkpoint: bool = False
    push_to_hub: bool = False
    hub_token: str | None = None
    hub_private_repo: bool | None = None
    hub_model_id: str | None = None
    hub_strategy: str = "every_save"
    hub_always_push: bool = False
    hub_revision: str | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = None
    greater_is_better: bool | None = None
    ignore_data_skip: bool = False
    restore_callback_states_from_checkpoint: bool = False
    full_determinism: bool = False
    seed: int = 42
    data_seed: int | None = None
    use_cpu: bool = False
    accelerator_config: dict | str | None = None
    parallelism_config: str | None = None
    dataloader_drop_last: bool = False
    dataloader_num_workers: int = 0
    dataloader_pin_memory: bool = True
    dataloader_persistent_workers: bool = False
    dataloader_prefetch_factor: int | None = None
    dataloader_multiprocessing_context: str | None = None
    dataloader_in_order: bool = True
    remove_unused_columns: bool = True
    label_names: list[str] | None = None
    train_sampling_strategy: str = "random"
    length_column_name: str = "length"
    ddp_find_unused_parameters: bool | None = None
    ddp_bucket_cap_mb: int | None = None
    ddp_broadcast_buffers: bool | None = None
    ddp_static_graph: bool | None = None
    ddp_backend: str | None = None
    ddp_timeout: int = 1800
    fsdp: str | None = None
    fsdp_config: dict | str | None = None
    deepspeed: dict | str | None = None
    debug: str = ""
    skip_memory_metrics: bool = True
    do_train: bool = False
    do_eval: bool = False
    do_predict: bool = False
    resume_from_checkpoint: str | None = None
    local_rank: int = -1
    # names of transformers 4
    evaluation_strategy: str | None = None
    warmup_ratio: float | None = None
    group_by_length: bool = False
    no_cuda: bool = False
    overwrite_output_dir: bool = False
    logging_dir: str | None = None
    save_safetensors: bool = True

    def __post_init__(self) -> None:
        self._take_old_names()
        self.output_dir = os.path.expanduser("trainer_output" if self.output_dir is None else self.output_dir)
        for name in ("lr_scheduler_kwargs", "accelerator_config", "fsdp_config", "deepspeed"):
            given = getattr(self, name)
            if isinstance(given, str) and given.startswith("{"):
                setattr(self, name, json.loads(given))
        self.disable_tqdm = bool(self.disable_tqdm)
        self.report_to = _names(self.report_to)
        self.eval_strategy = IntervalStrategy(self.eval_strategy)
        self.logging_strategy = IntervalStrategy(self.logging_strategy)
        self.save_strategy = SaveStrategy(self.save_strategy)
        self.lr_scheduler_type = SchedulerType(self.lr_scheduler_type)
        self.optim = OptimizerNames(self.optim)
        self.do_eval = self.do_eval or self.eval_strategy != IntervalStrategy.NO
        if self.eval_strategy == IntervalStrategy.STEPS and not self.eval_steps:
            self.eval_steps = self.logging_steps
        plateau = self.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU
        if (self.load_best_model_at_end or plateau) and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss"
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith("loss")
        check_arguments(self)
        self._check_steps()
        if launched_ranks()[1] > 1 and not is_initialized():
            init_process_group()

    def _take_old_names(self) -> None:
        if self.evaluation_strategy is not None:
            self.eval_strategy = self.evaluation_strategy
        if self.warmup_ratio and not self.warmup_steps:
            self.warmup_steps = self.warmup_ratio
        if self.group_by_length:
            self.train_sampling_strategy = "group_by_length"
        if self.activation_checkpointing is None:
            self.activation_checkpointing = bool(self.gradient_checkpointing)
        if self.activation_checkpointing_kwargs is None:
            self.activation_checkpointing_kwargs = self.gradient_checkpointing_kwargs
        self.gradient_checkpointing = self.activation_checkpointing
        self.gradient_checkpointing_kwargs = self.activation_checkpointing_kwargs

    def _check_steps(self) -> None:
        """Numbers of steps above 1 are whole, below 1 shares of the training."""
        for kind in ("logging", "eval", "save"):
            steps = getattr(self, f"{kind}_steps")
            if getattr(self, f"{kind}_strategy") != "steps":
                continue
            if kind != "save" and not steps:
                raise ValueError(f"{kind} strategy steps requires non-zero --{kind}_steps")
            if steps > 1:
                if steps != int(steps):
                    raise ValueError(f"--{kind}_steps must be an integer if bigger than 1: {steps}")
                setattr(self, f"{kind}_steps", int(steps))
        if self.load_best_model_at_end and self.save_strategy != SaveStrategy.BEST:
            if self.eval_strategy != self.save_strategy:
                raise ValueError(
                    "--load_best_model_at_end requires the save and eval strategy to match, except when "
                    f'--save_strategy="best", but found {self.eval_strategy} and {self.save_strategy}'
                )
            shares = 10**6 if self.save_steps < 1 and (self.eval_steps or 1) < 1 else 1
            if self.eval_strategy == IntervalStrategy.STEPS and (self.save_steps * shares) % (
                (self.eval_steps or 1) * shares
            ):
                raise ValueError(
                    "--load_best_model_at_end requires the saving steps to be a round multiple of the evaluation "
                    f"steps, but found {self.save_steps} and {self.eval_steps}"
                )
        if self.lr_scheduler_type == SchedulerType.REDUCE_ON_PLATEAU and self.eval_strategy == IntervalStrategy.NO:
            raise ValueError("lr_scheduler_type reduce_lr_on_plateau requires an eval strategy")
        if self.warmup_steps < 0:
            raise ValueError(f"Got warmup_steps = {self.warmup_steps}, Expected value warmup_steps >= 0")

    # -- processes: one for each device, started by msrun
    @property
    def train_batch_size(self) -> int:
        """Samples of a batch of this process."""
        return self.per_device_train_batch_size

    @property
    def eval_batch_size(self) -> int:
        """Samples of an evaluation batch of this process."""
        return self.per_device_eval_batch_size

    @property
    def device(self) -> device:
        """Where this process computes."""
        return device(accelerator_type())

    @property
    def n_gpu(self) -> int:
        """Accelerators of this process, at most one."""
        return int(accelerator_type() != "cpu")

    @property
    def world_size(self) -> int:
        """Number of processes."""
        return get_world_size() if is_initialized() else 1

    @property
    def process_index(self) -> int:
        """Number of this process."""
        return get_rank() if is_initialized() else 0

    @property
    def local_process_index(self) -> int:
        """Number of this process; `msrun` numbers them over all machines."""
        return self.process_index

    @property
    def should_log(self) -> bool:
        """Whether this process prints logs."""
        return self.process_index == 0

    @property
    def should_save(self) -> bool:
        """Whether this process writes files."""
        return self.process_index == 0

    @contextlib.contextmanager
    def main_process_first(self, local: bool = True, desc: str = "work") -> Iterator[None]:
        """Inside, the other processes wait until the first one is through."""
        if self.world_size > 1 and self.process_index != 0:
            barrier()
        try:
            yield
        finally:
            if self.world_size > 1 and self.process_index == 0:
                barrier()

    # -- as data
    def get_warmup_steps(self, num_training_steps: int) -> int:
        """Updates of the warmup; `warmup_steps` below 1 is a share of the training."""
        given = self.warmup_steps
        return int(given) if given >= 1 else math.ceil(num_training_steps * given)

    def to_dict(self) -> dict[str, Any]:
        """Every field, enumerations as their words, tokens left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        plain = {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}
        return {name: f"<{name.upper()}>" if name.endswith("_token") else value for name, value in plain.items()}

    def to_json_string(self) -> str:
        """`to_dict` as JSON."""
        return json.dumps(self.to_dict(), indent=2)

    def to_sanitized_dict(self) -> dict[str, Any]:
        """`to_dict` with values that are numbers, words or text of them."""
        return {name: v if isinstance(v, bool | int | float | str) else str(v) for name, v in self.to_dict().items()}


def _names(given: str | list[str] | None) -> list[str]:
    """Integrations to report to; none are by default."""
    named = [given] if isinstance(given, str) else list(given or [])
    return [] if named in (["none"], ["all"]) else named
