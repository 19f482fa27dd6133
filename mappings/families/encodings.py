"""Low-precision forms in which a checkpoint stores one tensor as several, and the names of those."""

from __future__ import annotations

from collections.abc import Mapping

ENCODINGS: Mapping[str, Mapping[str, str]] = {
    "fp8": {"values": "", "scales": "_scale_inv"},
    "mxfp4": {"blocks": "_blocks", "scales": "_scales"},
}
"""Encoding -> role of each stored tensor -> what follows the name of the tensor it stands for."""


def stored_names(encoding: str, name: str) -> dict[str, str]:
    """Role and name of each tensor that stores `name` in this encoding."""
    return {role: name + suffix for role, suffix in ENCODINGS[encoding].items()}
