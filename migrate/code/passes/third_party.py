"""Imports that need torch although they do not spell it, and star imports of torch."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst
import libcst.matchers as m

from mappings.transformers import PACKAGES, load_transformers
from migrate.code.context import FileContext
from migrate.code.names.resolve import Resolver
from migrate.code.names.torch_packages import TORCH_PACKAGES, torch_package
from migrate.code.passes.base import Pass
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk

_FAILURES = ("ImportError", "ModuleNotFoundError", "Exception", "BaseException")


class ThirdParty(Pass):
    """Reports; changes nothing."""

    enters = (cst.Try, cst.If, cst.Import, cst.ImportFrom)

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._optional: set[cst.CSTNode] = set()
        """Imports that the program does without, or that only a type checker reads."""

    def enter(self, node: cst.CSTNode) -> None:
        self._optional.update(optional_imports(node, self.context.resolver))
        if isinstance(node, cst.Import):
            for alias in node.names:
                self._check(node, alias.evaluated_name)
        elif isinstance(node, cst.ImportFrom) and not node.relative:
            module = dotted(node.module) or ""
            if isinstance(node.names, cst.ImportStar):
                if module.split(".")[0] == "torch":
                    self.context.counts.add(module, converted=False)
                    self.context.report("M103", node, f"from {module} import *")
                else:
                    self._check(node, module)
            elif torch_package(module):
                self._check(node, module)
            else:
                for alias in node.names:  # `from safetensors import torch`
                    self._check(node, f"{module}.{alias.evaluated_name}")

    def _check(self, node: cst.CSTNode, module: str) -> None:
        name = torch_package(module)
        if name is None or name in PACKAGES or node in self._optional:  # by `transformers_imports`, name by name
            return
        if self.context.analysis.project.find(module, self.context.file.source):
            return
        self.context.report("M114", node, f"{name}: {TORCH_PACKAGES[name]}")


def optional_imports(node: cst.CSTNode, resolver: Resolver) -> Iterator[cst.CSTNode]:
    """Imports in a block that may fail without harm, or that only a type checker reads; none for other nodes.

    `if is_flash_attn_2_available():` of transformers does not hold where torch is not installed.
    """
    if (isinstance(node, cst.Try) and _expects_failure(node)) or (
        isinstance(node, cst.If) and (m.matches(node.test, _TYPE_CHECKING) or _asks_transformers(node.test, resolver))
    ):
        yield from (n for n in walk(node.body) if isinstance(n, cst.Import | cst.ImportFrom))


def _asks_transformers(test: cst.BaseExpression, resolver: Resolver) -> bool:
    """Whether a condition is transformers' question for a package that needs torch."""
    name = resolver.qualified(test.func) if isinstance(test, cst.Call) else None
    entry = load_transformers().entry(name or "")
    return name is not None and entry is not None and entry.helper is None and bool(_QUESTION.fullmatch(name))


_QUESTION = re.compile(r"transformers\.(.*\.)?is_\w+_available")
_TYPE_CHECKING = m.Name("TYPE_CHECKING") | m.Attribute(attr=m.Name("TYPE_CHECKING"))


def _expects_failure(node: cst.Try) -> bool:
    """Whether the program goes on when an import in the block fails."""
    for handler in node.handlers:
        kinds = [handler.type] if handler.type is not None else []
        if handler.type is not None and isinstance(handler.type, cst.Tuple):
            kinds = [element.value for element in handler.type.elements]
        catches = handler.type is None or any(isinstance(k, cst.Name) and k.value in _FAILURES for k in kinds)
        if catches:
            return not any(isinstance(n, cst.Raise) for n in walk(handler.body))
    return False
