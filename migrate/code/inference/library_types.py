"""Types of what comes from `transformers`: models, their outputs and configurations, as `mappings` has them."""

from __future__ import annotations

from mappings.transformers import Entry, load_transformers
from migrate.code.inference.types import TENSOR, TENSORS, UNKNOWN, VALUE, Type, from_returns, instance, list_of
from migrate.code.names.symbols import Symbols

_CLASSES = ("module", "output", "config")
_CONTAINER_METHODS = frozenset(dir(dict)) | {"to_tuple"}
_CACHES = ("cache", "past_key_values", "cache_params")
_OF_EVERY_LAYER = ("hidden_states", "attentions", "router_logits", "router_probs")
"""Ends of the names of fields that are tuples of tensors."""
_ALONE = ("last_hidden_state", "encoder_last_hidden_state")


def is_class(name: str) -> bool:
    """Whether a name is a class whose objects have tensors."""
    entry = load_transformers().entry(name)
    return entry is not None and entry.returns in ("module", "output")


def called(name: str) -> Type | None:
    """What a call of a name gives; None if the table does not say it."""
    entry = load_transformers().entry(name)
    if entry is None or entry.returns is None:
        return None
    if entry.returns in _CLASSES:
        return instance(name)
    found = from_returns(entry.returns, name)
    return found if found.is_known else None


def ancestor(symbols: Symbols, class_name: str, returns: str) -> Entry | None:
    """The entry of the class of the library that a class descends from, if it is of a kind."""
    for name in symbols.lineage(class_name):
        entry = load_transformers().entry(name)
        if entry is not None and entry.returns == returns:
            return entry
    return None


def attribute_type(symbols: Symbols, class_name: str, attribute: str) -> Type | None:
    """Type of an attribute that an object has from the library; None if it has none of that name."""
    model = ancestor(symbols, class_name, "module")
    if model is not None and attribute in model.members:
        word = model.members[attribute]
        return VALUE if word == "config" else from_returns(word, attribute)
    if ancestor(symbols, class_name, "config") is not None:
        return VALUE
    if ancestor(symbols, class_name, "output") is not None and attribute not in _CONTAINER_METHODS:
        if attribute in _CACHES:
            return UNKNOWN
        return list_of(TENSOR) if attribute.endswith(_OF_EVERY_LAYER) and attribute not in _ALONE else TENSOR
    return None


def argument_type(symbols: Symbols, class_name: str, method: str, parameter: str) -> Type | None:
    """Type of what the library gives to a method that a class overrides; None if the table does not say it."""
    for name in symbols.lineage(class_name):
        entry = load_transformers().entry(name)
        word = entry.arguments.get(method, {}).get(parameter) if entry is not None else None
        if word is not None:
            return TENSORS if word == "batch" else from_returns(word, name)
    return None


def is_output(symbols: Symbols, found: Type) -> bool:
    """Whether an object is a `ModelOutput`."""
    return found.kind == "object" and bool(found.name) and ancestor(symbols, found.name, "output") is not None
