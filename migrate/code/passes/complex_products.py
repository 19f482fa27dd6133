"""Products of complex numbers: `a * b` -> `product(a, b)`, since MindSpore has no gradient of its own product."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from migrate.code.context import FileContext
from migrate.code.passes.base import Pass
from migrate.code.trees.walk import walk

PRODUCT = "ms_compat.complex_views.product"
_MAKERS = frozenset({"torch.view_as_complex", "torch.polar", "torch.complex"})
_EMPTY = cst.Module([])
_KEEPS = m.Attribute(
    attr=m.OneOf(*(m.Name(n) for n in ("view", "reshape", "unsqueeze", "squeeze", "transpose", "conj", "to")))
)


class ComplexProducts(Pass):
    """Where one side is visibly complex: made by torch's functions for it, directly or through local names."""

    enters = (cst.FunctionDef,)

    rule = "C208"

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._functions: list[dict[str, list[cst.BaseExpression]]] = []

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.FunctionDef):
            assigned: dict[str, list[cst.BaseExpression]] = {}
            for found in walk(node.body):
                if isinstance(found, cst.Assign) and len(found.targets) == 1:
                    target = found.targets[0].target
                    if isinstance(target, cst.Name):
                        assigned.setdefault(target.value, []).append(found.value)
            self._functions.append(assigned)

    def function(self, original: cst.FunctionDef, updated: cst.FunctionDef) -> None:
        self._functions.pop()

    def operation(self, original: cst.BinaryOperation, updated: cst.BinaryOperation) -> cst.BaseExpression | None:
        if not isinstance(original.operator, cst.Multiply):
            return None
        if not (self._is_complex(original.left) or self._is_complex(original.right)):
            return None
        # Line breaks and comments around the operator stay around the comma.
        operator = updated.operator
        assert isinstance(operator, cst.Multiply)
        before, after = operator.whitespace_before, operator.whitespace_after
        broken = isinstance(before, cst.ParenthesizedWhitespace), isinstance(after, cst.ParenthesizedWhitespace)
        comma = cst.Comma(
            before if broken[0] else cst.SimpleWhitespace(""), after if broken[1] else cst.SimpleWhitespace(" ")
        )
        call = cst.Call(cst.parse_expression(PRODUCT), [cst.Arg(updated.left, comma=comma), cst.Arg(updated.right)])
        commented = any("#" in _EMPTY.code_for_node(paren) for paren in (*updated.lpar, *updated.rpar))
        return call.with_changes(lpar=updated.lpar, rpar=updated.rpar) if commented else call

    def _is_complex(self, node: cst.BaseExpression, depth: int = 0) -> bool:
        if depth > 20:
            return False
        if isinstance(node, cst.Name):
            values = self._functions[-1].get(node.value, []) if self._functions else []
            return bool(values) and all(self._is_complex(value, depth + 1) for value in values)
        if isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply | cst.Divide):
            return self._is_complex(node.left, depth + 1) or self._is_complex(node.right, depth + 1)
        if isinstance(node, cst.Subscript):
            return self._is_complex(node.value, depth + 1)
        if isinstance(node, cst.Call):
            if self.context.torch_name(node.func) in _MAKERS:
                return True
            if m.matches(node.func, _KEEPS):
                assert isinstance(node.func, cst.Attribute)
                return self._is_complex(node.func.value, depth + 1)
        return False
