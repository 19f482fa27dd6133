"""Expansion of a table row: bind the arguments of a torch call, refuse what cannot be said, fill the template.

A template is a Python expression with placeholders:

* `$p` is the argument bound to torch parameter `p`, `$self` the receiver of a method.
* `k=$p` disappears when the caller did not give `p`; a positional `$p` disappears when nothing positional follows it
  and is torch's default otherwise. `($p)`, and `$p` inside a larger expression, is always written.
* `$*p` splices a varargs parameter, `$(*p)` is the varargs as one tuple expression.

Dotted names that start with `mindspore.` or `ms_compat.` are shortened by `ALIASES` and reported in
`Expansion.imports`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from mappings.api import ApiTable, Row
from migrate.code.rows.binding import Bound, Refusal, bind, is_literal
from migrate.code.trees.dotted import dotted as dotted_name
from migrate.code.trees.walk import has_comments

__all__ = ["ALIASES", "Expansion", "Refusal", "expand", "expand_symbol", "is_literal", "select"]

ALIASES: Mapping[str, str] = {
    "mindspore": "ms",
    "mindspore.ops": "ops",
    "mindspore.nn": "nn",
    "mindspore.mint": "mint",
}
_ROOTS = ("mindspore", "ms_compat")
_VALUE, _TUPLE = "_ms_value_", "_ms_tuple_"
_PLACEHOLDER = re.compile(r"\$\(\*(\w+)\)|\$\*(\w+)|\$(\w+)")


@dataclass(frozen=True)
class Expansion:
    """A filled template."""

    node: cst.BaseExpression
    row: Row
    """The overload that was applied."""
    imports: frozenset[str]
    """Full dotted names used, e.g. `mindspore.ops.arange`, `ms_compat.optim.AdamW`."""
    lost_comments: tuple[str, ...] = ()
    """Comments that stood between the arguments and have no place in the new expression."""


def expand(
    row: Row,
    args: Sequence[cst.Arg],
    receiver: cst.BaseExpression | None = None,
    target: str = "portable",
    aliases: Mapping[str, str] = ALIASES,
) -> Expansion | Refusal:
    """The MindSpore expression for one call (or, for a row without signature, one use) of a torch name.

    Args:
        row: the overload to apply.
        args: the call's arguments; comments and line breaks between them are kept where they keep their order.
        receiver: the object of a method call or property.
        target: `portable` or `ascend`.
        aliases: local name of each dotted prefix; the longest prefix wins, names without one stay dotted.
    """
    if row.status == "unsupported":
        return Refusal(f"{row.reason} {row.advice}")
    template = row.template(target)
    if template is None:
        return Refusal(f"{row.name} is not an expression; it can only be referenced")
    bound = bind(row, args)
    if isinstance(bound, Refusal):
        return bound
    if receiver is not None:
        bound.values["self"] = cst.Arg(receiver)
    skeleton, uses = _parse(template)
    if "self" in uses and "self" not in bound.values:  # a few functions have a parameter of that name
        return Refusal(f"{row.name} needs an object before the dot")
    if refusal := _check_uses(row, bound, uses):
        return refusal
    filler = _Filler(row, bound, aliases)
    node = skeleton.visit(filler)
    if filler.refusal:
        return filler.refusal
    assert isinstance(node, cst.BaseExpression)
    before, after = _comments(args), Counter(_comments([node]))
    lost = tuple(c for c in before if not after[c])
    return Expansion(node, row, frozenset(filler.imports), lost)


def expand_symbol(row: Row, aliases: Mapping[str, str] = ALIASES) -> Expansion | Refusal:
    """What a torch name becomes where it is referenced without a call: base class, isinstance, annotation, value."""
    if row.status == "unsupported":
        return Refusal(f"{row.reason} {row.advice}")
    dotted = row.symbol or (row.portable if row.signature is None else None)
    if dotted is None or "$" in dotted:
        return Refusal(
            f"{row.name} has no MindSpore counterpart that could be passed as a value; write a lambda that calls it"
        )
    skeleton, _ = _parse(dotted)
    filler = _Filler(row, Bound({}, {}, None), aliases)
    node = skeleton.visit(filler)
    assert isinstance(node, cst.BaseExpression)
    return Expansion(node, row, frozenset(filler.imports))


def select(
    table: ApiTable,
    name: str,
    args: Sequence[cst.Arg],
    receiver: cst.BaseExpression | None = None,
    target: str = "portable",
    aliases: Mapping[str, str] = ALIASES,
) -> Expansion | Refusal:
    """The first overload of `name` that takes the call; otherwise every overload's reason."""
    rows = table.rows(name)
    if not rows:
        return Refusal(f"{name} is not in the table")
    reasons: list[str] = []
    for row in rows:
        result = expand(row, args, receiver, target, aliases)
        if isinstance(result, Expansion):
            return result
        if result.reason not in reasons:
            reasons.append(result.reason)
    return Refusal("; or ".join(reasons))


