"""Checks a family file against its schema and makes the `Family` of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mappings.expressions import check
from mappings.families.atoms import CLASSES
from mappings.families.encodings import ENCODINGS
from mappings.families.family import BARE, HF, PREFIXED, Family
from mappings.families.packing import check_packing
from mappings.families.patterns import EXPERT, LAYER, has_layer
from mappings.families.shared import shared_spellings

REQUIRED = {"family", "model_types", "architectures", "dimensions", "flags", "parameters", "ignored", "tied"}
FIELDS = REQUIRED | {
    "lists",
    "layers",
    "layer_count",
    "spellings",
    "encodings",
    "note",
    "base",
    "optional_layers",
    "shared_spellings",
}
CONDITIONS = {"when", "unless", "in"}
CUT_FIELDS = {"shape", "cut", "unit", "padded", "grouped"}
ROW_FIELDS = {"name", "class", "stage", "optional", "dtype", "parts", "is"} | CUT_FIELDS | CONDITIONS
SPELLED_FIELDS = {"name", "of", "is", "encoding"} | CONDITIONS


class _Checker:
    """The file being checked, and the names its expressions may use."""

    def __init__(self, path: Path, data: Any) -> None:
        self.path = path
        self.fields("the file", data, FIELDS, REQUIRED)
        self.data = data
        self.sizes = frozenset(data["dimensions"])
        self.known = self.sizes | set(data["flags"]) | set(data.get("lists", {}))

    def fault(self, where: str, what: str) -> ValueError:
        return ValueError(f"{self.path.name}: {where}: {what}")

    def fields(self, where: str, data: Any, allowed: set[str], required: set[str]) -> None:
        if not isinstance(data, dict):
            raise self.fault(where, f"must be a mapping, found {type(data).__name__}")
        if unknown := set(data) - allowed:
            raise self.fault(where, f"unknown {sorted(unknown)}, allowed are {sorted(allowed)}")
        if missing := required - set(data):
            raise self.fault(where, f"missing {sorted(missing)}")

    def expression(self, where: str, text: str | int, *extra: str) -> None:
        try:
            check(text, self.known | set(extra))
        except ValueError as error:
            raise self.fault(where, str(error)) from error

    def settings(self) -> None:
        for symbol, source in self.data["dimensions"].items():
            where = f"dimension {symbol}"
            kind = "is" if isinstance(source, dict) and "is" in source else "field"
            self.fields(where, source, {kind, "also", "default", "absent", "minimum", "divided"}, {kind})
            self.expression(where, source.get("is", source.get("default", 1)))
        for flag, source in self.data["flags"].items():
            by_value = isinstance(source, dict) and "is" in source
            self.fields(
                f"flag {flag}", source, {"field", "also", "default", "is"}, {"is"} if by_value else {"field", "default"}
            )
            if by_value:
                self.expression(f"flag {flag}", source["is"])
        for name, source in self.data.get("lists", {}).items():
            self.fields(f"list {name}", source, {"field", "also", "default"}, {"field", "default"})
        for name, condition in self.data.get("layers", {}).items():
            self.expression(f"layers {name}", condition, "layer")
        for name, condition in self.data.get("optional_layers", {}).items():
            self.expression(f"optional_layers {name}", condition, "layer")
        self.expression("layer_count", self.data.get("layer_count", "layers"))
        if unknown := set(self.data.get("encodings", ())) - set(ENCODINGS):
            raise self.fault("encodings", f"unknown {sorted(unknown)}")

    def base(self) -> None:
        if "base" in self.data:
            self.fields("base", self.data["base"], {"prefix", "architectures"}, {"prefix", "architectures"})
            if not any(row["name"].startswith(self.data["base"]["prefix"]) for row in self.data["parameters"]):
                raise self.fault("base", f"no parameter starts with {self.data['base']['prefix']!r}")

    def conditions(self, where: str, row: Mapping[str, Any]) -> None:
        for key in ("when", "unless"):
            if key in row:
                self.expression(f"{where}: {key}", row[key], *(("layer",) if has_layer(row["name"]) else ()))
        if "in" in row and row["in"] not in self.data.get("layers", {}):
            raise self.fault(where, f"in {row['in']!r} is no set of layers")
        if EXPERT in str([row["name"], row.get("of"), row.get("parts")]) and "experts" not in self.sizes:
            raise self.fault(where, "{expert} needs a dimension `experts`")

    def row(self, row: Any) -> None:
        where = f"row {row.get('name') if isinstance(row, dict) else row}"
        fused = isinstance(row, dict) and "parts" in row
        self.fields(where, row, ROW_FIELDS, {"name", "class"} | ({"parts", "is"} if fused else {"shape"}))
        if row["class"] not in CLASSES:
            raise self.fault(where, f"class {row['class']!r} is none of {CLASSES}")
        if row.get("stage", "first") not in ("first", "last"):
            raise self.fault(where, f"stage {row['stage']!r} is neither first nor last")
        self.conditions(where, row)
        if not fused:
            self.cut(where, row)
            return
        for part, facts in row["parts"].items():
            self.fields(f"{where}: part {part}", facts, CUT_FIELDS | {"per"}, {"shape"})
            if facts.get("per", "expert") != "expert":
                raise self.fault(where, f"part {part}: per {facts['per']!r} is not expert")
            self.cut(f"{where}: part {part}", facts)
        self.packing(where, row["is"], {part: "per" in facts for part, facts in row["parts"].items()})

    def cut(self, where: str, facts: Mapping[str, Any]) -> None:
        cut = facts.get("cut")
        if cut is not None and not 0 <= cut < len(facts["shape"]):
            raise self.fault(where, f"cut {cut} is no axis of {facts['shape']}")
        if cut is None and (facts.get("padded") or "unit" in facts or "grouped" in facts):
            raise self.fault(where, "padded, unit and grouped need a cut")
        for expression in [*facts["shape"], facts.get("unit", 1)]:
            self.expression(where, expression, "layer")

    def packing(self, where: str, text: str, parts: Mapping[str, bool]) -> None:
        try:
            check_packing(text, parts, self.sizes)
        except ValueError as error:
            raise self.fault(where, str(error)) from error

    def spelled(self, spelling: str, row: Any, atoms: set[str]) -> None:
        where = f"{spelling}: row {row.get('name') if isinstance(row, dict) else row}"
        copied = isinstance(row, dict) and isinstance(row.get("of"), str)
        self.fields(where, row, SPELLED_FIELDS, {"name", "of"} if copied else {"name", "of", "is"})
        self.conditions(where, row)
        if row.get("encoding", "fp8") not in ENCODINGS:
            raise self.fault(where, f"encoding {row['encoding']!r} is none of {sorted(ENCODINGS)}")
        of = {"": row["of"]} if copied else row["of"]
        for part, atom in of.items():
            if atom not in atoms:
                raise self.fault(where, f"{part or 'of'}: {atom} is no atom")
            if (LAYER in atom) != has_layer(row["name"]):
                raise self.fault(where, f"{atom}: {LAYER} must be in both names or in none")
        if not copied:
            per_expert = {part: EXPERT in atom and EXPERT not in row["name"] for part, atom in of.items()}
            self.packing(where, row["is"], per_expert)


def parse(path: Path, data: Any) -> Family:
    """The family of a file's content.

    Raises:
        ValueError: the file does not follow the schema.
    """
    checker = _Checker(path, data)
    if data["family"] != path.stem:
        raise ValueError(f"{path.name}: family is {data['family']!r}")
    checker.settings()
    checker.base()
    names: set[str] = set()
    for row in data["parameters"]:
        checker.row(row)
        # A row may stand twice where layer sets or switches keep its forms apart.
        if row["name"] in names and not CONDITIONS & set(row):
            raise ValueError(f"{path.name}: {row['name']} is listed twice")
        names.add(row["name"])
    for name, tie in data["tied"].items():
        checker.fields(f"tied {name}", tie, {"same_as", "when"}, {"same_as", "when"})
        if tie["same_as"] not in names:
            raise checker.fault(f"tied {name}", f"same_as {tie['same_as']!r} is no parameter")
        checker.expression(f"tied {name}", tie["when"], *(("layer",) if LAYER in name else ()))
    return Family(
        name=data["family"],
        model_types=tuple(data["model_types"]),
        architectures=tuple(data["architectures"]),
        dimensions=data["dimensions"],
        flags=data["flags"],
        rows=tuple(data["parameters"]),
        ignored=tuple(data["ignored"]),
        tied=data["tied"],
        lists=data.get("lists", {}),
        layer_sets=data.get("layers", {}),
        layer_count=data.get("layer_count", "layers"),
        spellings=dict(_spellings(checker)),
        encodings=tuple(data.get("encodings", ())),
        optional_layers=data.get("optional_layers", {}),
        note=data.get("note", ""),
        prefix=data.get("base", {}).get("prefix", ""),
        headless=tuple(data.get("base", {}).get("architectures", ())),
    )


def _spellings(checker: _Checker) -> Iterator[tuple[str, tuple[str, tuple[Mapping[str, Any], ...]]]]:
    """Name of each spelling, the one it builds on, and its rows."""
    atoms = {
        row["name"] + suffix
        for row in checker.data["parameters"]
        for suffix in (_suffix(part, facts) for part, facts in row.get("parts", {"": {}}).items())
    }
    bodies: dict[str, Any] = {}
    for shared in checker.data.get("shared_spellings", ()):
        bodies |= shared_spellings(shared, atoms, checker.data.get("layer_count", "layers"))
    for name, body in checker.data.get("spellings", {}).items():
        body = {"from": HF, "rows": body} if isinstance(body, list) else body
        if name in bodies:
            body = {"from": bodies[name]["from"], "rows": [*bodies[name]["rows"], *body["rows"]]}
        bodies[name] = body
    known = {HF}
    for name, body in bodies.items():
        checker.fields(f"spelling {name}", body, {"from", "rows"}, {"from", "rows"})
        if body["from"] not in known or name in known:
            raise checker.fault(f"spelling {name}", f"from {body['from']!r} is no spelling before it")
        known.add(name)
        for row in body["rows"]:
            checker.spelled(name, row, atoms)
        yield name, (body["from"], tuple(body["rows"]))
    if "base" in checker.data:
        yield PREFIXED, (HF, ())
        yield BARE, (HF, tuple(_bare_rows(checker.data["parameters"], checker.data["base"]["prefix"])))


def _bare_rows(rows: Iterable[Mapping[str, Any]], prefix: str) -> Iterator[Mapping[str, Any]]:
    """Rows that give the parameters of the model without heads the names under which its own class saves them."""
    for row in rows:
        if not row["name"].startswith(prefix):
            continue
        of: dict[str, Any] = {"of": row["name"]}
        if "parts" in row:
            of = {"of": {p: row["name"] + _suffix(p, facts) for p, facts in row["parts"].items()}, "is": row["is"]}
        conditions = {key: row[key] for key in CONDITIONS & set(row)}
        yield {"name": row["name"].removeprefix(prefix), **of, **conditions}


def _suffix(part: str, facts: Mapping[str, Any]) -> str:
    if not part:
        return ""
    return f"#{part}.{EXPERT}" if "per" in facts else f"#{part}"
