"""Runs a case in both frameworks and says what differs."""

from __future__ import annotations

import importlib
import linecache
import math
import re
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import mindspore
import mindspore as ms
import numpy as np
import torch
from row_comparison import as_array, differences
from row_conversion import Converted

import ms_models.compat as ms_compat

# A module that programs import from, although torch takes its name out of the namespace again.
torch.optim.optimizer = sys.modules["torch.optim.optimizer"]  # type: ignore[attr-defined]

FIXED = {"classes"}
"""Weights of classes, for which torch has no gradient."""


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Inputs by the names that cases use. Made anew for each case, so nothing is shared."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray[Any, Any]:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "x": normal(3, 4),
        "y": normal(3, 4),
        "z": normal(2, 3, 4),
        "q": normal(2, 2, 5, 4),
        "k": normal(2, 2, 5, 4),
        "v": normal(2, 2, 5, 4),
        "w": normal(4, 5),
        "m": normal(5, 5),
        "u": normal(6),
        "p": np.abs(normal(3, 4)) + 0.1,
        "prob": rng.random((3, 4)).astype(np.float32),
        "i": rng.integers(0, 4, (3, 4)),
        "j": rng.integers(0, 4, (6,)),
        "idx": np.array([2, 0]),
        "t": np.array([1, 3, 0]),
        "b": rng.random((3, 4)) > 0.5,
        "weight": normal(4) ** 2 + 0.5,
        "classes": normal(4) ** 2 + 0.5,
        "bias": normal(4),
        "distinct": rng.permutation(12).astype(np.float32).reshape(3, 4),
    }


def used(source: str) -> list[str]:
    """Inputs that a source names."""
    words = set(re.findall(r"(?<![\w.'\"])[a-z]+\b", source))
    return [name for name in arrays() if name in words]


