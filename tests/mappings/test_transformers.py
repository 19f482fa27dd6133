"""The table of transformers' names: its schema, the helpers it names, and what works without torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mappings.transformers import FILE, TransformersTable, load_transformers

COMPAT = Path(__file__).parents[2] / "ms_models" / "compat"
PLAIN = (
    "PretrainedConfig", "AutoConfig", "AutoTokenizer", "PreTrainedTokenizerFast", "GenerationConfig", "LlamaConfig",
    "configuration_utils.PretrainedConfig", "models.llama.configuration_llama.LlamaConfig", "utils.logging",
    "generation.GenerationConfig", "tokenization_utils_base.BatchEncoding",
)  # fmt: skip
"""Names that the table leaves to transformers."""
NEED_TORCH = ("modeling_utils.PreTrainedModel", "modeling_outputs.CausalLMOutputWithPast", "cache_utils.DynamicCache")


def definitions(helper: str) -> set[str]:
    """Names that a helper binds at its top level."""
    found: set[str] = set()
    for node in ast.parse((COMPAT / f"{helper}.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found.update(name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return found


def test_helpers_have_the_names() -> None:
    missing = []
    for name, helper in load_transformers().helpers().items():
        entry = load_transformers().entry(name)
        if not (COMPAT / f"{helper}.py").is_file():
            missing.append(f"{name}: no {helper}.py")
        elif not getattr(entry, "whole", False) and name.rpartition(".")[2] not in definitions(helper):
            missing.append(f"{name}: not in {helper}.py")
    assert missing == []


def test_plain_names_import_where_torch_does_not() -> None:
    """In a process of its own, in which torch cannot be found."""
    table = load_transformers()
    for name in PLAIN:
        entry = table.entry(f"transformers.{name}")
        assert entry is not None and entry.helper is None and entry.reason is None, name
    program = """
import importlib, json, sys
from importlib.machinery import PathFinder
find = PathFinder.find_spec
def without_torch(name, path=None, target=None):
    return None if name.split(".")[0] == "torch" else find(name, path, target)
PathFinder.find_spec = staticmethod(without_torch)
failed = []
for name in json.loads(sys.argv[1]):
    module, _, last = f"transformers.{name}".rpartition(".")
    try:
        if getattr(getattr(importlib.import_module(module), last), "is_dummy", False):
            failed.append(name)
    except ImportError:
        failed.append(name)
print(json.dumps(failed))
"""
    names = json.dumps([*PLAIN, *NEED_TORCH])
    done = subprocess.run(
        [sys.executable, "-c", program, names], capture_output=True, text=True, timeout=120, check=True
    )
    assert json.loads(done.stdout) == list(NEED_TORCH)


def test_exact_names_go_before_patterns() -> None:
    table = TransformersTable(
        [
            {"names": ["*Config"], "from": ["transformers.*"], "plain": True},
            {"names": ["OwnConfig"], "from": ["transformers.a"], "helper": "own", "returns": "config"},
            {"names": ["*"], "unsupported": "is not done"},
        ]
    )
    own = table.find("transformers.a", "OwnConfig")
    assert own is not None and own.helper == "own" and own.returns == "config"
    other = table.entry("transformers.b.OwnConfig")
    assert other is not None and other.helper is None and other.reason is None
    refused = table.entry("transformers.Anything")
    assert refused is not None and refused.reason == "is not done"
    assert table.entry("transformers.b.Anything") is None and table.entry("torch.nn.Linear") is None


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"plain": True}, "names is missing"),
        ({"names": ["A"], "plain": True, "spelling": 1}, "unknown"),
        ({"names": ["A"]}, "exactly one"),
        ({"names": ["A"], "plain": True, "helper": "a"}, "exactly one"),
        ({"names": ["A", "A"], "plain": True}, "has a row already"),
    ],
)
def test_faults_of_the_schema(row: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"{FILE.name}: row 1: .*{message}"):
        TransformersTable([row])
