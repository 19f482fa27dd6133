"""The loader: typed rows from files, schema faults named by file and row."""

from __future__ import annotations

import csv
import inspect
import json
from pathlib import Path

import jsonschema
import pytest
import torch
import yaml

from mappings.api import ApiTable, Standing, known_names, load_table
from mappings.api.row import parse_row, parse_signature
from mappings.api.table import HERE, read_rows

TABLE = load_table()


def test_signature_defaults_are_source_text() -> None:
    signature = parse_signature("input, dim=-1, *sizes, keepdim=False, mode='none'")
    kinds = [p.kind.name for p in signature.parameters.values()]
    assert kinds == ["POSITIONAL_OR_KEYWORD"] * 2 + ["VAR_POSITIONAL"] + ["KEYWORD_ONLY"] * 2
    defaults = {name: p.default for name, p in signature.parameters.items()}
    assert defaults["dim"] == "-1" and defaults["keepdim"] == "False" and defaults["mode"] == "'none'"
    assert defaults["input"] is inspect.Parameter.empty


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("text", "a row is a mapping"),
        ({"name": "tf.add", "status": "same"}, "torch name"),
        ({"name": "torch.f", "status": "similar", "portable": "f()"}, "status"),
        ({"name": "torch.f", "status": "same"}, "portable template or a symbol"),
        ({"name": "torch.f", "status": "same", "portable": "f()", "portabel": "g()"}, "unknown keys"),
        ({"name": "torch.f", "status": "unsupported", "reason": "no"}, "reason and advice"),
        ({"name": "torch.f", "status": "unsupported", "reason": "r", "advice": "a", "portable": "f()"}, "no template"),
        ({"name": "torch.f", "status": "same", "portable": "f()", "signature": "a b"}, "parameter list"),
        ({"name": "torch.f", "status": "same", "portable": "f()", "signature": "a", "drop": {"b": "any"}}, "lacks"),
        (
            {"name": "torch.f", "status": "same", "portable": "f()", "signature": "a", "when": {"a": "big"}},
            "conditions",
        ),
        ({"name": "torch.f", "status": "same", "portable": 3}, "must be text"),
    ],
)
def test_schema_faults_name_file_and_row(entry: object, fault: str) -> None:
    with pytest.raises(ValueError, match=fault) as caught:
        parse_row(entry, "some.yaml: row 7")
    assert str(caught.value).startswith("some.yaml: row 7")


SCHEMA = json.loads((HERE / "schema.json").read_text())


