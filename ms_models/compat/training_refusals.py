"""Training arguments that a trainer on MindSpore cannot honour: an error when they would change what is computed."""

from __future__ import annotations

import logging
from typing import Any

_LAYOUT = "a process trains the whole model here; give the layout to `msmigrate train` instead"
_NO_HUB = "nothing is sent to the Hub; call save_model and upload the directory"
_EVERY_BATCH = "metrics are computed once, over the whole data set"
_REFUSED: dict[str, tuple[Any, str]] = {
    "fsdp": (None, _LAYOUT),
    "fsdp_config": (None, _LAYOUT),
    "deepspeed": (None, _LAYOUT),
    "parallelism_config": (None, _LAYOUT),
    "push_to_hub": (False, _NO_HUB),
    "enable_jit_checkpoint": (False, "checkpoints are written between updates only; use save_steps"),
    "fp16_full_eval": (False, "evaluate in the data type of the model, or call model.half() before"),
    "bf16_full_eval": (False, "evaluate in the data type of the model, or call model.bfloat16() before"),
    "neftune_noise_alpha": (None, "add the noise in the forward of the embedding"),
    "optim_target_modules": (None, "optimizers for some modules only are not here; give `optimizers` to the trainer"),
    "batch_eval_metrics": (False, _EVERY_BATCH),
    "eval_use_gather_object": (False, "predictions must be tensors"),
    "debug": ("", "look for overflows with a TrainerCallback"),
    "skip_memory_metrics": (True, "memory is not measured"),
    "include_num_input_tokens_seen": ("no", "count them in a TrainerCallback"),
}  # fmt: skip
_EMPTY: tuple[Any, ...] = (None, False, "", "no", [], {})
_ACCELERATOR: dict[str, Any] = {
    "split_batches": False,
    "dispatch_batches": None,
    "even_batches": True,
    "use_seedable_sampler": True,
    "non_blocking": False,
    "gradient_accumulation_kwargs": None,
    "use_configured_state": False,
}
"""Settings of `accelerator_config` and the one value that each may have."""


def check_arguments(args: Any) -> None:
    """Refuse what would change the result, and say what has no effect although somebody may wait for it.

    Raises:
        NotImplementedError: names the argument and what to do instead.
    """
    for name, (default, advice) in _REFUSED.items():
        given = getattr(args, name)
        if given != default and not (default in _EMPTY and given in _EMPTY):
            raise NotImplementedError(f"TrainingArguments({name}={given!r}) has no counterpart on MindSpore: {advice}")
    if args.train_sampling_strategy not in ("random", "sequential", "group_by_length"):
        raise NotImplementedError(
            f"TrainingArguments(train_sampling_strategy={args.train_sampling_strategy!r}) has no counterpart on "
            "MindSpore: override get_train_dataloader"
        )
    for name, value in _settings(args.accelerator_config).items():
        if name not in _ACCELERATOR or bool(value) != bool(_ACCELERATOR[name]):
            raise NotImplementedError(f"accelerator_config has {name}={value!r}, which has no counterpart on MindSpore")
    log = logging.getLogger(__name__)
    if args.fp16 or args.bf16:
        log.warning("fp16 and bf16 have no effect: MindSpore has no autocast, the model computes in its own data type")
    if args.report_to:
        log.warning("report_to=%s has no effect: logs are printed and kept in trainer_state.json", args.report_to)


def _settings(config: Any) -> dict[str, Any]:
    if config is None:
        return {}
    if not isinstance(config, dict):
        raise NotImplementedError("accelerator_config must be a dictionary")
    return config
