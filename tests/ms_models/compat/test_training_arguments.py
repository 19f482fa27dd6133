"""The training arguments of ms_models/compat: names and defaults of transformers, and what is refused."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest
import transformers

from ms_models.compat.training_arguments import TrainingArguments

OLD_NAMES = {
    "evaluation_strategy", "warmup_ratio", "group_by_length", "no_cuda", "overwrite_output_dir", "logging_dir",
    "save_safetensors",
}  # fmt: skip
TYPES_OF_THEIRS = {"hub_strategy", "debug"}
"""Where transformers has an enumeration or a list, and the trainer here only looks whether anything was said."""


def test_fields_and_defaults_are_those_of_transformers() -> None:
    theirs = {field.name: field for field in dataclasses.fields(transformers.TrainingArguments) if field.init}
    ours = {field.name: field for field in dataclasses.fields(TrainingArguments)}
    assert set(ours) - set(theirs) == OLD_NAMES
    assert set(theirs) <= set(ours)
    assert [name for name in ours if name in theirs] == list(theirs)  # also the order, for arguments by position
    for name, field in theirs.items():
        if field.default is not dataclasses.MISSING:
            assert ours[name].default == field.default, name


def both(**settings: Any) -> tuple[Any, Any]:
    return transformers.TrainingArguments("out", use_cpu=True, **settings), TrainingArguments("out", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"eval_strategy": "steps", "logging_steps": 7},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True},
        {"metric_for_best_model": "accuracy", "warmup_steps": 0.3},
        {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
        {"warmup_steps": 12, "lr_scheduler_type": "cosine", "lr_scheduler_kwargs": '{"num_cycles": 2}'},
    ],
    ids=str,
)
def test_what_follows_from_settings(settings: dict[str, Any]) -> None:
    theirs, ours = both(**settings)
    names = "eval_strategy eval_steps metric_for_best_model greater_is_better do_eval lr_scheduler_type report_to"
    names += " lr_scheduler_kwargs train_batch_size world_size process_index should_save"
    for name in names.split():
        assert getattr(ours, name) == getattr(theirs, name), name
    for steps in (0, 9, 100):
        assert ours.get_warmup_steps(steps) == theirs.get_warmup_steps(steps)
    kept = set(theirs.to_dict()) - {"use_cpu", "accelerator_config", "dataloader_pin_memory", *TYPES_OF_THEIRS}
    assert {n: ours.to_dict()[n] for n in kept} == {n: theirs.to_dict()[n] for n in kept}


@pytest.mark.parametrize(
    "settings",
    [
        {"load_best_model_at_end": True, "eval_strategy": "epoch"},
        {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3, "save_steps": 4},
        {"logging_steps": 0},
        {"eval_strategy": "sometimes"},
        {"save_steps": 2.5},
        {"warmup_steps": -1},
        {"lr_scheduler_type": "reduce_lr_on_plateau"},
        {"lr_scheduler_type": "zigzag"},
    ],
    ids=str,
)
def test_contradictions_are_errors_on_both_sides(settings: dict[str, Any]) -> None:
    for kind in (transformers.TrainingArguments, TrainingArguments):
        with pytest.raises(ValueError, match=r"."):
            kind("out", **settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"deepspeed": {"zero_optimization": {}}},
        {"fsdp": "full_shard"},
        {"push_to_hub": True},
        {"bf16_full_eval": True},
        {"neftune_noise_alpha": 5.0},
        {"debug": "underflow_overflow"},
        {"include_num_input_tokens_seen": True},
        {"train_sampling_strategy": "batch_rebalance"},
        {"accelerator_config": {"split_batches": True}},
        {"skip_memory_metrics": False},
    ],
    ids=str,
)
def test_what_would_change_the_result_is_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(NotImplementedError, match=next(iter(settings))):
        TrainingArguments("out", **settings)


def test_other_optimizers_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="adafactor is not a valid OptimizerNames"):
        TrainingArguments("out", optim="adafactor")


def test_what_cannot_change_the_result_is_accepted() -> None:
    TrainingArguments(
        "out", ddp_find_unused_parameters=False, dataloader_num_workers=4, dataloader_pin_memory=False, tf32=True,
        torch_compile=True, gradient_checkpointing=True, log_level="info", hub_token="secret", fsdp="", deepspeed=None,
        accelerator_config={"even_batches": True, "split_batches": False},
    )  # fmt: skip


def test_what_somebody_may_wait_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        TrainingArguments("out", bf16=True, report_to=["wandb"])
    assert "bf16 have no effect" in caplog.text
    assert "wandb" in caplog.text


def test_names_of_transformers_4() -> None:
    args = TrainingArguments("out", evaluation_strategy="epoch", warmup_ratio=0.1, group_by_length=True)
    assert args.eval_strategy == "epoch"
    assert args.get_warmup_steps(50) == 5
    assert args.train_sampling_strategy == "group_by_length"


def test_the_argument_parser_of_transformers_takes_them() -> None:
    line = "--output_dir d --learning_rate 0.1 --lr_scheduler_type cosine --gradient_checkpointing --report_to none"
    (args,) = transformers.HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(line.split())
    assert (args.output_dir, args.learning_rate, args.lr_scheduler_type.value) == ("d", 0.1, "cosine")
    assert args.gradient_checkpointing is True
    assert args.report_to == []