@lru_cache(maxsize=4096)
def _parse(template: str) -> tuple[cst.BaseExpression, Counter[str]]:
    uses: Counter[str] = Counter()

    def placeholder(match: re.Match[str]) -> str:
        as_tuple, spliced, plain = match.groups()
        name = as_tuple or spliced or plain
        uses[name] += 1
        return f"{_TUPLE}{name}" if as_tuple else f"*{_VALUE}{name}" if spliced else f"{_VALUE}{name}"

    return cst.parse_expression(_PLACEHOLDER.sub(placeholder, template)), uses


def _check_uses(row: Row, bound: Bound, uses: Counter[str]) -> Refusal | None:
    """Every given argument must be placed or droppable, and an expression must not be evaluated twice."""
    for name, argument in bound.values.items():
        text = _code(argument.value)
        if name not in uses and name != "self":
            allowed = row.drop.get(name)
            if allowed not in ("any", text) and text != bound.default(name):
                return Refusal(f"argument {name}={text} of {row.name} has no counterpart")
        if uses[name] > 1 and not _is_simple(argument.value):
            return Refusal(
                f"{name} of {row.name} would be evaluated {uses[name]} times; assign {text} to a variable first"
            )
    if bound.varargs and bound.varargs_name not in uses:
        return Refusal(f"the arguments {bound.varargs_name} of {row.name} have no counterpart")
    return None


class _Filler(cst.CSTTransformer):
    """Replaces placeholders and shortens dotted names."""

    def __init__(self, row: Row, bound: Bound, aliases: Mapping[str, str]) -> None:
        super().__init__()
        self.row, self.bound, self.aliases = row, bound, aliases
        self.imports: set[str] = set()
        self.refusal: Refusal | None = None
        self._handled: set[int] = set()  # names that an enclosing call places itself
        self._bare: set[int] = set()  # names in a position that needs no parentheses
        self._operands: set[int] = set()  # names that a number can replace without parentheses

    # -- where a placeholder stands
    def visit_Call(self, node: cst.Call) -> None:
        builtin = isinstance(node.func, cst.Name)  # `int($p)` is a larger expression, not a call that may go without $p
        for arg in node.args:
            if (
                not builtin
                and isinstance(arg.value, cst.Name)
                and not arg.value.lpar
                and arg.value.value.startswith((_VALUE, _TUPLE))
            ):
                self._handled.add(id(arg.value))
            self._bare.add(id(arg.value))

    def visit_Index(self, node: cst.Index) -> None:
        self._bare.add(id(node.value))

    def visit_Element(self, node: cst.Element) -> None:
        self._bare.add(id(node.value))

    def visit_BinaryOperation(self, node: cst.BinaryOperation) -> None:
        self._operands.update((id(node.left), id(node.right)))

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return dotted_name(node) is None  # a dotted name is handled whole

    # -- replacement
    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        dotted = dotted_name(original_node)
        if dotted is None or dotted.split(".")[0] not in _ROOTS:
            return updated_node if dotted is None else self._attribute_of_value(original_node)
        self.imports.add(dotted)
        parts = dotted.split(".")
        for length in range(len(parts) - 1, 0, -1):
            if alias := self.aliases.get(".".join(parts[:length])):
                return cst.parse_expression(".".join([alias, *parts[length:]]))
        return updated_node

    def _attribute_of_value(self, node: cst.Attribute) -> cst.Attribute:
        value = node.value
        if isinstance(value, cst.Attribute):
            return node.with_changes(value=self._attribute_of_value(value))
        assert isinstance(value, cst.Name)
        return node.with_changes(value=self.leave_Name(value, value))

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        if id(original_node) in self._handled or not original_node.value.startswith((_VALUE, _TUPLE)):
            return updated_node
        value = self._value(original_node.value)
        if value is None:
            return updated_node
        bare = id(original_node) in self._bare
        if id(original_node) in self._operands and isinstance(value, cst.Integer | cst.Float):
            return value
        return _without_doubled_parentheses(value) if bare else _parenthesized(value)

    def leave_StarredElement(  # type: ignore[override]
        self, original_node: cst.StarredElement, updated_node: cst.StarredElement
    ) -> cst.BaseElement | cst.FlattenSentinel[cst.BaseElement]:
        name = original_node.value
        if isinstance(name, cst.Name) and name.value.startswith(_VALUE):
            return cst.FlattenSentinel([_element(a) for a in self.bound.varargs or ()])
        return updated_node

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        placed: list[cst.Arg] = []
        for original, updated in zip(reversed(original_node.args), reversed(updated_node.args), strict=True):
            positional_follows = any(a.keyword is None for a in placed)
            placed = self._place(original, updated, positional_follows) + placed
        return updated_node.with_changes(args=_laid_out(placed, self.bound.given))

    def _place(self, original: cst.Arg, updated: cst.Arg, positional_follows: bool) -> list[cst.Arg]:
        if id(original.value) not in self._handled:
            return [updated]
        assert isinstance(original.value, cst.Name)
        marker = original.value.value
        if original.star:
            return [a.with_changes(keyword=None) for a in self.bound.varargs or ()]
        if marker.startswith(_TUPLE):
            value = self._value(marker)
            return [] if value is None else [original.with_changes(value=value)]
        given = self.bound.values.get(marker.removeprefix(_VALUE))
        if given is None:
            if original.keyword is not None or not positional_follows:
                return []
            value = self._value(marker)
            return [] if value is None else [original.with_changes(value=value)]
        value = given.value
        if isinstance(value, cst.GeneratorExp | cst.NamedExpr | cst.Yield) and not value.lpar:
            value = _parenthesized(value)
        equal: cst.AssignEqual | cst.MaybeSentinel = cst.MaybeSentinel.DEFAULT
        if original.keyword is not None:
            equal = cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace(""))
        return [given.with_changes(keyword=original.keyword, equal=equal, value=value)]

    def _value(self, marker: str) -> cst.BaseExpression | None:
        """The expression of a placeholder; torch's default when absent; records a refusal when there is none."""
        if marker.startswith(_TUPLE):
            return _tuple(self.bound.varargs or ())
        name = marker.removeprefix(_VALUE)
        if name in self.bound.values:
            return self.bound.values[name].value
        default = self.bound.default(name)
        if default is None:
            self.refusal = Refusal(f"{self.row.name} is called without {name}, which the conversion needs")
            return None
        return cst.parse_expression(default)


