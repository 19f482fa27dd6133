"""The part of a trainer that writes checkpoints and continues from them, also from those of transformers.

A checkpoint is a directory `checkpoint-<step>`: the model as safetensors (with its configuration and tokenizer where
there are some), `optimizer.pt`, `scheduler.pt`, `trainer_state.json`, and the state of the random numbers.
"""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from .hf_callbacks import ExportableState, TrainerState
from .hf_trainer_evaluation import TrainerEvaluation
from .pretrained_files import read_weights, weight_files
from .random import default_generator, manual_seed
from .safetensors_files import save_safetensors
from .serialization import load, save

log = logging.getLogger(__name__)
STATE, OPTIMIZER, SCHEDULER = "trainer_state.json", "optimizer.pt", "scheduler.pt"


class TrainerCheckpoints(TrainerEvaluation):
    """Saving and loading; only rank 0 writes, but for the random numbers of every rank."""

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the model, and the tokenizer where the trainer has one."""
        self._save(output_dir)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        if not self.args.should_save:
            return
        directory = Path(self.args.output_dir if output_dir is None else output_dir)
        directory.mkdir(parents=True, exist_ok=True)
        if hasattr(self.model, "save_pretrained"):
            self.model.save_pretrained(str(directory))
        else:
            tensors = self.model.state_dict() if state_dict is None else state_dict
            save_safetensors(directory / "model.safetensors", tensors, {"format": "pt"})
        processing = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        if processing is not None:
            processing.save_pretrained(str(directory))
        (directory / "training_args.json").write_text(self.args.to_json_string() + "\n", encoding="utf-8")

    def _save_checkpoint(self) -> None:
        directory = Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"
        self.save_model(str(directory), _internal_call=True)
        if self.state.best_global_step:
            best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
            self.accelerator.wait_for_everyone()
            if best.exists():
                self.state.best_model_checkpoint = str(best)
        if not self.args.save_only_model:
            directory.mkdir(parents=True, exist_ok=True)
            if self.args.should_save:
                save(self.optimizer.state_dict(), str(directory / OPTIMIZER))
                save(_plain(self.lr_scheduler.state_dict()), str(directory / SCHEDULER))
            save(_random_state(), str(directory / self._random_file()))
        if self.args.should_save:
            self.state.stateful_callbacks = self._callback_states()
            self.state.save_to_json(directory / STATE)
            self._rotate()

    def _random_file(self) -> str:
        rank = f"_{self.args.process_index}" if self.args.world_size > 1 else ""
        return f"rng_state_mindspore{rank}.pth"

    def _callback_states(self) -> dict[str, Any]:
        states: dict[str, list[Any]] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                states.setdefault(type(callback).__name__, []).append(callback.state())
        return {name: held[0] if len(held) == 1 else held for name, held in states.items()}

    def _rotate(self) -> None:
        """Delete the oldest checkpoints beyond `save_total_limit`; the last and the best stay."""
        limit, best = self.args.save_total_limit, self.state.best_model_checkpoint
        if not limit or limit <= 0:
            return
        held = checkpoints(self.args.output_dir)
        protected = {held[-1], *([Path(best)] if best else [])}
        spare = len(held) - max(limit, len(protected))
        for directory in [d for d in held if d not in protected][: max(spare, 0)]:
            shutil.rmtree(directory, ignore_errors=True)

    # -- continuing
    def _last_checkpoint(self, given: str | bool) -> str:
        """The directory that `resume_from_checkpoint` means.

        Raises:
            ValueError: there is no checkpoint.
        """
        if given is not True:
            return str(given)
        held = checkpoints(self.args.output_dir)
        if not held:
            raise ValueError(f"No valid checkpoint found in output directory ({self.args.output_dir})")
        return str(held[-1])

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Give the model the weights of a checkpoint; names that do not fit are logged."""
        weights = read_weights(weight_files(Path(resume_from_checkpoint)))
        result = (self.model if model is None else model).load_state_dict(weights, strict=False)
        tied = getattr(self.model, "_tied_weights_keys", None) or ()
        missing = [name for name in result.missing_keys if name not in tied]
        if missing or result.unexpected_keys:
            log.warning("missing in the checkpoint: %s; unexpected: %s", missing, list(result.unexpected_keys))

    def _load_optimizer_and_scheduler(self, checkpoint: str) -> None:
        files = [Path(checkpoint) / OPTIMIZER, Path(checkpoint) / SCHEDULER]
        if all(file.is_file() for file in files):
            self.optimizer.load_state_dict(load(str(files[0])))
            self.lr_scheduler.load_state_dict(load(str(files[1])))

    def _load_rng_state(self, checkpoint: str) -> None:
        file = Path(checkpoint) / self._random_file()
        if not file.is_file():
            log.warning("%s is missing: random numbers will differ from those of a run that was not interrupted", file)
            return
        state = load(str(file))
        version, numbers, following = state["python"]
        random.setstate((version, tuple(numbers), following))
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, np.array(keys, np.uint32), *rest))
        default_generator.set_state(state["default"])
        _draw_from(state["mindspore"])

    def _load_callback_state(self) -> None:
        """Callbacks go on with the states they had, where the arguments ask for it."""
        if not self.args.restore_callback_states_from_checkpoint:
            return
        for name, held in self.state.stateful_callbacks.items():
            states = list(held) if isinstance(held, list) else [held]
            if name == type(self.control).__name__:
                self.control = type(self.control).from_state(states[0])
                continue
            own = [n for n, c in enumerate(self.callback_handler.callbacks) if type(c).__name__ == name]
            if not own:
                log.warning("the checkpoint has the state of a %s, which this trainer does not have", name)
            for number, state in zip(own, states, strict=False):
                made = type(self.callback_handler.callbacks[number]).from_state(state)
                self.callback_handler.callbacks[number] = made

    def _load_best_model(self) -> None:
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _load_state(self, checkpoint: str) -> TrainerState | None:
        file = Path(checkpoint) / STATE
        if not file.is_file():
            return None
        state = TrainerState.load_from_json(file)
        if state.best_model_checkpoint is not None and not os.path.isdir(state.best_model_checkpoint):
            log.warning("the best checkpoint %s is gone", state.best_model_checkpoint)
            state.best_model_checkpoint = None
        return state


