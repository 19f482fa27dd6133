"""The arrows of docs/architecture.md: who may import whom, read from the source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("migrate", "mappings", "ms_models")
# Scripts that run as a process of their own inside one framework's environment.
CAPTURES = {"migrate/parity/capture_torch.py", "migrate/parity/capture_mindspore.py"}
LAYERS = ["ms_models/parallel", "ms_models/layers", "ms_models/families", "ms_models/train"]  # lowest first


def imports(source: str, at_module_level: bool) -> Iterator[str]:
    """Absolute module names imported by a source text, everywhere or only where importing the module runs them."""
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif at_module_level and not runs_on_import(node):
            continue
        nodes.extend(ast.iter_child_nodes(node))


def runs_on_import(node: ast.AST) -> bool:
    """False for function bodies and for imports that only a type checker sees."""
    if isinstance(node, ast.If):
        return "TYPE_CHECKING" not in ast.unparse(node.test)
    return not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def files(folder: str) -> list[Path]:
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no Python files under {folder}"
    return found


def offenders(folder: str, forbidden: tuple[str, ...], at_module_level: bool = False) -> list[str]:
    result = []
    for path in files(folder):
        name = path.relative_to(ROOT).as_posix()
        if name in CAPTURES:
            continue
        for module in imports(path.read_text(encoding="utf-8"), at_module_level):
            if any(module == prefix or module.startswith(prefix + ".") for prefix in forbidden):
                result.append(f"{name}: {module}")
    return result


def test_mappings_import_no_framework_and_nothing_above_them() -> None:
    assert offenders("mappings", ("torch", "mindspore", "migrate", "ms_models", "transformers")) == []


def test_ms_models_import_neither_torch_nor_the_tools() -> None:
    assert offenders("ms_models", ("torch", "migrate", "transformers")) == []


def test_tools_import_no_framework_at_module_level() -> None:
    assert offenders("migrate", ("torch", "mindspore", "transformers", "ms_models"), at_module_level=True) == []


@pytest.mark.parametrize("tool", ["api", "code", "weights", "check", "report"])
def test_only_parity_and_the_command_line_know_the_models(tool: str) -> None:
    assert offenders(f"migrate/{tool}", ("ms_models",)) == []


@pytest.mark.parametrize("tool", ["api", "code", "weights", "check", "parity", "plan", "ladder"])
def test_tools_do_not_import_each_other(tool: str) -> None:
    tools = ("code", "weights", "check", "parity", "plan", "ladder", "cli")
    others = tuple(f"migrate.{other}" for other in tools if other != tool)
    assert offenders(f"migrate/{tool}", others) == []


def test_model_layers_import_downwards_only() -> None:
    found = []
    for position, folder in enumerate(LAYERS):
        found += offenders(folder, tuple(layer.replace("/", ".") for layer in LAYERS[position + 1 :]))
    assert found == []


def test_communication_stays_in_one_module() -> None:
    operations = {"AllReduce", "AllGather", "ReduceScatter", "AlltoAll", "Broadcast", "Send", "Receive"}
    users = []
    for path in files("ms_models"):
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(("ms_models/parallel/collectives/", "ms_models/compat/")):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        users += [f"{name}: {n.attr}" for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in operations]
    assert users == []


def test_the_checker_sees_a_planted_import() -> None:
    planted = "import os\ndef f():\n    from torch.nn import functional\n"
    assert "torch.nn" in set(imports(planted, at_module_level=False))
    assert "torch.nn" not in set(imports(planted, at_module_level=True))
    assert "torch" in set(imports("try:\n    import torch\nexcept ImportError:\n    pass\n", at_module_level=True))


def test_files_stay_short() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {lines}"
        for package in PACKAGES
        for path in files(package)
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > 400
    ]
    assert long == []
