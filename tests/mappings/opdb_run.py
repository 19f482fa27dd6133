"""One sample of torch's operator database in both frameworks: converted by the table, executed, compared."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import types
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import libcst as cst
import mindspore as ms
import numpy as np
import torch
from opdb_entries import Entry, Sample, Step
from row_comparison import as_array, dtype_name
from row_running import load_names

from mappings.api import ApiTable, Row
from migrate.code.rows.template import Expansion, expand_symbol, select

# Both compute in float32 but sum in another order and use other polynomials for special functions. The bound has a part
# relative to the element and one to the largest element of the tensor (16 units of 2^-23: rounding of a sum's terms).
RTOL, SCALE_TOL = 1e-5, 2e-6
# A gradient is a product of several such results.
GRAD_RTOL, GRAD_SCALE_TOL = 1e-4, 1e-5
_TORCH_NAME = re.compile(r"\btorch(?:\.\w+)+")


@dataclass
class Outcome:
    """What became of one sample."""

    outcome: str
    """right, wrong, refused (by the table) or raised (by MindSpore; also crashes and hangs)."""
    source: str = ""
    converted: str = ""
    reason: str = ""
    error: float = 0.0
    """Largest error of a value or gradient, relative to the largest element (at least 1) of its tensor."""
    rows: list[str] = field(default_factory=list)
    gradient: bool = False
    """Whether gradients were compared."""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Refused(Exception):
    """The table has no way to say a call."""


def convert(sample: Sample, table: ApiTable) -> tuple[list[tuple[str, str]], list[Row], set[str]]:
    """MindSpore expressions of a sample by target name, the rows used and the names to import.

    Raises:
        Refused: a step that the table cannot convert.
    """
    lines: list[tuple[str, str]] = []
    rows: list[Row] = []
    imports: set[str] = set()
    for step in sample.steps:
        if step.name is None:
            lines.append((step.target, step.args[0][1]))
            continue
        result = _expansion(step, table)
        rows.append(result.row)
        imports |= result.imports
        text = cst.Module([]).code_for_node(result.node)

        lines.append((step.target, _TORCH_NAME.sub(functools.partial(_constant, table, imports), text)))
    return lines, rows, imports


def _constant(table: ApiTable, imports: set[str], match: re.Match[str]) -> str:
    """A data type and the like that stood in an argument."""
    symbol = next(iter(table.rows(match[0])), None)
    found = None if symbol is None else expand_symbol(symbol, {})
    if not isinstance(found, Expansion):
        raise Refused(f"{match[0]} has no row")
    imports.update(found.imports)
    return cst.Module([]).code_for_node(found.node)


def _expansion(step: Step, table: ApiTable) -> Expansion:
    args = [
        cst.Arg(cst.parse_expression(text), keyword=None if key is None else cst.Name(key)) for key, text in step.args
    ]
    receiver = None if step.receiver is None else cst.parse_expression(step.receiver)
    assert step.name is not None
    result = select(table, step.name, args, receiver, aliases={})
    if not isinstance(result, Expansion):
        raise Refused(result.reason)
    return result


def run(entry: Entry, sample: Sample, table: ApiTable) -> Outcome:
    """Run one sample; every failure becomes an outcome, except one of torch itself.

    Raises:
        Exception: torch cannot run its own sample.
    """
    outcome = Outcome("right", sample.source)
    expected, gradients = _torch(sample, entry)
    random = entry.valueless or not _repeats(expected, _torch(sample, entry)[0])
    try:
        lines, rows, imports = convert(sample, table)
    except Refused as refusal:
        return Outcome("refused", sample.source, reason=str(refusal))
    outcome.rows = [f"{row.name} {row.digest()}" for row in rows if row.name == sample.steps[-1].name]
    outcome.converted = "; ".join(text if target == lines[-1][0] else f"{target} = {text}" for target, text in lines)
    try:
        function = _function(sample, lines, imports)
        arguments = [_to_mindspore(value) for value in sample.tensors.values()]
        actual = _processed(sample, function(*arguments))
        comparison = _Comparison(RTOL, SCALE_TOL, random)
        comparison.compare(expected, actual, "result")
        if comparison.only_values:
            comparison.retry(functools.partial(_torch, sample, entry, torch.float64), 0)
        if gradients is not None and not random and not comparison.problems:
            outcome.gradient = True
            comparison.rtol, comparison.scale_tol = GRAD_RTOL, GRAD_SCALE_TOL
            ours = _gradients(sample, function, arguments, list(gradients))
            comparison.compare(list(gradients.values()), list(ours.values()), "gradient")
            if comparison.only_values:
                comparison.retry(functools.partial(_torch, sample, entry, torch.float64), 1)
    except Exception as error:  # noqa: BLE001 - whatever MindSpore raises is the result of this sample
        outcome.outcome, outcome.reason = "raised", f"{type(error).__name__}: {_brief(str(error))}"
        return outcome
    outcome.error = comparison.worst
    if comparison.problems:
        outcome.outcome, outcome.reason = "wrong", "; ".join(comparison.problems)
    return outcome


def run_error(entry: Entry, sample: Sample, table: ApiTable) -> Outcome:
    """A call that torch refuses: right when the table refuses it or MindSpore raises, wrong when it gives a result."""
    try:
        _torch(sample, entry)
        return Outcome("torch", sample.source, reason="torch takes it in this spelling")
    except Exception as error:  # noqa: BLE001 - the error that is wanted
        expected = f"{type(error).__name__}: {_brief(str(error))}"
    try:
        lines, _, imports = convert(sample, table)
        result = _function(sample, lines, imports)(*[_to_mindspore(value) for value in sample.tensors.values()])
        for part in _float_parts(result):
            part.asnumpy()
    except Exception as error:  # noqa: BLE001 - any refusal will do
        return Outcome("right", sample.source, reason=f"{type(error).__name__}: {_brief(str(error))}")
    return Outcome("wrong", sample.source, reason=f"gives {_kind(result)} where torch raises {expected}")


def _brief(text: str) -> str:
    return " ".join(text.split())[:300]


def _processed(sample: Sample, result: Any) -> Any:
    return result if sample.process is None else sample.process(result)


# -- torch
def _torch(
    sample: Sample, entry: Entry, dtype: torch.dtype = torch.float32
) -> tuple[Any, dict[str, torch.Tensor] | None]:
    """Result and gradients by input; with `dtype` float64 the same computation in double precision."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        copy = value.detach().to(dtype, copy=True) if value.dtype is torch.float32 else value.detach().clone()
        return copy.requires_grad_(value.requires_grad)

    leaves = {name: leaf(value) for name, value in sample.tensors.items()}
    # an operation in place may not meet a leaf
    names = {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in leaves.items()}
    names["torch"] = torch
    for step in sample.steps:
        names[step.target] = eval(step.torch_source(), names)
    result = _processed(sample, names[sample.steps[-1].target])
    wanted = {n: t for n, t in leaves.items() if isinstance(t, torch.Tensor) and t.requires_grad}
    outputs = [o for o in _float_parts(result) if o.requires_grad]
    if entry.valueless or not entry.differentiable or not wanted or not outputs:
        return result, None
    loss = sum((_real(o) * torch.from_numpy(_weights(o))).sum() for o in outputs)
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    # MindSpore writes zeros where torch has no gradient
    return result, {n: torch.zeros_like(t) if g is None else g for (n, t), g in zip(wanted.items(), found, strict=True)}


