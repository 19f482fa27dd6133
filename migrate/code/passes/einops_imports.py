"""`einops` becomes `ms_compat.einops`: the same functions, patterns and errors on MindSpore's tensors.

Of `einx`, which is much larger, `ms_compat.einx` has the elementwise operations, the reductions without brackets and
`get_at` along one axis; a file that uses more of it keeps its import, with a finding.
"""

from __future__ import annotations

import re

import libcst as cst

from migrate.code.passes.base import Pass
from migrate.code.trees.dotted import dotted
from migrate.code.trees.walk import walk

FUNCTIONS = frozenset(
    {"rearrange", "repeat", "reduce", "einsum", "pack", "unpack", "parse_shape", "asnumpy", "EinopsError"}
)
LAYERS = frozenset({"Rearrange", "Reduce", "EinMix"})
EINX = frozenset(
    {
        "add", "subtract", "multiply", "divide", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal",
        "logical_and", "logical_or", "where", "sum", "mean", "max", "min", "prod", "any", "all", "get_at",
    }
)  # fmt: skip
_MODULES = {
    "einx": ("einx", EINX),
    "einops": ("einops", FUNCTIONS),
    "einops.einops": ("einops", FUNCTIONS),
    "einops.packing": ("einops", FUNCTIONS),
    "einops.layers.torch": ("einops_layers", LAYERS),
}
"""Module -> helper, and the names that the helper has."""
_PACKAGES = ("einops", "einx")
_TAKING = re.compile(r"[\w\s]*\[\s*\w+\s*\][\w\s]*,[\w\s]*->[\w\s]*")
"""`b n [l], b n -> b n`: one axis in brackets, and nothing but names otherwise."""


class EinopsImports(Pass):
    """Only the import statements change; what they bind keeps its name."""

    rule = "C303"

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if isinstance(original, cst.Import):
            return self._module(original)
        if isinstance(original, cst.ImportFrom) and not original.relative:
            return self._names(original)
        return None

    def _is_package(self, module: str) -> bool:
        """Whether a module belongs to one of the libraries, and not to the repository."""
        package = module.split(".")[0]
        return package in _PACKAGES and self.context.analysis.project.find(package, self.context.file.source) is None

    def _module(self, node: cst.Import) -> cst.BaseSmallStatement | None:
        """`import einops`, `import einops.layers.torch as layers`."""
        names = [alias.evaluated_name for alias in node.names]
        ours = [name for name in names if self._is_package(name)]
        if not ours:
            return None
        alias = node.names[0]
        if (reason := self._beyond_einx()) and any(name.split(".")[0] == "einx" for name in ours):
            self.context.report("M114", node, reason)
            return None
        if len(names) > 1 or names[0] not in _MODULES or ("." in names[0] and alias.asname is None):
            wanted = "import it alone, in a line of its own" if len(names) > 1 else "import its names with `from`"
            self.context.report("M114", node, f"{ours[0].split('.')[0]}: {wanted}, and convert again")
            return None
        return self._from_package(names[0], alias.evaluated_alias)

    def _from_package(self, module: str, local: str | None) -> cst.ImportFrom:
        helper = _MODULES[module][0]
        self.context.helpers.add(helper)
        asname = cst.AsName(cst.Name(local)) if local and local != helper else None
        return cst.ImportFrom(cst.Name("ms_compat"), [cst.ImportAlias(cst.Name(helper), asname)])

    def _names(self, node: cst.ImportFrom) -> cst.BaseSmallStatement | None:
        """`from einops import rearrange`."""
        module = dotted(node.module) or ""
        if not self._is_package(module):
            return None
        if module.split(".")[0] == "einx" and (reason := self._beyond_einx()):
            self.context.report("M114", node, reason)
            return None
        if isinstance(node.names, cst.ImportStar):
            missing = [] if module in _MODULES else ["*"]
        else:
            names = [alias.evaluated_name for alias in node.names]
            if len(names) == 1 and f"{module}.{names[0]}" in _MODULES and names[0] not in FUNCTIONS:
                return self._from_package(f"{module}.{names[0]}", node.names[0].evaluated_alias or names[0])
            missing = [name for name in names if module not in _MODULES or name not in _MODULES[module][1]]
        if missing:
            self.context.report("M114", node, f"{module}.{missing[0]} has no counterpart in ms_compat; write it out")
            return None
        helper = _MODULES[module][0]
        self.context.helpers.add(helper)
        return node.with_changes(module=cst.Attribute(cst.Name("ms_compat"), cst.Name(helper)))

    def _beyond_einx(self) -> str | None:
        """What the file uses of einx that the helper does not have."""
        for node in walk(self.context.file.tree):
            if isinstance(node, cst.Call) and (name := self._einx_name(node.func)):
                pattern = node.args[0].value if node.args else None
                text = str(pattern.evaluated_value) if isinstance(pattern, cst.SimpleString) else ""
                if name == "einx.get_at" and not _TAKING.fullmatch(text):
                    return f"{name} of other than one axis has no counterpart in ms_compat; write it with torch.gather"
                if name != "einx.get_at" and "[" in text:
                    return f"{name} with axes in brackets has no counterpart in ms_compat; write it with einops"
            elif isinstance(node, cst.Attribute):
                name = self._einx_name(node)
                if name is not None and name.removeprefix("einx.") not in EINX:
                    return f"{name} has no counterpart in ms_compat; write it with einops"
        return None

    def _einx_name(self, node: cst.BaseExpression) -> str | None:
        name = self.context.resolver.qualified(node)
        return name if name is not None and name.startswith("einx.") else None
