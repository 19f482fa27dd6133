"""One row of the table: a torch name (one overload of it), its signature and the MindSpore expression it becomes."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

STATUSES = ("same", "rename", "default_differs", "behaviour_differs", "helper", "unsupported")
CONDITIONS = ("given", "absent", "literal", "integer type")
_TEXT_FIELDS = ("signature", "portable", "ascend", "symbol", "returns", "note", "reason", "advice", "versions")
DEFAULT_VERSIONS = ">=2.10"
_VERSIONS = re.compile(r"(>=|<=|==|<|>|!=)\d+(\.\d+)*(,(>=|<=|==|<|>|!=)\d+(\.\d+)*)*")
_FIELDS = {"name", "status", "drop", "when", *_TEXT_FIELDS}


@dataclass(frozen=True)
class Row:
    """One overload of one torch name. Template rules: `docs/architecture.md` and `migrate/code/rows/template.py`."""

    name: str
    """Canonical qualified torch name, `torch.Tensor.view` for a tensor method."""
    status: str
    """One of `STATUSES`."""
    signature: inspect.Signature | None = None
    """torch's parameters; a default is the *source text* of torch's. None: no callable (a constant, a property)."""
    portable: str | None = None
    """Expression template proved on CPU."""
    ascend: str | None = None
    """Template for Ascend, where it differs."""
    symbol: str | None = None
    """Dotted name when the thing is referenced without a call: base class, isinstance, annotation, value."""
    drop: Mapping[str, str] = field(default_factory=dict)
    """Arguments that may vanish: `any`, or only when their source is exactly this text."""
    when: Mapping[str, str] = field(default_factory=dict)
    """Extra conditions on arguments, each one of `CONDITIONS`."""
    returns: str | None = None
    note: str | None = None
    reason: str | None = None
    advice: str | None = None
    versions: str = DEFAULT_VERSIONS
    """MindSpore versions that the row is proved on, as a version specifier."""
    source: str = ""
    """File and position of the row, for messages."""

    def template(self, target: str = "portable") -> str | None:
        """The template of a target; `ascend` falls back on `portable`."""
        return self.ascend or self.portable if target == "ascend" else self.portable

    def digest(self) -> str:
        """Short hash of what the row claims to do; words (note, reason, advice) do not count."""
        claim: list[object] = [self.name, self.status, str(self.signature), self.portable, self.ascend, self.symbol]
        claim += [sorted(self.drop.items()), sorted(self.when.items()), self.returns, self.versions]
        return hashlib.sha256(json.dumps(claim).encode()).hexdigest()[:12]


def parse_signature(text: str) -> inspect.Signature:
    """`"a, b=1, *, c=None"` as a signature whose defaults are source text.

    Raises:
        ValueError: the text is no parameter list.
    """
    try:
        arguments = ast.parse(f"def f({text}): ...").body[0].args  # type: ignore[attr-defined]
    except SyntaxError as error:
        raise ValueError(f"signature {text!r} is no parameter list") from error
    kinds = inspect.Parameter
    positional: list[tuple[ast.arg, Any]] = [(a, kinds.POSITIONAL_ONLY) for a in arguments.posonlyargs]
    positional += [(a, kinds.POSITIONAL_OR_KEYWORD) for a in arguments.args]
    missing = len(positional) - len(arguments.defaults)
    defaults = [None] * missing + list(arguments.defaults)
    found = [_parameter(a, kind, default) for (a, kind), default in zip(positional, defaults, strict=True)]
    if arguments.vararg:
        found.append(_parameter(arguments.vararg, kinds.VAR_POSITIONAL, None))
    keyword_only = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found += [_parameter(a, kinds.KEYWORD_ONLY, default) for a, default in keyword_only]
    if arguments.kwarg:
        raise ValueError(f"signature {text!r} has **{arguments.kwarg.arg}, which a template cannot place")
    return inspect.Signature(found)


def _parameter(argument: ast.arg, kind: Any, default: ast.expr | None) -> inspect.Parameter:
    text = inspect.Parameter.empty if default is None else ast.unparse(default)
    return inspect.Parameter(argument.arg, kind, default=text)


def parse_row(entry: Any, source: str) -> Row:
    """A typed row from one entry of a file.

    Raises:
        ValueError: the entry breaks the schema; the message begins with `source`.
    """

    def fault(message: str) -> ValueError:
        return ValueError(f"{source}: {message}")

    if not isinstance(entry, dict):
        raise fault(f"a row is a mapping, not {type(entry).__name__}")
    name = entry.get("name")
    if not isinstance(name, str) or not name.startswith("torch"):
        raise fault(f"name must be a torch name, not {name!r}")
    source = f"{source} ({name})"
    if unknown := set(entry) - _FIELDS:
        raise fault(f"unknown keys {sorted(unknown)}; known are {sorted(_FIELDS)}")
    for key in _TEXT_FIELDS:
        if key in entry and not isinstance(entry[key], str):
            raise fault(f"{key} must be text, not {entry[key]!r}")
    status = entry.get("status")
    if status not in STATUSES:
        raise fault(f"status {status!r} is none of {', '.join(STATUSES)}")
    if status == "unsupported":
        if not entry.get("reason") or not entry.get("advice"):
            raise fault("an unsupported row needs reason and advice")
        if "portable" in entry or "ascend" in entry:
            raise fault("an unsupported row has no template")
    elif "portable" not in entry and "symbol" not in entry:
        raise fault("a supported row needs a portable template or a symbol")
    signature = None
    if "signature" in entry:
        try:
            signature = parse_signature(entry["signature"])
        except ValueError as error:
            raise fault(str(error)) from error
    parameters = set(signature.parameters) if signature else set()
    drop, when = entry.get("drop", {}), entry.get("when", {})
    for key, table in (("drop", drop), ("when", when)):
        if not isinstance(table, dict) or not all(isinstance(v, str) for v in table.values()):
            raise fault(f"{key} must map parameters to text")
        if strangers := set(table) - parameters:
            raise fault(f"{key} names {sorted(strangers)}, which the signature lacks")
    if wrong := set(when.values()) - set(CONDITIONS):
        raise fault(f"when has {sorted(wrong)}; conditions are {', '.join(CONDITIONS)}")
    if not _VERSIONS.fullmatch(entry.get("versions", DEFAULT_VERSIONS)):
        raise fault(f"versions {entry['versions']!r} is no list of bounds such as '>=2.10,<3'")
    texts = {key: entry[key] for key in _TEXT_FIELDS if key != "signature" and key in entry}
    return Row(name=name, status=status, signature=signature, drop=drop, when=when, source=source, **texts)
