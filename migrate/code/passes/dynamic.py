"""`getattr(torch, "float32")` and `hasattr(F, "gelu")`: names given as strings."""

from __future__ import annotations

import libcst as cst

from migrate.code.context import code_of
from migrate.code.passes.base import Pass
from migrate.code.template import Expansion, expand, expand_symbol


class Dynamic(Pass):
    """`getattr` and `hasattr` on a torch module or class."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Call) and self._subject(node):
            subject: cst.BaseExpression = node.args[0].value
            while True:
                self.context.owned.add(subject)
                if not isinstance(subject, cst.Attribute):
                    return
                subject = subject.value

    def _subject(self, node: cst.Call) -> str | None:
        function = self.context.resolver.qualified(node.func)
        if function not in ("builtins.getattr", "builtins.hasattr") or len(node.args) < 2 or node.args[0].star:
            return None
        return self.context.torch_name(node.args[0].value)

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        subject = self._subject(original)
        if subject is None:
            return None
        attribute = original.args[1].value
        if not isinstance(attribute, cst.SimpleString):
            self.context.counts.add(subject, converted=False)
            self.context.report("M113", original, f"{code_of(original)} picks a name of {subject} at run time")
            return updated
        name = f"{subject}.{attribute.raw_value}"
        supported = [row for row in self.context.table.rows(name) if row.status != "unsupported"]
        if self.context.resolver.qualified(original.func) == "builtins.hasattr":
            self.context.counts.add(name, converted=True)
            return cst.Name("True" if supported else "False")
        for row in supported:
            found = expand(row, (), None, self.context.target, {}) if row.signature is None and row.portable else None
            found = found if isinstance(found, Expansion) else expand_symbol(row, {})
            if isinstance(found, Expansion):
                self.context.counts.add(name, converted=True)
                return found.node
        self.context.counts.add(name, converted=False)
        self.context.report("M110", original, f"{name} has no counterpart that could be passed as a value")
        return updated
