"""torch's operator database as calls of the public API: entry -> forms (rows of the table) -> samples -> source."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode, resolve_name
from torch.testing._internal.common_methods_invocations import op_db

from mappings.api import ApiTable

# Importing the database forbids setting torch.backends flags, which some cases do.
torch.backends.flags_frozen.__globals__["__allow_nonbracketed_mutation_flag"] = True
DTYPE = torch.float32
# Only shape and data type can be compared.
RANDOM = (
    "bernoulli cauchy exponential geometric log_normal multinomial normal rand_like randint randint_like randn"
    " randn_like uniform nn.functional.alpha_dropout nn.functional.dropout nn.functional.dropout2d"
    " nn.functional.dropout3d nn.functional.feature_alpha_dropout nn.functional.rrelu"
    " nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d"
)
UNINITIALISED = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_"
VALUELESS = frozenset(f"{RANDOM} {UNINITIALISED}".split())
_OPERATORS = {
    "__getitem__": "{0}[{1}]",
    "__radd__": "{1} + {0}",
    "__rdiv__": "{1} / {0}",
    "__rmatmul__": "{1} @ {0}",
    "__rmod__": "{1} % {0}",
    "__rmul__": "{1} * {0}",
    "__rpow__": "({1}) ** {0}",
    "__rsub__": "{1} - {0}",
}
_INFIX = {"matmul": "@", "__matmul__": "@", "add": "+", "__add__": "+", "__mul__": "*", "mul": "*", "__sub__": "-"}
_IDENTITY = "lambda x: x"


class NotCallable(Exception):
    """A sample that has no spelling as a call of torch's public API."""


@dataclass(frozen=True)
class Step:
    """`target = name(args)`; a method or property when `receiver` is given, kept Python when `name` is None."""

    target: str
    name: str | None
    receiver: str | None
    args: tuple[tuple[str | None, str], ...]
    is_property: bool = False

    def torch_source(self) -> str:
        """The expression in torch's spelling."""
        if self.name is None:
            return self.args[0][1]
        inner = ", ".join(text if key is None else f"{key}={text}" for key, text in self.args)
        if self.receiver is None:
            return f"{self.name}({inner})"
        attribute = f"{self.receiver}.{self.name.rpartition('.')[2]}"
        return attribute if self.is_property else f"{attribute}({inner})"


@dataclass
class Sample:
    """One call with its inputs by variable name."""

    steps: list[Step]
    tensors: dict[str, torch.Tensor]
    process: Callable[[Any], Any] | None = None
    """Removes what is arbitrary in a result (signs of eigenvectors), torch's own function."""

    @property
    def source(self) -> str:
        """What a reader would write."""
        return "; ".join(
            s.torch_source() if s is self.steps[-1] else f"{s.target} = {s.torch_source()}" for s in self.steps
        )


@dataclass(frozen=True)
class Entry:
    """One OpInfo usable in float32 on the CPU."""

    key: str
    op: Any = field(repr=False)

    @property
    def valueless(self) -> bool:
        return self.op.name in VALUELESS

    @property
    def differentiable(self) -> bool:
        return bool(self.op.supports_autograd) and DTYPE in self.op.supported_backward_dtypes("cpu")

    def forms(self, table: ApiTable | None = None) -> list[str]:
        """Row names that the entry exercises: the primary one first, then those of the other spellings in the table."""
        name = self.op.name
        if name in _OPERATORS:
            return ["operator"]
        function, method = f"torch.{name}", f"torch.Tensor.{name}"
        choices = [function] if callable(resolve(function)) else []
        choices = [method, *choices] if name.endswith("_") else [*choices, method]
        if self.op.variant_test_name == "in_place":
            choices = []
        choices = [] if _private(name) else [*choices, f"{method}_"]
        primary = next((c for c in choices if resolve(c) is not None), f"torch.ops.aten.{name}")
        others = [function, method, f"{method}_"]
        for alias in self.op.aliases:
            others += [f"torch.{alias.name}", f"torch.Tensor.{alias.name}", f"torch.Tensor.{alias.name}_"]
        known = table.names() if table is not None else frozenset()
        return [primary, *dict.fromkeys(o for o in others if o in known and o != primary and resolve(o) is not None)]

    def error_samples(self) -> Iterator[Any]:
        """Inputs that torch refuses, of the entries for which the database lists some."""
        if self.op.error_inputs_func is None:
            return
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for wrong in self.op.error_inputs("cpu"):
                yield wrong.sample_input

    def samples(self) -> Iterator[Any]:
        """torch's own sample inputs, the same ones at every call."""
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield from self.op.sample_inputs("cpu", DTYPE, requires_grad=self.differentiable)


def _private(name: str) -> bool:
    return name.rpartition(".")[2].startswith("_")


def resolve(dotted: str) -> Any:
    """The object behind a dotted torch name, None when there is none."""
    value: Any = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def entries() -> dict[str, Entry]:
    """Usable entries by key: OpInfo name, with the variant after a dot."""
    found = {}
    for op in op_db:
        if DTYPE in op.supported_dtypes("cpu") and not op.name.startswith("jiterator"):
            key = f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name
            found[key] = Entry(key, op)
    return found


