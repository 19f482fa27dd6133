"""The reference: the repository as it is, on PyTorch. `python -m migrate.code.verify.torch_side JOB`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from migrate.code.verify.recipes import Job, generator
from migrate.code.verify.side import run

PERTURBATION = 0.02  # zeros and ones of fresh biases and norms would hide a parameter that is not used


class Torch:
    """PyTorch on the CPU."""

    tensor = torch.Tensor

    def seed(self, value: int) -> None:
        """Seeds every random generator of the framework."""
        torch.manual_seed(value)

    def versions(self) -> dict[str, str]:
        """For the manifest."""
        return {"torch": torch.__version__, "numpy": np.__version__}

    def from_numpy(self, values: np.ndarray) -> torch.Tensor:
        """Array to tensor."""
        return torch.from_numpy(values)

    def to_numpy(self, value: torch.Tensor) -> np.ndarray:
        """Tensor to array; bfloat16, which numpy lacks, becomes float32."""
        value = value.detach().resolve_conj().resolve_neg()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy()

    def set_mode(self, module: Any, training: bool) -> None:
        """Training or evaluation mode."""
        module.train(training)

    def weights(self, module: Any, reference: Path | None) -> dict[str, np.ndarray]:
        """Moves every floating point parameter a little, and gives the whole state."""
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                if parameter.is_floating_point():
                    noise = generator(f"weight {name}").standard_normal(tuple(parameter.shape)) * PERTURBATION
                    parameter.add_(torch.from_numpy(np.asarray(noise)).to(parameter.dtype))
        # Copies: training changes the parameters, and tied ones share memory, which the file format refuses.
        return {name: self.to_numpy(value).copy() for name, value in module.state_dict().items() if _is_tensor(value)}

    def without_gradients(self, call: Callable[[], Any]) -> Any:
        """The result of a call that is not recorded."""
        with torch.no_grad():
            return call()

    def watch(self, module: Any, record: Callable[[str, Any], None]) -> Callable[[], None]:
        """Reports the output of every submodule; the result ends it."""
        children = [(name, child) for name, child in module.named_modules() if name]
        handles = [child.register_forward_hook(partial(_report, record, name)) for name, child in children]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    def gradients(self, module: Any, loss: Callable[[], Any]) -> tuple[float, dict[str, np.ndarray]]:
        """The loss and the gradient of every parameter that has one."""
        module.zero_grad(set_to_none=True)
        value = loss()
        value.backward()
        named = module.named_parameters()
        return value.item(), {name: self.to_numpy(p.grad).copy() for name, p in named if p.grad is not None}

    def step(self, module: Any, loss: Callable[[], Any], length: float) -> float:
        """One descent step; the loss before it."""
        value, gradients = self.gradients(module, loss)
        norm = float(np.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in gradients.values())))
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad * (length / max(norm, 1.0)))
        return value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _report(record: Callable[[str, Any], None], name: str, _module: Any, _args: Any, output: Any) -> None:
    record(name, output)


if __name__ == "__main__":
    torch.use_deterministic_algorithms(True, warn_only=True)
    run(Torch(), Job.read(Path(sys.argv[1])))
