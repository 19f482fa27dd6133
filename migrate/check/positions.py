"""C40x: context length and rotary parameters. Reads the spellings of transformers 4 and 5."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeGuard

from mappings.families.positions import first_position
from migrate.check import cells
from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "config.json"
# Rules of transformers' rope utilities, and the fields each cannot do without.
ROPE_TYPES: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
}
LENGTHS = ("max_position_embeddings", "n_positions", "seq_length")
# Positions by a table, or by a bias of the scores, which has no end.
ABSOLUTE = ("gpt2", "opt", "bert", "roberta", "xlm-roberta", "bloom")
UNLIMITED = ("bloom",)
# What the first published files of a model type call a rule.
FORMER_NAMES: dict[tuple[Any, Any], str] = {("phi3", "su"): "longrope", ("phi3", "yarn"): "longrope"}


def positions_are_given(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """`max_position_embeddings` is a positive whole number."""
    config = subject.config
    if config.get("model_type") in UNLIMITED or (config.get("model_type") == "falcon" and config.get("alibi")):
        return
    tally.add()
    field, value = positions(config)
    if type(value) is not int or value < 1:
        yield finding("C401", f"{field} is {value!r}", file=FILE, field=field)


def sequence_fits_positions(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The run's sequences are no longer than the model's positions."""
    field, limit = positions(subject.config)
    length = subject.section("data").get("seq_length")
    if type(length) is int and type(limit) is int and limit > 0:
        tally.add()
        if length > limit - first_position(subject.config):
            message = f"data.seq_length is {length}, {field} is {limit}"
            if first := first_position(subject.config):
                message += f", of which {limit - first} can be used: positions begin at {first}"
            yield finding("C402", message, file=FILE, field=field)