def _repeats(first: Any, second: Any) -> bool:
    """Whether two runs without a seed agree: if not, the sample draws random numbers."""
    pairs = zip(_float_parts(first), _float_parts(second), strict=True)
    return all(torch.allclose(a, b, equal_nan=True) for a, b in pairs)


def _float_parts(result: Any) -> list[Any]:
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() or result.is_complex() else []
    if isinstance(result, ms.Tensor):
        return [result] if result.is_floating_point() or result.is_complex() else []
    if isinstance(result, tuple | list):
        return [part for item in result for part in _float_parts(item)]
    return []


def _real(value: Any) -> Any:
    """Real part plus twice the imaginary part: a real number whose gradient sees both."""
    if not value.is_complex():
        return value
    if isinstance(value, torch.Tensor):
        return value.real + 2 * value.imag
    return ms.ops.real(value) + 2 * ms.ops.imag(value)


def _weights(value: Any) -> np.ndarray[Any, Any]:
    """Another weight for each element, so that a permuted gradient is seen."""
    shape = tuple(value.shape)
    dtype = np.float64 if dtype_name(value.dtype) in ("float64", "complex128") else np.float32
    return np.cos(np.arange(int(np.prod(shape)))).astype(dtype).reshape(shape)


# -- MindSpore
def _to_mindspore(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    if value.dtype is torch.bfloat16:
        return ms.Tensor(value.float().numpy()).astype(ms.bfloat16)
    return ms.Tensor(np.array(value.resolve_conj().resolve_neg().numpy(), order="C", copy=True))


def _function(sample: Sample, lines: list[tuple[str, str]], imports: set[str]) -> Any:
    """The converted steps as a function of the inputs, in a module whose source MindSpore can read."""
    body = "".join(f"    {target} = {text}\n" for target, text in lines)
    text = f"def case({', '.join(sample.tensors)}):\n{body}    return {lines[-1][0]}\n"
    file = "<sample>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    module = types.ModuleType("opdb_sample")
    module.__dict__.update(load_names(imports))
    sys.modules[module.__name__] = module
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__["case"]


def _gradients(sample: Sample, function: Any, arguments: list[Any], names: list[str]) -> dict[str, Any]:
    every = list(sample.tensors)
    places = [every.index(name) for name in names]

    def weighted(*chosen: ms.Tensor) -> Any:
        filled = list(arguments)
        for place, value in zip(places, chosen, strict=True):
            filled[place] = value
        parts = _float_parts(_processed(sample, function(*filled)))
        return sum((_real(o) * ms.Tensor(_weights(o))).sum() for o in parts)

    found = ms.grad(weighted, tuple(range(len(places))))(*[arguments[p] for p in places])
    found = found if isinstance(found, tuple) else (found,)
    return dict(zip(names, found, strict=True))


class _Comparison:
    """Collects differences of structure, shape, data type and value, and the worst error."""

    def __init__(self, rtol: float, scale_tol: float, valueless: bool) -> None:
        self.rtol, self.scale_tol, self.valueless = rtol, scale_tol, valueless
        self.problems: list[str] = []
        self.worst = 0.0
        self.differing: list[tuple[Any, Any]] = []
        self._seen: list[tuple[torch.Tensor, ms.Tensor]] = []

    @property
    def only_values(self) -> bool:
        """Whether everything wrong so far is a value of a floating-point tensor."""
        return bool(self.problems) and len(self.problems) == len(self.differing)

    def retry(self, exact: Callable[[], Any], part: int) -> None:
        """Where torch's own rounding is worse than the bound: as near to double precision as four times torch is."""
        try:
            truth = exact()[part]
        except Exception:  # noqa: BLE001 - no such computation in double precision: the first verdict stands
            return
        parts = _float_parts(list(truth.values()) if isinstance(truth, dict) else truth)
        compared = [pair for pair in self._seen if pair[0].is_floating_point() or pair[0].is_complex()]
        if len(parts) != len(compared):
            return
        for exact_part, (want, got) in zip(parts, compared, strict=True):
            reference = as_array(exact_part)
            theirs, ours = (np.abs(as_array(v.resolve_neg() if v is want else v) - reference) for v in (want, got))
            if not (np.isfinite(ours).all() and np.isfinite(theirs).all()):
                return
            scale = max(1.0, float(np.abs(reference).max(initial=0.0)))
            if float(theirs.max(initial=0.0)) > 1e-3 * scale:
                return  # not rounding
            if float(ours.max(initial=0.0)) > 4 * float(theirs.max(initial=0.0)) + self.scale_tol * scale:
                return
        self.problems.clear()
        self.differing.clear()

    def compare(self, expected: Any, actual: Any, where: str) -> None:
        if isinstance(expected, torch.Tensor):
            self._tensors(expected, actual, where)
        elif isinstance(expected, torch.Size | tuple | list):
            if where in ("result", "gradient"):
                self._seen.clear()
            if not isinstance(actual, tuple | list) or len(actual) != len(expected):
                self.problems.append(f"{where}: {len(expected)} items against {_kind(actual)}")
                return
            for number, (e, a) in enumerate(zip(expected, actual, strict=True)):
                self.compare(e, a, f"{where}[{number}]")
        elif isinstance(expected, float):
            close = isinstance(actual, float) and np.isclose(expected, actual, rtol=1e-5, atol=1e-6, equal_nan=True)
            if not close:
                self.problems.append(f"{where}: {expected!r} against {actual!r}")
        elif isinstance(expected, torch.dtype):
            if dtype_name(expected) != dtype_name(actual):
                self.problems.append(f"{where}: {expected} against {actual!r}")
        elif type(expected) is not type(actual) or expected != actual:
            self.problems.append(f"{where}: {expected!r} against {_kind(actual)}")

    def _tensors(self, expected: torch.Tensor, actual: Any, where: str) -> None:
        if not isinstance(actual, ms.Tensor):
            self.problems.append(f"{where}: torch gives a tensor, MindSpore {_kind(actual)}")
            return
        if tuple(expected.shape) != tuple(actual.shape):
            self.problems.append(f"{where}: shape {tuple(expected.shape)} against {tuple(actual.shape)}")
            return
        if dtype_name(expected.dtype) != dtype_name(actual.dtype):
            self.problems.append(f"{where}: data type {expected.dtype} against {actual.dtype}")
            return
        if where == "result":
            self._seen.clear()
        self._seen.append((expected, actual))
        want, got = as_array(expected.resolve_neg()), as_array(actual)
        if self.valueless or not want.size:
            return
        if want.dtype.kind not in "fc":
            if not np.array_equal(want, got):
                self.problems.append(f"{where}: {_brief(str(want))} against {_brief(str(got))}")
            return
        finite = np.isfinite(want) & np.isfinite(got)
        scale = max(1.0, float(np.abs(want[finite]).max(initial=0.0)))
        difference = np.where(finite, np.abs(np.subtract(want, got, where=finite, out=np.zeros_like(want))), 0.0)
        self.worst = max(self.worst, float(difference.max()) / scale)
        eps = float(np.finfo(want.dtype).eps) / 2.0**-23 if want.dtype.itemsize < 4 else 1.0  # half precision
        allowed = eps * (self.rtol * np.where(finite, np.abs(want), 0.0) + self.scale_tol * scale)
        special = np.where(finite, True, (want == got) | (np.isnan(want) & np.isnan(got)))
        if not special.all() or (difference > allowed).any():
            values = f"{_brief(str(want))} against {_brief(str(got))}"
            self.differing.append((expected, actual))
            self.problems.append(f"{where}: values differ by {self.worst:.1e} of the scale: {values}")


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"{len(value)} items"
    return f"a {type(value).__name__}" if isinstance(value, ms.Tensor | torch.Tensor) else repr(value)[:80]