class _Recorder(TorchFunctionMode):
    """Notes the calls of public functions that a wrapper of the database makes."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...], dict[str, Any], Any]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.calls.append((func, tuple(args), dict(kwargs or {}), result))
        return result


class _Writer:
    """Python source of sample arguments; tensors and what has no literal become variables."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.names: dict[int, str] = {}
        self.alive: list[Any] = []

    def variable(self, value: Any) -> str:
        if id(value) not in self.names:
            self.names[id(value)] = name = f"a{len(self.tensors)}"
            self.tensors[name] = value
            self.alive.append(value)
        return self.names[id(value)]

    def bind(self, value: Any, name: str) -> None:
        self.names[id(value)] = name
        self.alive.append(value)

    def text(self, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            return self.variable(value)
        if value is None or isinstance(value, bool | str):
            return repr(value)
        if value is Ellipsis:
            return "..."
        if isinstance(value, int | float | complex):
            return _number(value)
        if isinstance(value, np.generic):
            return _number(value.item())
        if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
            return str(value)
        if isinstance(value, torch.device):
            return repr(str(value))
        if isinstance(value, slice):
            return f"slice({self.text(value.start)}, {self.text(value.stop)}, {self.text(value.step)})"
        if isinstance(value, list):
            return f"[{', '.join(self.text(v) for v in value)}]"
        if isinstance(value, tuple):
            inner = ", ".join(self.text(v) for v in value)
            return f"({inner},)" if len(value) == 1 else f"({inner})"
        raise NotCallable(f"an argument of type {type(value).__name__}")

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], target: str) -> Step:
        texts = [(None, self.text(a)) for a in args] + [(k, self.text(v)) for k, v in kwargs.items()]
        if not name.startswith("torch.Tensor."):
            return Step(target, name, None, tuple(texts))
        if not args or not isinstance(args[0], torch.Tensor):
            raise NotCallable(f"{name} of a {type(args[0]).__name__ if args else 'missing receiver'}")
        return Step(target, name, texts[0][1], tuple(texts[1:]), not callable(resolve(name)))


def _number(value: complex) -> str:
    if isinstance(value, complex):
        return repr(value) if math.isfinite(abs(value)) else f"complex({value.real!r}, {value.imag!r})"
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    return repr(value)


def write(entry: Entry, form: str, raw: Any) -> Sample:
    """A sample of the database as source of one form.

    Raises:
        NotCallable: it has no such spelling.
    """
    writer = _Writer()
    args = (raw.input, *raw.args)
    if form == "operator":
        template = _OPERATORS[entry.op.name]
        index = args[1]
        second = writer.text(index)
        if entry.op.name == "__getitem__" and isinstance(index, tuple):
            second = second[1:-1] or "()"
        steps = [Step("r", None, None, ((None, template.format(writer.text(args[0]), second)),))]
    elif _direct(entry, form):
        steps = [writer.call(form, args, raw.kwargs, "r")]
    else:
        steps = _recorded(entry, form, raw, writer)
    process = raw.output_process_fn_grad
    code = getattr(process, "__code__", None)
    trivial = code is None or code.co_code == (lambda x: x).__code__.co_code
    return Sample(steps, writer.tensors, None if trivial else process)


def _direct(entry: Entry, form: str) -> bool:
    """Whether the entry calls the form with the sample's arguments as they are."""
    op = entry.op
    plain = {resolve(f"torch.{op.name}"), resolve(f"torch.Tensor.{op.name}")}
    return op.op in plain or form.startswith("torch.ops.aten.") or getattr(op.op, "__name__", "") != "<lambda>"


def _low_rank(form: str, raw: Any, writer: _Writer) -> list[Step]:
    """The database calls these Python functions on a product, and torch shows the recorder only what they call."""
    first, second = writer.text(raw.input), writer.text(raw.args[0])
    product = Step("t", None, None, ((None, f"{first} @ {second}.mT"),))
    keywords = tuple((key, writer.text(value)) for key, value in raw.kwargs.items())
    return [product, Step("r", form, None, ((None, "t"), *keywords))]


def _recorded(entry: Entry, form: str, raw: Any, writer: _Writer) -> list[Step]:
    if entry.op.name in ("svd_lowrank", "pca_lowrank"):
        return _low_rank(form, raw, writer)
    for value in (raw.input, *raw.args):
        writer.text(value)  # inputs are named before what is computed from them
    with torch.random.fork_rng(), _Recorder() as recorder:
        entry.op.op(raw.input, *raw.args, **raw.kwargs)
    base = form.rpartition(".")[2].rstrip("_")
    steps: list[Step] = []
    calls = [call for call in recorder.calls if isinstance(call[3], torch.Tensor | tuple | list | int | float)]
    calls = [call for call in calls if not isinstance(call[3], torch.Size | bool)]
    for number, (func, args, kwargs, result) in enumerate(calls):
        target = f"t{number}"
        name = resolve_name(func) or getattr(func, "__name__", "")
        if name.endswith(".__get__"):
            name = name.removesuffix(".__get__")
        short = name.rpartition(".")[2]
        if short in (base, f"{base}_") or len(calls) == 1:
            step = writer.call(form, args, kwargs, target)
        elif short in _INFIX and len(args) == 2:
            text = f"{writer.text(args[0])} {_INFIX[short]} {writer.text(args[1])}"
            step = Step(target, None, None, ((None, text),))
        elif name.startswith("torch."):
            step = writer.call(name, args, kwargs, target)
        else:
            raise NotCallable(f"calls {name or func!r}")
        steps.append(step)
        writer.bind(result, target)
    if not steps:
        raise NotCallable("no call of a public function was seen")
    return steps