def rope_base_is_sound(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """There is one positive `rope_theta`; one for each type of layers where these differ."""
    if not is_rotary(subject.config):
        return
    tally.add()
    old = subject.config.get("rope_theta")
    sets = rope_sets(subject.config)
    new = [(f"{name}.rope_theta", rope.get("rope_theta")) for name, rope in sets]
    if old is None and any(value is None for _, value in new):
        yield finding("C409", f"neither rope_theta nor {new[0][0]} is set", file=FILE, field="rope_theta")
    for field, value in (("rope_theta", old), *new):
        if value is not None and (not _is_number(value) or value <= 0):
            yield finding("C403", f"{field} is {value!r}", file=FILE, field=field)
            return
    spelled = (subject.config.get(name) for name in ("rope_parameters", "rope_scaling"))
    both: list[dict[str, Any]] = [value for value in spelled if isinstance(value, dict)]
    if len(both) > 1:
        kinds = [value.get("rope_type", value.get("type")) for value in both]
        if kinds[0] != kinds[1] or both[0].get("factor") != both[1].get("factor"):
            message = f"rope_parameters says {both[0]}, rope_scaling {both[1]}"
            yield finding("C403", message, file=FILE, field="rope_scaling")
    field, value = new[0]
    if len(sets) == 1 and old is not None and value is not None and old != value:
        yield finding("C403", f"rope_theta is {old}, {field} is {value}", file=FILE, field="rope_theta")


def rope_scaling_is_sound(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """The rotary rule is known, complete, plausible and one that ms_models computes."""
    for field in ("rope_parameters", "rope_scaling"):
        value = subject.config.get(field)
        if value is not None and not isinstance(value, dict):
            yield finding("C404", f"{field} is {value!r}, no table of settings", file=FILE, field=field)
        elif isinstance(value, dict) and "factor" in value and not {"type", "rope_type"} & value.keys():
            message = f"{field} has a factor and no rope_type, so that loaders leave positions unscaled"
            yield finding("C404", message, file=FILE, field=field)
    for name, rope in rope_sets(subject.config) if is_rotary(subject.config) else ():
        yield from _is_sound(subject, tally, name, rope)


def _is_sound(subject: Subject, tally: Tally, where: str, rope: dict[str, Any]) -> Iterator[Finding]:
    tally.add()
    model_type = subject.config.get("model_type")
    kind = rope.get("rope_type", rope.get("type", "default"))
    kind = FORMER_NAMES.get((model_type, kind), kind)
    if kind not in ROPE_TYPES:
        known = ", ".join(ROPE_TYPES)
        yield finding("C404", f"rope_type is {kind!r}; known are {known}", file=FILE, field="rope_type")
        return
    for name in ROPE_TYPES[kind]:
        tally.add()
        value = rope.get(name)
        numbers = value if isinstance(value, list) and value else [value]
        if not all(_is_number(number) and number > 0 for number in numbers):
            message = f"rope_type {kind!r} needs {name}, found {value!r}"
            yield finding("C405", message, file=FILE, field=f"{where}.{name}")
            return
    limits = {id(value): len(value) for value in rope.values() if isinstance(value, list)}
    if kind == "longrope" and len(set(limits.values())) > 1:
        message = f"short_factor and long_factor have {' and '.join(map(str, limits.values()))} entries"
        yield finding("C405", message, file=FILE, field=f"{where}.long_factor")
    yield from _plausible(subject, rope)
    if not cells.is_built(subject.config):
        return
    if kind not in cells.ROPE:
        supported = ", ".join(cells.ROPE)
        yield finding("C407", f"rope_type is {kind!r}; ms_models has {supported}", file=FILE, field="rope_type")
    part = rope.get("partial_rotary_factor", subject.config.get("partial_rotary_factor", 1.0))
    if part != 1.0 and model_type not in cells.PARTIAL_ROPE:
        message = f"partial_rotary_factor is {part!r}; ms_models rotates whole heads of this model type"
        yield finding("C407", message, file=FILE, field="partial_rotary_factor")


def is_rotary(config: dict[str, Any]) -> bool:
    """Whether positions enter by rotation, as in every decoder that says nothing else."""
    return config.get("model_type") not in ABSOLUTE


def positions(config: dict[str, Any]) -> tuple[str, Any]:
    """The field that says how long a sequence may be, and what it says."""
    field = next((name for name in LENGTHS if config.get(name) is not None), LENGTHS[0])
    return field, config.get(field)


def rope_parameters(config: dict[str, Any]) -> dict[str, Any]:
    """The rotary settings of a `config.json`, wherever it keeps them; empty where it has none."""
    for name in ("rope_parameters", "rope_scaling"):
        value = config.get(name)
        if isinstance(value, dict):
            return value
    return {}


def rope_sets(config: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The rotary settings with their place: one set, or one for each type of layers (Gemma 3)."""
    settings = rope_parameters(config)
    by_type = [(f"rope_parameters.{name}", value) for name, value in settings.items() if isinstance(value, dict)]
    return by_type or [("rope_parameters", settings)]


def _plausible(subject: Subject, rope: dict[str, Any]) -> Iterator[Finding]:
    factor, original = rope.get("factor"), rope.get("original_max_position_embeddings")
    limit = subject.config.get("max_position_embeddings")
    if _is_number(factor) and factor < 1:
        yield finding("C406", f"RoPE factor is {factor}", file=FILE, field="rope_parameters.factor")
    if type(original) is int and type(limit) is int and original > limit:
        message = f"original_max_position_embeddings {original} is above max_position_embeddings {limit}"
        yield finding("C406", message, file=FILE, field="rope_parameters.original_max_position_embeddings")
    low, high = rope.get("low_freq_factor"), rope.get("high_freq_factor")
    if _is_number(low) and _is_number(high) and low >= high:
        message = f"low_freq_factor {low} is not below high_freq_factor {high}"
        yield finding("C406", message, file=FILE, field="rope_parameters.low_freq_factor")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


ASSERTIONS = (
    positions_are_given,
    sequence_fits_positions,
    rope_base_is_sound,
    rope_scaling_is_sound,
)