class Case:
    """One torch source with the inputs it names, ready to run."""

    def __init__(self, source: str, converted: Converted, label: str) -> None:
        self.source, self.converted, self.label = source, converted, label
        self.inputs = used(source)
        self.is_expression = "\n" not in source.strip() and not re.match(r"^\s*\w+ = ", source)

    def torch_inputs(self, grad: bool) -> dict[str, torch.Tensor]:
        found = {name: torch.from_numpy(value.copy()) for name, value in arrays().items() if name in self.inputs}
        for name, value in found.items():
            value.requires_grad_(grad and value.is_floating_point() and name not in FIXED)
        return found

    def ms_inputs(self) -> dict[str, ms.Tensor]:
        return {name: ms.Tensor(value) for name, value in arrays().items() if name in self.inputs}

    def run_torch(self, extra: Mapping[str, Any], grad: bool = False) -> tuple[Any, dict[str, torch.Tensor]]:
        inputs = self.torch_inputs(grad)
        names = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional, "np": np, **inputs, **extra}
        return _evaluate(self.source, names), inputs

    def ms_names(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        return {**load_names(self.converted.imports), "np": np, **extra}

    def run_mindspore(self, extra: Mapping[str, Any]) -> Any:
        return _evaluate(self.converted.source, {**self.ms_names({}), **self.ms_inputs(), **extra})

    def function(self) -> Any:
        """The converted expression as a function of its inputs, in a module whose source `ms.jit` can read."""
        text = f"def case({', '.join(self.inputs)}):\n    return {self.converted.source.strip()}\n"
        file = f"<case {self.label}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        module = types.ModuleType(f"case_{len(linecache.cache)}")
        module.__dict__.update(self.ms_names({}))
        sys.modules[module.__name__] = module
        exec(compile(text, file, "exec"), module.__dict__)
        return module.__dict__["case"]


def load_names(imports: Iterable[str]) -> dict[str, Any]:
    """The roots of dotted names such as `ms_compat.optim.AdamW`, with the modules on the way imported."""
    for name in imports:
        parts = name.split(".")
        if parts[0] == "ms_compat":
            importlib.import_module(f"ms_models.compat.{parts[1]}")
        elif parts[0] == "mindspore":
            _import_longest(parts)
    return {"mindspore": mindspore, "ms_compat": ms_compat}


def _import_longest(parts: list[str]) -> None:
    for length in range(len(parts) - 1, 1, -1):
        try:
            importlib.import_module(".".join(parts[:length]))
            return
        except ModuleNotFoundError:
            continue  # an attribute, not a module: its parent is tried next


def _evaluate(source: str, names: dict[str, Any]) -> Any:
    source = source.strip()
    try:
        code = compile(source, "<case>", "eval")
    except SyntaxError:
        exec(compile(source, "<case>", "exec"), names)
        return names["result"]
    return eval(code, names)


def check_value(case: Case, extra: Mapping[str, Any], extra_ms: Mapping[str, Any]) -> list[str]:
    """Value, shape, data type and structure of the result."""
    expected, _ = case.run_torch(extra)
    return differences(expected, case.run_mindspore(extra_ms))


def _floats(result: Any) -> list[Any]:
    parts = list(result) if isinstance(result, tuple | list) else [result]
    kinds = (torch.float32, torch.float64, ms.float32, ms.float64)
    return [p for p in parts if isinstance(p, torch.Tensor | ms.Tensor) and p.dtype in kinds]


def check_gradient(case: Case) -> list[str]:
    """Gradients of a weighted sum of the results with respect to every float input; empty when there is none."""
    result, inputs = case.run_torch({}, grad=True)
    outputs = [o for o in _floats(result) if o.requires_grad]
    names = [n for n, t in inputs.items() if t.requires_grad]
    if not outputs or not names:
        return []
    weights = [np.cos(np.arange(math.prod(o.shape), dtype=np.float32)).reshape(tuple(o.shape)) for o in outputs]
    sum((o * torch.from_numpy(w).to(o.dtype)).sum() for o, w in zip(outputs, weights, strict=True)).backward()
    function = case.function()
    places = tuple(case.inputs.index(n) for n in names)

    def weighted(*args: ms.Tensor) -> ms.Tensor:
        parts = _floats(function(*args))[: len(weights)]
        return sum((o * ms.Tensor(w).astype(o.dtype)).sum() for o, w in zip(parts, weights, strict=True))

    arguments = list(case.ms_inputs().values())
    gradients = ms.grad(weighted, places)(*arguments)
    gradients = gradients if isinstance(gradients, tuple) else (gradients,)
    found = []
    for name, gradient in zip(names, gradients, strict=True):
        expected = inputs[name].grad
        expected = torch.zeros_like(inputs[name]) if expected is None else expected
        # a gradient sums up to a few dozen products, so its error is larger than that of a value
        found += differences(expected, gradient, f"gradient of {name}", rtol=1e-4, atol=1e-5)
    return found


def check_jit(case: Case) -> list[str]:
    """The same values from `ms.jit` as without it, and the same gradient: a graph may silently cut it."""
    function = case.function()
    arguments = list(case.ms_inputs().values())
    plain, compiled = function(*arguments), ms.jit(function)(*arguments)
    plain_parts = list(plain) if isinstance(plain, tuple | list) else [plain]
    compiled_parts = list(compiled) if isinstance(compiled, tuple | list) else [compiled]
    if len(plain_parts) != len(compiled_parts):
        return [f"ms.jit gives {len(compiled_parts)} results, not {len(plain_parts)}"]
    return [
        f"ms.jit: {as_array(c)} instead of {as_array(p)}"
        for p, c in zip(plain_parts, compiled_parts, strict=True)
        if not np.allclose(as_array(p), as_array(c), rtol=1e-5, atol=1e-6, equal_nan=True)
    ]


def check_random(case: Case) -> list[str]:
    """Shape, data type, mean and spread against torch; the same seed gives the same numbers, the next draw others."""
    from ms_models.compat import random as compat_random

    torch.manual_seed(0)
    expected, _ = case.run_torch({})
    compat_random.manual_seed(7)
    first = case.run_mindspore({})
    second = case.run_mindspore({})
    compat_random.manual_seed(7)
    again = case.run_mindspore({})
    want, got = as_array(expected), as_array(first)
    found = []
    if want.shape != got.shape or want.dtype != got.dtype:
        found.append(f"{want.dtype}{want.shape} against {got.dtype}{got.shape}")
    if not np.array_equal(got, as_array(again)):
        found.append("the same seed gives other numbers")
    if np.array_equal(got, as_array(second)):
        found.append("two draws give the same numbers")
    # cases draw at least 4000 numbers: five standard errors of mean and deviation are under 0.08 deviations
    spread = want.std()
    if not found and (abs(got.mean() - want.mean()) > 0.08 * spread or abs(got.std() / spread - 1) > 0.08):
        found.append(f"mean {want.mean()} and deviation {spread} against {got.mean()} and {got.std()}")
    return found
