"""PyTorch, as a side of a comparison uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from migrate.sides.framework import INPUT, NothingReachedError, step_scale
from migrate.sides.recipes import generator

if TYPE_CHECKING:
    import torch

PERTURBATION = 0.02  # zeros and ones of fresh biases and norms would hide a parameter that is not used
Move = Callable[[str, tuple[int, ...]], np.ndarray]


def moved_a_little(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """What is added to a fresh parameter."""
    return np.asarray(generator(f"weight {name}").standard_normal(shape) * PERTURBATION)


class Torch:
    """PyTorch on the CPU."""

    def __init__(self, move: Move = moved_a_little) -> None:
        import torch

        self.move = move

        torch.use_deterministic_algorithms(True, warn_only=True)
        self.torch = torch
        self.tensor = torch.Tensor

    def seed(self, value: int) -> None:
        """Seeds every random generator of the framework."""
        self.torch.manual_seed(value)

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {"torch": self.torch.__version__, "numpy": np.__version__}

    def from_numpy(self, values: np.ndarray) -> torch.Tensor:
        """Array to tensor."""
        return self.torch.from_numpy(values)

    def to_numpy(self, value: torch.Tensor) -> np.ndarray:
        """Tensor to array; bfloat16, which numpy lacks, becomes float32."""
        value = value.detach().resolve_conj().resolve_neg()
        return (value.float() if value.dtype == self.torch.bfloat16 else value).numpy()

    def set_mode(self, module: Any, training: bool) -> None:
        """Training or evaluation mode."""
        module.train(training)

    def weights(self, module: Any, reference: Path | None) -> dict[str, np.ndarray]:
        """Moves every floating point parameter a little, and gives the whole state."""
        with self.torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.is_floating_point():
                    noise = self.torch.from_numpy(np.asarray(self.move(name, tuple(parameter.shape))))
                    if parameter.isnan().any():  # memory that the module leaves to its owner; torch fills it with NaN
                        parameter.copy_(noise.to(parameter.dtype) / PERTURBATION)
                    parameter.add_(noise.to(parameter.dtype))
        return self.state(module)

    def state(self, module: Any) -> dict[str, np.ndarray]:
        """Copies of the whole state: training changes parameters, and tied ones share memory, which files refuse."""
        return {
            name: self.to_numpy(value).copy()
            for name, value in module.state_dict().items()
            if isinstance(value, self.tensor)
        }

    def without_gradients(self, call: Callable[[], Any]) -> Any:
        """The result of a call that is not recorded."""
        with self.torch.no_grad():
            return call()

    def submodules(self, module: Any) -> list[tuple[str, Any]]:
        """Everything below a module, by name."""
        return [(name, child) for name, child in module.named_modules() if name]

    def load(self, module: Any, values: Mapping[str, np.ndarray]) -> None:
        """Sets what `values` names of the state, in the dtypes of the module."""
        state = module.state_dict(keep_vars=True)
        with self.torch.no_grad():
            for name, value in values.items():
                state[name].copy_(self.torch.from_numpy(np.array(value)))

    def gradients(
        self, module: Any, loss: Callable[..., Any], inputs: Sequence[Any] = ()
    ) -> tuple[float, dict[str, np.ndarray]]:
        """The loss and the gradient of every parameter that has one, and those of inputs.

        Raises:
            NothingReachedError: there is none.
        """
        module.zero_grad(set_to_none=True)
        leaves = [value.detach().clone().requires_grad_() for value in inputs]
        value = loss(*(leaf * 1 for leaf in leaves))  # the module may write into its input, which a leaf does not allow
        if not value.requires_grad:
            raise NothingReachedError("the loss depends on no parameter and no input of floating point")
        value.backward()
        named = [*module.named_parameters(), *((INPUT.format(i), leaf) for i, leaf in enumerate(leaves))]
        return value.item(), {name: self.to_numpy(p.grad).copy() for name, p in named if p.grad is not None}

    def trainable(self, module: Any) -> dict[str, Any]:
        """Parameters that are trained, by name; each once."""
        return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}

    def step(self, module: Any, loss: Callable[[], Any], length: float) -> float:
        """One descent step; the loss before it."""
        value, gradients = self.gradients(module, loss)
        scale = step_scale(gradients.values(), length)
        with self.torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * scale)
        return value
