"""Names of torch that the syntax does not show: in texts that are executed, in modules imported by a text.

And functions of torch that the program replaces (`nn.init.normal_ = skip`): the converted layers call others.
"""

from __future__ import annotations

import re

import libcst as cst

from migrate.code.context import code_of
from migrate.code.passes.base import Pass

_EXECUTE = ("builtins.eval", "builtins.exec", "builtins.compile")
_IMPORT = ("builtins.__import__", "importlib.import_module")


class ExecutedTexts(Pass):
    """Reports; changes nothing."""

    rule = None
    enters = ()

    def call(self, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        function = self.context.resolver.qualified(original.func)
        if function not in (*_EXECUTE, *_IMPORT) or not original.args:
            return None
        text = original.args[0].value
        if isinstance(text, cst.SimpleString | cst.ConcatenatedString):
            found = str(text.evaluated_value)
            words = {"torch"} if function in _IMPORT else {"torch", *self._torch_names()}
            if any(re.search(rf"(?<![\w.]){re.escape(word)}(?!\w)", found) for word in words):
                self.context.report("M113", original, f"{code_of(original)}: the text names torch")
        elif function in _EXECUTE and self.context.uses_torch:
            self.context.report("M116", original, code_of(original))
        return None

    def _torch_names(self) -> set[str]:
        return {name for name, full in self.context.resolver.imports.items() if full.split(".")[0] == "torch"}

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        for target in original.targets if isinstance(original, cst.Assign) else ():
            name = self.context.torch_name(target.target) if isinstance(target.target, cst.Attribute) else None
            if name is None:
                continue
            rows = self.context.table.rows(name)
            # A switch has a row of its own; a method of a class is replaced in the converted class.
            if (rows and rows[0].signature is not None) or (not rows and not self._is_class(name.rpartition(".")[0])):
                self.context.report("M117", original, f"{name} is replaced")
        return None

    def _is_class(self, name: str) -> bool:
        return any(
            row.symbol and row.returns in ("module", "optimizer", "scheduler") for row in self.context.table.rows(name)
        )