def checkpoints(output_dir: str | Path) -> list[Path]:
    """The checkpoints of a directory, oldest first."""
    found = [(re.fullmatch(r"checkpoint-(\d+)", item.name), item) for item in Path(output_dir).glob("checkpoint-*")]
    return [item for _, item in sorted((int(match[1]), item) for match, item in found if match and item.is_dir())]


def get_last_checkpoint(folder: str | Path) -> str | None:
    """The newest checkpoint of a directory, None if it has none."""
    held = checkpoints(folder)
    return str(held[-1]) if held else None


def _random_state() -> dict[str, Any]:
    """State of every source of random numbers, as plain values.

    The state of MindSpore's own, which dropout draws from, cannot be read: from here on it draws from a new seed, and
    so does a run that is continued.
    """
    seed = int(default_generator.numpy.integers(2**31))
    _draw_from(seed)
    version, numbers, following = random.getstate()
    name, keys, *rest = np.random.get_state(legacy=True)
    return {
        "python": (version, list(numbers), following),
        "numpy": [name, [int(key) for key in keys], *rest],
        "default": _plain(default_generator.get_state()),
        "mindspore": seed,
    }


def _draw_from(seed: int) -> None:
    """Seed MindSpore's own random numbers alone."""
    state = default_generator.get_state()
    manual_seed(seed)
    default_generator.set_state(state)


def _plain(value: Any) -> Any:
    """A state dictionary of plain values; numbers of numpy and subclasses of dict are taken apart."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value.item() if isinstance(value, np.generic) else value
