"""Calls with `*args` or `**kwargs`, whose number and names are not known before the program runs.

They can be passed on where MindSpore's function takes the same arguments in the same places:

* `**kwargs`: every torch parameter that the call does not give itself is a keyword of the same name in the template.
  Arguments that the row drops, such as `device`, are taken out when the program runs; a name that the MindSpore
  function does not know raises there.
* `*args`: the positional arguments of the template are torch's positional parameters, all and in their order.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace

import libcst as cst
import libcst.matchers as m

from mappings.api import ApiTable, Row
from migrate.code.rows.template import ALIASES, Expansion, Refusal, expand

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def select_unpacked(
    table: ApiTable,
    name: str,
    args: Sequence[cst.Arg],
    receiver: cst.BaseExpression | None = None,
    target: str = "portable",
    aliases: Mapping[str, str] = ALIASES,
) -> Expansion | None:
    """The first overload of `name` that can pass on what the stars give; None when there is none."""
    for row in table.rows(name):
        # Whether a condition holds depends on what the stars give.
        if row.signature is not None and not row.when and row.status != "unsupported":
            found = _passed_on(row, args, receiver, target, aliases)
            if found is not None:
                return found
    return None


def _passed_on(
    row: Row, args: Sequence[cst.Arg], receiver: cst.BaseExpression | None, target: str, aliases: Mapping[str, str]
) -> Expansion | None:
    keywords = [arg for arg in args if arg.star == "**"]
    plain = [arg for arg in args if arg.star != "**"]
    starred = any(arg.star for arg in plain)
    assert row.signature is not None
    parameters = row.signature.parameters.values()
    if len(keywords) > 1 or (keywords and keywords[0] is not args[-1]) or (keywords and starred):
        return None
    positional = [p.name for p in parameters if p.kind in _POSITIONAL]
    if starred:
        given = [arg for arg in plain if arg.keyword is None]
        plain = [*(cst.Arg(cst.Name(name)) for name in positional), *(a for a in plain if a.keyword is not None)]
    found = expand(row, [_last(arg) for arg in plain], receiver, target, aliases)
    if isinstance(found, Refusal) or not isinstance(found.node, cst.Call):
        return None
    call = found.node
    if starred:
        placed = [arg for arg in call.args if arg.keyword is None]
        if [getattr(arg.value, "value", None) for arg in placed] != positional:
            return None
        all_args = [*given, *call.args[len(placed) :]]
        return replace(found, node=call.with_changes(args=[*all_args[:-1], _last(all_args[-1])]))
    taken = _keywords_of(row, target)
    first = sum(arg.keyword is None for arg in plain)
    named = {arg.keyword.value for arg in plain if arg.keyword is not None}
    open_names = {p.name for p in parameters} - set(positional[:first]) - named
    if open_names - taken - set(row.drop) or any(arg.star for arg in call.args):
        return None
    dropped = sorted(name for name in open_names - taken if row.drop[name] == "any")
    rest = keywords[0].with_changes(value=_without(keywords[0].value, dropped)) if dropped else keywords[0]
    return replace(found, node=call.with_changes(args=[*call.args, rest]))


def _last(arg: cst.Arg) -> cst.Arg:
    return arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)


def _keywords_of(row: Row, target: str) -> set[str]:
    """Parameters that the template passes on as keywords of the same name."""
    template = row.template(target) or ""
    placed = cst.parse_expression(template.replace("$*", "*p_").replace("$(*", "(*p_").replace("$", "p_"))
    if not isinstance(placed, cst.Call):
        return set()
    return {
        arg.keyword.value
        for arg in placed.args
        if arg.keyword is not None and m.matches(arg.value, m.Name(f"p_{arg.keyword.value}"))
    }


def _without(mapping: cst.BaseExpression, names: Sequence[str]) -> cst.BaseExpression:
    """`{name: value for name, value in mapping.items() if name not in names}`."""
    test = f'!= "{names[0]}"' if len(names) == 1 else "not in (" + ", ".join(f'"{name}"' for name in names) + ")"
    items = cst.Call(cst.Attribute(mapping, cst.Name("items")))
    comprehension = cst.parse_expression(f"{{name: value for name, value in x if name {test}}}")
    assert isinstance(comprehension, cst.DictComp)
    return comprehension.with_changes(for_in=comprehension.for_in.with_changes(iter=items))
