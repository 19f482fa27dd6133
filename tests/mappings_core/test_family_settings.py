"""Conditions over a `config.json`, and the fields that dimensions, switches and lists are read from."""

from __future__ import annotations

from typing import Any

import pytest

from mappings.errors import UserError
from mappings.expressions import check, evaluate, holds, names
from mappings.families.settings import field, local_sizes, symbols

VALUES = {"a": 7, "b": 3, "on": True, "off": False, "kinds": ["x", "y"], "places": [1, 4]}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a > b", True), ("a % b == 1", True), ("1 <= b < 3", False), ("on and not off", True), ("off or a == 7", True),
        ("b in places", False), ("4 in places", True), ("b not in places", True), ("kinds[1] == 'y'", True),
        ("'z' in kinds", False), ("on", True), ("kinds[a - 7] != 'x'", False),
    ],
)  # fmt: skip
def test_conditions(text: str, value: bool) -> None:
    check(text, VALUES)
    assert holds(text, VALUES) is value


@pytest.mark.parametrize(("text", "value"), [("a % b", 1), ("a if a < b else places[1]", 4), ("2 * a - b // 2", 13)])
def test_sizes(text: str, value: int) -> None:
    check(text, VALUES)
    assert evaluate(text, VALUES) == value


@pytest.mark.parametrize("text", ["kinds[2]", "kinds[-1]", "places", "a > b", "on", "b in a", "kinds[0]"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        evaluate(text, VALUES)


@pytest.mark.parametrize(
    "text", ["a ** b", "a / b", "-a", "f(a)", "a.b", "[a]", "a if b else c", "lambda: a", "None", "a is b"]
)
def test_what_could_not_be_evaluated_is_refused_without_values(text: str) -> None:
    with pytest.raises(ValueError):
        check(text, VALUES)


def test_names_of_an_expression() -> None:
    assert names("a if kinds[b] == 'c' else 2") == {"a", "kinds", "b"} and names(3) == set()


def test_fields_may_be_nested_or_have_other_names() -> None:
    config: dict[str, Any] = {"text_config": {"width": 4}, "old": 5, "null": None}
    assert field(config, {"field": "text_config.width"}) == 4
    assert field(config, {"field": "new", "also": ["null", "old"]}) == 5
    assert field(config, {"field": "text_config.width.x"}) is None
    assert field(config, {"field": "old.width"}) is None


DIMENSIONS: dict[str, dict[str, Any]] = {
    "heads": {"field": "heads", "divided": True},
    "shared": {"field": "shared", "default": "heads", "absent": 2, "divided": True},
    "none": {"field": "none", "default": 0, "minimum": 0},
    "ratio": {"is": "heads // shared"},
}


def read(**config: Any) -> dict[str, Any]:
    flags = {"wide": {"field": "wide", "default": False}, "many": {"is": "heads > 4 or wide"}}
    return symbols(config, DIMENSIONS, flags, {"kinds": {"field": "kinds", "default": []}}, "test")


def test_missing_and_null_fields_have_their_own_values() -> None:
    assert read(heads=4) == {"heads": 4, "shared": 2, "none": 0, "ratio": 2, "wide": False, "many": False, "kinds": []}
    assert read(heads=8, shared=None, none=1, wide=True)["ratio"] == 1
    assert read(heads=8)["many"] and read(heads=1, shared=1, wide=True)["many"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, "'heads' is missing, the test family needs it"),
        ({"heads": 4, "none": -1}, "none must be a whole number of at least 0, found -1"),
        ({"heads": 4, "wide": 1}, "wide must be true or false, found 1"),
        ({"heads": 4, "kinds": "full"}, "kinds must be a list, found 'full'"),
        ({"heads": 4, "kinds": [1.5]}, "kinds must be a list"),
    ],
)
def test_fields_that_do_not_fit_are_named(config: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        read(**config)


def test_sizes_of_a_rank_are_divided_but_at_least_one() -> None:
    values = read(heads=8)
    assert local_sizes(values, DIMENSIONS, 2) == {"heads": 4, "shared": 1, "none": 0, "ratio": 4}
    assert local_sizes(values, DIMENSIONS, 4) == {"heads": 2, "shared": 1, "none": 0, "ratio": 2}
