"""`einops` becomes `ms_compat.einops`: the same functions, patterns and errors on MindSpore's tensors."""

from __future__ import annotations

import libcst as cst

from migrate.code.passes.base import Pass
from migrate.code.resolve import dotted

FUNCTIONS = frozenset(
    {"rearrange", "repeat", "reduce", "einsum", "pack", "unpack", "parse_shape", "asnumpy", "EinopsError"}
)
LAYERS = frozenset({"Rearrange", "Reduce", "EinMix"})
_MODULES = {
    "einops": ("einops", FUNCTIONS),
    "einops.einops": ("einops", FUNCTIONS),
    "einops.packing": ("einops", FUNCTIONS),
    "einops.layers.torch": ("einops_layers", LAYERS),
}
"""Module of einops -> helper, and the names that the helper has."""


class EinopsImports(Pass):
    """Only the import statements change; what they bind keeps its name."""

    def small_statement(
        self, original: cst.BaseSmallStatement, updated: cst.BaseSmallStatement
    ) -> cst.BaseSmallStatement | None:
        if not isinstance(original, cst.Import | cst.ImportFrom) or self._is_own(original):
            return None
        if isinstance(original, cst.Import):
            return self._module(original)
        return self._names(original)

    def _is_own(self, node: cst.Import | cst.ImportFrom) -> bool:
        """Whether the repository has a package of that name itself."""
        return self.context.analysis.project.find("einops", self.context.file.source) is not None or (
            isinstance(node, cst.ImportFrom) and bool(node.relative)
        )

    def _module(self, node: cst.Import) -> cst.BaseSmallStatement | None:
        """`import einops`, `import einops.layers.torch as layers`."""
        names = [alias.evaluated_name for alias in node.names]
        if not any(name.split(".")[0] == "einops" for name in names):
            return None
        alias = node.names[0]
        if len(names) > 1 or names[0] not in _MODULES or ("." in names[0] and alias.asname is None):
            wanted = "import it alone, in a line of its own" if len(names) > 1 else "import its names with `from`"
            self.context.report("M114", node, f"einops: {wanted}, and convert again")
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
        if module.split(".")[0] != "einops":
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