def _tuple(varargs: Sequence[cst.Arg]) -> cst.BaseExpression:
    """`(2, 3)` for several arguments or a number; a lone other argument may be a tuple itself and is left as it is."""
    if len(varargs) == 1 and not varargs[0].star and not isinstance(varargs[0].value, cst.Integer | cst.UnaryOperation):
        return varargs[0].value
    return cst.Tuple([_element(a) for a in varargs])


def _element(argument: cst.Arg) -> cst.BaseElement:
    return cst.StarredElement(argument.value) if argument.star else cst.Element(argument.value)


def _laid_out(args: list[cst.Arg], given: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Commas, line breaks and comments as in the original call, as far as the arguments kept their place."""
    if not args:
        return args
    plain = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    result = []
    for arg in args[:-1]:
        if isinstance(arg.comma, cst.MaybeSentinel):
            arg = arg.with_changes(comma=plain, whitespace_after_arg=cst.SimpleWhitespace(""))
        result.append(arg)
    return [*result, _as_last(args[-1], given[-1] if given else None)]


def _as_last(arg: cst.Arg, final: cst.Arg | None) -> cst.Arg:
    """`arg` in last place: a closing bracket on its own line stays there, else the comma before it goes."""
    if final is None or isinstance(arg.comma, cst.MaybeSentinel):
        return arg
    space = arg.comma.whitespace_after
    ending = final.whitespace_after_arg if isinstance(final.comma, cst.MaybeSentinel) else final.comma.whitespace_after
    if not isinstance(ending, cst.ParenthesizedWhitespace):
        return arg.with_changes(comma=cst.MaybeSentinel.DEFAULT)
    if isinstance(space, cst.ParenthesizedWhitespace):
        ending = space.with_changes(indent=ending.indent, last_line=ending.last_line)
    return arg.with_changes(comma=cst.Comma(whitespace_after=ending))


_ATOMS = (
    cst.Name,
    cst.Attribute,
    cst.Call,
    cst.Subscript,
    cst.SimpleString,
    cst.FormattedString,
    cst.List,
    cst.ListComp,
    cst.Dict,
    cst.DictComp,
    cst.Set,
    cst.SetComp,
)


def _parenthesized(node: cst.BaseExpression) -> cst.BaseExpression:
    if node.lpar or (isinstance(node, _ATOMS) and not _has_open_line_break(node)):
        return node
    return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _has_open_line_break(node: cst.BaseExpression) -> bool:
    """Whether a line break stands outside of the expression's own brackets, where only an outer bracket protects it."""
    if node.lpar:
        return False
    if isinstance(node, cst.Call):
        return _has_open_line_break(node.func)
    if isinstance(node, cst.Subscript):
        return _has_open_line_break(node.value)
    if isinstance(node, cst.Attribute):
        return "\n" in _code(node.dot) or _has_open_line_break(node.value)
    return False


def _without_doubled_parentheses(node: cst.BaseExpression) -> cst.BaseExpression:
    return _parenthesized(node) if isinstance(node, cst.GeneratorExp | cst.NamedExpr | cst.Yield | cst.Tuple) else node


def _is_simple(node: cst.BaseExpression) -> bool:
    """Whether writing the expression twice costs and changes nothing."""
    return dotted_name(node) is not None or is_literal(node)


def _code(node: cst.CSTNode) -> str:
    return cst.Module([]).code_for_node(node)


class _CommentCollector(cst.CSTVisitor):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def visit_Comment(self, node: cst.Comment) -> None:
        self.found.append(node.value)


def _comments(nodes: Sequence[cst.CSTNode]) -> list[str]:
    collector = _CommentCollector()
    for node in nodes:
        if has_comments(node):  # seldom, and the visitor is slow
            node.visit(collector)
    return collector.found