@pytest.mark.parametrize("file", sorted(HERE.glob("*.yaml")), ids=lambda p: p.name)
def test_files_follow_the_schema(file: Path) -> None:
    jsonschema.validate(yaml.safe_load(file.read_text()), SCHEMA)


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "tf.add", "status": "same", "portable": "f()"},
        {"name": "torch.f", "status": "similar", "portable": "f()"},
        {"name": "torch.f", "status": "same"},
        {"name": "torch.f", "status": "same", "portable": "f()", "portabel": "g()"},
        {"name": "torch.f", "status": "unsupported", "reason": "no"},
        {"name": "torch.f", "status": "unsupported", "reason": "r", "advice": "a", "portable": "f()"},
        {"name": "torch.f", "status": "same", "portable": "f()", "signature": "a", "when": {"a": "big"}},
        {"name": "torch.f", "status": "same", "portable": "f()", "versions": "new"},
    ],
)
def test_schema_and_loader_refuse_the_same(entry: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([entry], SCHEMA)
    with pytest.raises(ValueError):
        parse_row(entry, "some.yaml: row 1")


def test_versions_have_a_default() -> None:
    entry = {"name": "torch.f", "status": "same", "portable": "f()"}
    assert parse_row(entry, "x").versions == ">=2.10"
    assert parse_row({**entry, "versions": ">=2.9,<3"}, "x").versions == ">=2.9,<3"


def test_digest_follows_the_claim_and_not_the_words() -> None:
    entry = {"name": "torch.f", "status": "same", "portable": "f($a, $b)", "signature": "a, b=1"}
    digest = parse_row(entry, "x").digest()
    assert parse_row({**entry, "note": "words"}, "elsewhere").digest() == digest
    for change in ({"portable": "f($a)"}, {"signature": "a, b=2"}, {"drop": {"b": "any"}}, {"versions": ">=2.11"}):
        assert parse_row({**entry, **change}, "x").digest() != digest


@pytest.mark.parametrize(
    ("name", "standing"),
    [
        ("torch.add", Standing.MAPPED),
        ("torch.Tensor.backward", Standing.UNSUPPORTED),
        ("torch.jit.freeze", Standing.UNMAPPED),
        ("torch.ad", Standing.UNKNOWN),
        ("torch.Tensor.veiw", Standing.UNKNOWN),
    ],
)
def test_four_answers(name: str, standing: Standing) -> None:
    assert TABLE.standing(name) is standing
    assert TABLE.known(name) == (standing is not Standing.UNKNOWN)


def test_every_counted_method_has_rows() -> None:
    """The methods that the measured repositories use: each is mapped, or refused with a reason."""
    with (HERE / "use_counts.csv").open(encoding="ascii") as file:
        methods = [row["name"] for row in csv.DictReader(file) if row["kind"] == "method"]
    assert len(methods) == 133
    missing = [name for name in methods if f"torch.Tensor.{name}" not in TABLE]
    assert not missing, missing


def test_members_count_only_when_supported() -> None:
    refused = {"status": "unsupported", "reason": "No.", "advice": "Else."}
    entries = [
        {"name": "torch.a", **refused},
        {"name": "torch.a.b.c", "status": "same", "portable": "f()"},
        {"name": "torch.d.e", **refused},
    ]
    table = ApiTable(parse_row(entry, "x") for entry in entries)
    assert [n for n in ("torch", "torch.a", "torch.a.b", "torch.a.b.c", "torch.d") if table.has_members(n)] == [
        "torch",
        "torch.a",
        "torch.a.b",
    ]


@pytest.mark.parametrize("name", ["torch", "torch.cuda", "torch.nn.functional", "torch.backends"])
def test_modules_are_refused_as_values_and_their_names_are_not(name: str) -> None:
    assert TABLE.standing(name) is Standing.UNSUPPORTED and TABLE.has_members(name)


def test_known_names_are_those_of_torch() -> None:
    names = known_names()
    assert {"torch.nn.functional.gelu", "torch.float32", "torch.Tensor.view", "torch.backends.cudnn"} <= names
    assert {
        f"torch.{n}" for n in dir(torch) if not n.startswith("_") and isinstance(getattr(torch, n), torch.dtype)
    } <= names
    assert not [n for n in names if "._" in n.replace(".__", ".")]


def test_a_file_must_be_a_list(tmp_path: Path) -> None:
    file = tmp_path / "torch.yaml"
    file.write_text("name: torch.f\n")
    with pytest.raises(ValueError, match=r"torch\.yaml: a table file is a list"):
        read_rows(file)


def test_overloads_keep_their_order() -> None:
    first, second = TABLE.rows("torch.arange")
    assert first.signature is not None and second.signature is not None
    assert [*first.signature.parameters][:1] == ["end"] and [*second.signature.parameters][:1] == ["start"]
    assert TABLE.rows("torch.no_such_thing") == () and "torch.no_such_thing" not in TABLE


def test_every_name_exists_in_torch() -> None:
    """A misspelt row would never match anything."""
    missing = [name for name in TABLE.names() if not exists(name)]
    assert not missing, missing


def exists(name: str) -> bool:
    import importlib

    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for number, part in enumerate(parts[length:]):
            if not hasattr(value, part):
                # attributes that exist on objects only
                return number == len(parts[length:]) - 1 and isinstance(value, type)
            value = getattr(value, part)
        return True
    return False


def torch_parameters(name: str) -> list[str] | None:
    """Parameters of a torch function or class written in Python; None for the ones written in C++."""
    value: object = torch
    for part in name.split(".")[1:]:
        value = getattr(value, part, None)
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    names = [p.name for p in signature.parameters.values() if p.kind.name != "VAR_KEYWORD"]
    return [n for n in names if n != "self"]


def test_signatures_name_torch_parameters() -> None:
    """Where torch's signature can be read, a row's parameters are among them, in the same order."""
    wrong = []
    compared = 0
    for row in TABLE:
        real = None if row.signature is None else torch_parameters(row.name)
        if not real or real in (["args"], ["data"]) or row.signature is None:
            continue
        compared += 1
        ours = [p for p in row.signature.parameters if p != "self"]
        if [p for p in real if p in ours] != ours:
            wrong.append(f"{row.source}: {ours} against {real}")
    assert compared > 100
    assert not wrong, "\n".join(wrong)
