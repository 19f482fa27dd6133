"""Other ways to write the call of a case: positional, keywords, shuffled keywords, defaults omitted, variables."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import libcst as cst
import numpy as np
import torch
from row_comparison import as_array
from row_conversion import is_member, torch_name
from row_running import Case

from mappings.api import Row
from migrate.code.rows.binding import Bound, bind

STYLES = ("positional", "keyword", "shuffled", "defaults omitted", "variables", "one sequence", "starred")
_KINDS = inspect.Parameter


def styles(source: str, row: Row) -> dict[str, str]:
    """Sources by style; only those that differ from the case's own and from each other."""
    module = cst.parse_module(textwrap.dedent(source))
    finder = _Finder(row.name)
    module.visit(finder)
    if len(finder.calls) != 1 or row.signature is None:
        return {}
    call = finder.calls[0]
    bound = bind(row, call.args)
    if not isinstance(bound, Bound) or any(a.star for a in call.args):
        return {}
    found: dict[str, str] = {}
    taken = {_code(call)}
    for style, args in _arguments(row, bound).items():
        text = _code(call.with_changes(args=args))
        if text not in taken:
            taken.add(text)
            found[style] = module.deep_replace(call, call.with_changes(args=args)).code
    return found | _with_variables(module, call, bound, source)


def torch_takes(case: Case, random: bool) -> bool:
    """Whether torch accepts the call (some functions take no keywords) and draws numbers as its case does.

    Args:
        case: the call in another style.
        random: whether the case it comes from is about random numbers; a call that omits an argument may not be.
    """
    try:
        # a draw of few numbers repeats by chance
        first, *others = (case.run_torch(_objects())[0] for _ in range(8))
    except Exception:  # noqa: BLE001 - whatever torch raises, it does not take this call
        return False
    return random != all(_same(first, other) for other in others) or not isinstance(first, torch.Tensor)


def _objects() -> dict[str, Any]:
    group = {"params": [torch.nn.Parameter(torch.ones(2))], "lr": 0.1}
    optimizer = torch.optim.SGD([group, {**group, "params": [torch.nn.Parameter(torch.ones(2))]}])
    return {"params": [torch.nn.Parameter(torch.ones(2))], "optimizer": optimizer}


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor):
        return first.shape == second.shape and np.array_equal(
            as_array(first), as_array(second), equal_nan=first.is_floating_point()
        )
    return True


def _arguments(row: Row, bound: Bound) -> dict[str, list[cst.Arg]]:
    assert row.signature is not None
    parameters = [p for p in row.signature.parameters.values() if p.kind is not _KINDS.VAR_POSITIONAL]
    given = [p for p in parameters if p.name in bound.values]
    either = [p for p in given if p.kind is _KINDS.POSITIONAL_OR_KEYWORD]
    only_positional = [p for p in given if p.kind is _KINDS.POSITIONAL_ONLY]
    only_keyword = [p for p in given if p.kind is _KINDS.KEYWORD_ONLY]

    def plain(p: inspect.Parameter) -> cst.Arg:
        return cst.Arg(bound.values[p.name].value)

    def keyword(p: inspect.Parameter) -> cst.Arg:
        equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        return cst.Arg(bound.values[p.name].value, keyword=cst.Name(p.name), equal=equal)

    found: dict[str, list[cst.Arg]] = {}
    rest = [cst.Arg(a.value, star=a.star) for a in bound.varargs or ()]
    if rest:
        found["defaults omitted"] = [*[plain(p) for p in only_positional + either if p.default is _KINDS.empty], *rest]
        if len(rest) > 1:
            leading = [plain(p) for p in only_positional + either]
            sequence = cst.Arg(cst.Tuple([cst.Element(a.value) for a in rest]))
            found["one sequence"] = [*leading, sequence, *[keyword(p) for p in only_keyword]]
        return found
    positional, gap = [plain(p) for p in only_positional], False
    for p in parameters:
        if p.kind is _KINDS.POSITIONAL_OR_KEYWORD:
            gap = gap or p.name not in bound.values
            if p.name in bound.values:
                positional.append(keyword(p) if gap else plain(p))
    found["positional"] = [*positional, *[keyword(p) for p in only_keyword]]
    keywords = [keyword(p) for p in either + only_keyword]
    found["keyword"] = [*[plain(p) for p in only_positional], *keywords]
    found["shuffled"] = [*[plain(p) for p in only_positional], *reversed(keywords)]
    needed = [p for p in given if p.default is _KINDS.empty]
    found["defaults omitted"] = [
        keyword(p) if p.kind is _KINDS.KEYWORD_ONLY or p.name in row.when else plain(p)
        for p in given
        if p in needed or p.name in row.when
    ]
    return found


def _with_variables(module: cst.Module, call: cst.Call, bound: Bound, source: str) -> dict[str, str]:
    """The literal arguments of an expression assigned to variables first; a shape also as `*shape`."""
    if "\n" in source.strip() or "(optimizer" in source or re.match(r"^\s*\w+ = ", source):
        return {}
    lines, args = [], []
    for number, arg in enumerate(call.args):
        text = _code(arg.value)
        if re.fullmatch(r"[\w.]+", text) and not re.fullmatch(r"[-\d.e]+|True|False|None", text):
            args.append(arg)
            continue
        lines.append(f"v_{number} = {text}")
        args.append(arg.with_changes(value=cst.Name(f"v_{number}")))
    found = {}
    if lines:
        replaced = module.deep_replace(call, call.with_changes(args=args)).code.strip()  # type: ignore[attr-defined]
        found["variables"] = "\n".join([*lines, f"result = {replaced}"])
    rest = bound.varargs or ()
    if len(rest) > 1 and all(a.keyword is None for a in call.args[: len(rest)]) and len(bound.values) == 0:
        shape = ", ".join(_code(a.value) for a in rest)
        starred = call.with_changes(args=[cst.Arg(cst.Name("shape"), star="*")])
        replaced = module.deep_replace(call, starred).code.strip()  # type: ignore[attr-defined]
        found["starred"] = f"shape = ({shape})\nresult = {replaced}"
    return found


class _Finder(cst.CSTVisitor):
    """Calls of a torch name, or of a method of that name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.member = name, is_member(name)
        self.calls: list[cst.Call] = []

    def visit_Call(self, node: cst.Call) -> None:
        if torch_name(node.func) == self.name:
            self.calls.append(node)
        elif self.member and isinstance(node.func, cst.Attribute) and torch_name(node.func) is None:
            self.calls += [node] if node.func.attr.value == self.name.rpartition(".")[2] else []


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)
