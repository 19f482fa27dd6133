"""`Accelerator`: the processes, gradients and loaders of a training loop, for the ranks that `msrun` starts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from .accelerated import AcceleratedLoader, AcceleratedOptimizer, AcceleratedScheduler, GradientState
from .data import DataLoader
from .data_parallel import DistributedDataParallel
from .device import accelerator_type, device
from .distributed import (
    ReduceOp,
    all_reduce,
    barrier,
    default_group,
    get_rank,
    get_world_size,
    init_process_group,
    is_initialized,
    launched_ranks,
)
from .gradients import clip_grad_norm_, clip_grad_value_
from .hf_results import joined, mapped, padded
from .object_collectives import objects_of_ranks
from .optimizer import Optimizer
from .scheduler import LRScheduler
from .tape import backward, record


class Accelerator:
    """Data parallel training: each rank takes its batches, gradients are averaged, what is gathered is on all ranks.

    `mixed_precision` has no effect: MindSpore has no autocast, the model computes in its own data type.

    Raises:
        NotImplementedError: a plugin, `split_batches` or `dispatch_batches`, which have no counterpart.
    """

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = False,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: Any = None,
        log_with: Any = None,
        project_dir: Any = None,
        project_config: Any = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: Any = None,
        **plugins: Any,
    ) -> None:
        given = [name for name, value in plugins.items() if value is not None]
        if split_batches or dataloader_config is not None or given:
            asked = "split_batches" if split_batches else "dataloader_config" if dataloader_config else given[0]
            raise NotImplementedError(f"Accelerator({asked}=...) has no counterpart on MindSpore")
        if launched_ranks()[1] > 1 and not is_initialized():
            init_process_group()
        self.mixed_precision = mixed_precision or "no"
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.step_scheduler_with_optimizer = step_scheduler_with_optimizer
        self.log_with, self.project_dir = log_with, project_dir
        self.gradient_state = GradientState()
        self._batches = 0

    # -- processes
    @property
    def device(self) -> device:
        """Where this process computes."""
        return device(accelerator_type())

    @property
    def num_processes(self) -> int:
        """Number of ranks."""
        return get_world_size() if is_initialized() else 1

    @property
    def process_index(self) -> int:
        """Number of this rank."""
        return get_rank() if is_initialized() else 0

    local_process_index = process_index

    @property
    def is_main_process(self) -> bool:
        """Whether this is rank 0."""
        return self.process_index == 0

    is_local_main_process = is_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last rank."""
        return self.process_index == self.num_processes - 1

    @property
    def use_distributed(self) -> bool:
        """Whether there are several ranks."""
        return self.num_processes > 1

    def wait_for_everyone(self) -> None:
        """Wait until every rank is here."""
        if self.use_distributed:
            barrier()

    def print(self, *values: Any, **settings: Any) -> None:
        """`print` on rank 0."""
        if self.is_main_process:
            print(*values, **settings)

    @contextlib.contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Inside, the other ranks wait until rank 0 is through."""
        if not self.is_main_process:
            self.wait_for_everyone()
        yield
        if self.is_main_process:
            self.wait_for_everyone()

    local_main_process_first = main_process_first

    # -- what takes part
    def prepare(self, *objects: Any, device_placement: Any = None) -> Any:
        """Models, optimizers, loaders and schedules made ready for all ranks, in the order in which they were given."""
        record()
        ready = tuple(self._prepared(item) for item in objects)
        return ready[0] if len(ready) == 1 else ready

    def _prepared(self, item: Any) -> Any:
        if isinstance(item, nn.Cell):
            return self.prepare_model(item)
        if isinstance(item, DataLoader):
            return self.prepare_data_loader(item)
        if isinstance(item, Optimizer):
            return AcceleratedOptimizer(item, self.gradient_state)
        if isinstance(item, LRScheduler):
            turns = self.num_processes if self.step_scheduler_with_optimizer else None
            return AcceleratedScheduler(item, self.gradient_state, turns)
        return item

    def prepare_model(self, model: nn.Cell, device_placement: Any = None, evaluation_mode: bool = False) -> nn.Cell:
        """The model, which averages its gradients over the ranks where there are several."""
        if not self.use_distributed or evaluation_mode or isinstance(model, DistributedDataParallel):
            return model
        return DistributedDataParallel(model)

    def prepare_data_loader(self, data_loader: DataLoader) -> DataLoader:
        """The loader of this rank's batches, in the order that the seed of the program gives."""
        return AcceleratedLoader(data_loader, self.gradient_state, self.num_processes, self.process_index)

    def unwrap_model(self, model: nn.Cell, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> nn.Cell:
        """The model that `prepare` was given."""
        return model.module if isinstance(model, DistributedDataParallel) else model

    def free_memory(self, *objects: Any) -> list[Any]:
        """Forget what was prepared; None in the place of each object."""
        self._batches = 0
        return [None] * len(objects)

    # -- gradients
    @property
    def sync_gradients(self) -> bool:
        """Whether the batch at hand is the last one before an update."""
        return self.gradient_state.sync_gradients

    @contextlib.contextmanager
    def accumulate(self, *models: nn.Cell) -> Iterator[None]:
        """A batch; gradients are averaged over the ranks, and steps are taken, at the last batch before an update."""
        state = self.gradient_state
        last = state.end_of_dataloader
        self._batches = 0 if last else self._batches + 1
        state.sync_gradients = last or self._batches % self.gradient_accumulation_steps == 0
        with contextlib.ExitStack() as stack:
            for model in models:
                stack.enter_context(contextlib.nullcontext() if state.sync_gradients else self.no_sync(model))
            yield

    @contextlib.contextmanager
    def no_sync(self, model: nn.Cell) -> Iterator[None]:
        """Gradients stay local inside, and accumulate."""
        if isinstance(model, DistributedDataParallel):
            with model.no_sync():
                yield
        else:
            yield

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Add the gradients of a loss, divided by the number of batches of an update, to `.grad`."""
        backward(loss / self.gradient_accumulation_steps if self.gradient_accumulation_steps > 1 else loss, **kwargs)

    def clip_grad_norm_(self, parameters: Iterable[Any], max_norm: float, norm_type: float = 2) -> Tensor:
        """`clip_grad_norm_` on the gradients."""
        return clip_grad_norm_(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Iterable[Any], clip_value: float) -> None:
        """`clip_grad_value_` on the gradients."""
        clip_grad_value_(parameters, clip_value)

    @contextlib.contextmanager
    def autocast(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        """A region that changes nothing."""
        yield

    # -- tensors of all ranks
    def gather(self, tensor: Any) -> Any:
        """Nested tensors of all ranks, joined along the first axis."""
        return mapped(self._gathered, tensor) if self.use_distributed else tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """`gather` without the samples that the last batches took from the beginning again."""
        if use_gather_object:
            data: Any = [item for part in objects_of_ranks(input_data, default_group()) for item in part]
        else:
            data = self.gather(input_data)
        state = self.gradient_state
        if not state.end_of_dataloader or state.remainder <= 0:
            return data
        return data[: state.remainder] if use_gather_object else mapped(lambda t: t[: state.remainder], data)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Nested tensors, their second axes filled up to the length of the longest rank.

        Raises:
            NotImplementedError: another axis, or filling at the front.
        """
        if not self.use_distributed:
            return tensor
        if dim != 1 or pad_first:
            raise NotImplementedError("pad_across_processes fills the end of axis 1 only")

        def filled(item: Tensor) -> Tensor:
            if item.ndim < 2:
                return item
            width = max(objects_of_ranks(item.shape[1], default_group()))
            return item if width == item.shape[1] else Tensor(padded(item.asnumpy(), width, pad_index), item.dtype)

        return mapped(filled, tensor)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Sum or mean of nested tensors over the ranks."""
        if not self.use_distributed or reduction == "none":
            return tensor
        operation = ReduceOp.AVG if reduction == "mean" else ReduceOp.SUM

        def combined(item: Tensor) -> Tensor:
            result = item.copy()
            all_reduce(result, operation)
            return result * scale

        return mapped(combined, tensor)

    def _gathered(self, tensor: Tensor) -> Tensor:
        own = tensor.reshape((1,)) if tensor.ndim == 0 else tensor
        wide = own.astype(ms.float32) if own.dtype == ms.bfloat16 else own
        return Tensor(joined(objects_of_ranks(np.asarray(wide.asnumpy()), default_group())), own.dtype)

    # -- files
    def save(self, obj: Any, f: Any, **kwargs: Any) -> None:
        """`torch.save` on rank 0."""
        from .serialization import save

        if self.is_main_process:
            save(obj, f)

    def get_state_dict(self, model: nn.Cell, unwrap: bool = True) -> dict[str, Tensor]:
        """The state dictionary of the model that `prepare` was given."""
        return self.unwrap_model(model).state_dict()

    def save_state(self, output_dir: Any = None, **kwargs: Any) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Accelerator.save_state: save the state dictionaries of model and optimizer")

    def load_state(self, input_dir: Any = None, **kwargs: Any) -> None:
        """Refused.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError("Accelerator.load_state: load the state dictionaries of model and optimizer")

    def init_trackers(self, project_name: str, config: Any = None, init_kwargs: Any = None) -> None:
        """Nothing is tracked."""

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: Any = None) -> None:
        """Nothing is tracked."""

    def end_training(self) -> None:
        """Nothing is tracked."""
