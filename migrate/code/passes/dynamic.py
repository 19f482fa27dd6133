"""`getattr(torch, "float32")` and `hasattr(F, "gelu")`: names given as strings."""

from __future__ import annotations

import libcst as cst

from mappings.api import Standing, known_names
from migrate.code.context import code_of
from migrate.code.passes.base import Pass
from migrate.code.passes.names import as_value, missing
from migrate.code.rows.template import Expansion, Refusal


class Dynamic(Pass):
    """`getattr` and `hasattr` on a torch module or class."""

    enters = (cst.Call,)

    rule = "C209"

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
            if (chosen := self._chosen(subject, original, updated)) is not None:
                return chosen
            self.context.counts.add(subject, converted=False)
            self.context.report("M113", original, f"{code_of(original)} picks a name of {subject} at run time")
            return updated
        name = f"{subject}.{attribute.raw_value}"
        table = self.context.table
        if self.context.resolver.qualified(original.func) == "builtins.hasattr":
            # what the converted program can use is what it has: a name without counterpart takes the other branch
            usable = table.standing(name) is Standing.MAPPED or table.has_members(name)
            self.context.counts.add(name, converted=True)
            return cst.Name("True" if usable else "False")
        rows = table.rows(name)
        found = as_value(rows, self.context.target) if rows else Refusal(missing(table, name))
        if isinstance(found, Expansion):
            self.context.counts.add(name, converted=True)
            return found.node
        if len(updated.args) == 3 and table.standing(name) is Standing.UNKNOWN and known_module(subject):
            self.context.counts.add(subject, converted=True)
            return updated.args[2].value  # torch does not have the name either
        self.context.counts.add(name, converted=False)
        code = "M110" if not rows else "M113" if table.has_members(name) else "M111"
        self.context.report(code, original, f"{name}: {found.reason}" if rows else found.reason)
        return updated

    def _chosen(self, subject: str, original: cst.Call, updated: cst.Call) -> cst.BaseExpression | None:
        """`{"LayerNorm": LayerNorm, "RMSNorm": RMSNorm}[name]` where a field's annotation lists the names."""
        choices = self._choices(original.args[1].value)
        if not choices or len(original.args) != 2 or code_of(original.func) != "getattr":
            return None
        elements: list[cst.DictElement] = []
        for choice in choices:
            found = as_value(self.context.table.rows(f"{subject}.{choice.raw_value}"), self.context.target)
            if not isinstance(found, Expansion):
                return None
            elements.append(cst.DictElement(choice, found.node))
        for choice in choices:
            self.context.counts.add(f"{subject}.{choice.raw_value}", converted=True)
        index = cst.SubscriptElement(cst.Index(updated.args[1].value))
        return cst.Subscript(cst.Dict(elements), [index])

    def _choices(self, node: cst.BaseExpression) -> list[cst.SimpleString]:
        """The texts of `Literal["a", "b"]` that annotates a field of a class of the repository."""
        if not isinstance(node, cst.Attribute):
            return []
        symbols, owner = self.context.symbols, self.context.type_of(node.value)
        for name in symbols.lineage(owner.name) if owner.kind == "object" else ():
            info = symbols.classes.get(name)
            annotation = info.fields[node.attr.value].annotation if info and node.attr.value in info.fields else None
            if info and isinstance(annotation, cst.Subscript):
                if info.resolver.qualified(annotation.value) not in _LITERALS:
                    return []
                texts = [e.slice.value for e in annotation.slice if isinstance(e.slice, cst.Index)]
                strings = [text for text in texts if isinstance(text, cst.SimpleString)]
                return strings if len(strings) == len(annotation.slice) else []
        return []


_LITERALS = ("typing.Literal", "typing_extensions.Literal")


def known_module(name: str) -> bool:
    """Whether every public name of a module of torch is listed; `torch.ops` and the like are filled at run time."""
    return name == "torch" or (name in known_names() and not name.startswith(("torch.ops", "torch.classes")))
