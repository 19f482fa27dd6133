"""The table of transformers' names: every name that has a helper is there, and nowhere else, in the library."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest
import yaml

from mappings.transformers import FILE, TransformersTable, load_transformers

WITHOUT_TORCH = """
import importlib, sys
sys.modules["torch"] = None
for name in sys.argv[1:]:
    module, _, last = name.rpartition(".")
    getattr(importlib.import_module(module), last)
"""


def test_helpers_have_their_names() -> None:
    missing = []
    for name, helper in load_transformers().helpers().items():
        entry = load_transformers().entry(name)
        module = importlib.import_module(f"ms_models.compat.{helper}")
        if entry is not None and not entry.whole and not hasattr(module, name.rpartition(".")[2]):
            missing.append(f"{helper}.{name.rpartition('.')[2]}")
    assert missing == []


def test_plain_names_work_without_torch() -> None:
    """Those of the table that are no pattern and that the installed library has."""
    names = []
    for row in yaml.safe_load(FILE.read_text(encoding="utf-8")):
        for module in row.get("from", ["transformers"]) if row.get("plain") else []:
            for name in row["names"]:
                if "*" not in module + name and _has(module, name):
                    names.append(f"{module}.{name}")
    assert len(names) > 10
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *names], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def test_names_before_patterns() -> None:
    table = load_transformers()
    cache = table.find("transformers", "DynamicCache")
    assert cache is not None and cache.helper == "caches"
    question = table.find("transformers.utils", "is_flash_attn_2_available")
    assert question is not None and question.helper is None and question.reason is None
    assert table.find("transformers.masking_utils", "flex_attention_mask") is None


@pytest.mark.parametrize(
    "row, fault",
    [
        ({"names": ["A"]}, "exactly one of"),
        ({"names": ["A"], "helper": "a", "plain": True}, "exactly one of"),
        ({"names": ["A"], "helper": "b", "whole": True}, "helper of its name"),
        ({"helper": "a"}, "names is missing"),
        ({"names": ["A"], "helper": "a", "form": ["b"]}, "unknown"),
    ],
)
def test_faults_of_rows(row: dict, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        TransformersTable([row])
