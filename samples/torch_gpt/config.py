"""Reads config.yaml and applies overrides of the form section.key=value."""

import yaml


def load_config(path, overrides=()):
    with open(path) as f:
        cfg = yaml.safe_load(f)

    for item in overrides:
        name, sep, text = item.partition("=")
        if not sep:
            raise ValueError(f"override {item!r} is not of the form key=value")

        node = cfg
        *sections, key = name.split(".")
        for section in sections:
            node = node.get(section) if isinstance(node, dict) else None
        if not isinstance(node, dict) or key not in node or isinstance(node[key], dict):
            raise ValueError(f"unknown config key {name!r}")
        try:
            node[key] = _parse(text, node[key])
        except ValueError as e:
            raise ValueError(f"{name}: {e}") from None
    return cfg


def _parse(text, old):
    """The new value has to be of the type of the old one."""
    if isinstance(old, bool):
        if text.lower() not in ("true", "false"):
            raise ValueError(f"expected true or false, got {text!r}")
        return text.lower() == "true"
    return type(old)(text)  # float("3e-4") works, yaml would make a string of it
