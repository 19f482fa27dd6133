"""A modeling file of transformers, as remote code has it: converted without a finding, and equal to PyTorch.

The others, and the rest of this one, are in the table of `make test-packages`.
"""

from __future__ import annotations

from pathlib import Path

import transformers
from fetch import HERE, as_remote_code, read_package, without_torch

from migrate.code.command import convert
from migrate.code.verify.modules import compare_modules
from migrate.report import Verdict

CLASSES = ("LlamaModel", "LlamaForCausalLM", "LlamaForSequenceClassification")


def test_imports_of_a_file_that_leaves_its_package() -> None:
    text = (
        "from ...activations import ACT2FN\nfrom ... import initialization as init\nfrom .config import A\nimport os\n"
    )
    assert as_remote_code(text, "library/models/llama/modeling_llama.py").splitlines() == [
        "from library.activations import ACT2FN",
        "from library import initialization as init",
        "from library.models.llama.config import A",
        "import os",
    ]


def test_llama(tmp_path: Path) -> None:
    package = read_package(HERE / "modeling" / "modeling_llama.yaml")
    repo, out, again = (tmp_path / name for name in ("repo", "out", "again"))
    repo.mkdir()
    installed = Path(transformers.__file__).parents[1]
    for file in package.remote_code:
        text = (installed / file).read_text(encoding="utf-8")
        (repo / Path(file).name).write_text(as_remote_code(text, file), encoding="utf-8")
    assert convert(repo, out).findings == []
    recipes = [recipe for recipe in package.recipes if recipe.name.endswith(CLASSES)]
    assert len(recipes) == len(CLASSES)
    outcomes = compare_modules(repo, out, recipes, steps=3, candidate_path=[without_torch(tmp_path)])
    assert {(o.recipe.name, o.stage, o.message) for o in outcomes if o.verdict is not Verdict.PASS} == set()
    assert len(outcomes) == 5 * len(CLASSES)
    convert(out, again)
    assert (again / "modeling_llama.py").read_text(encoding="utf-8") == (out / "modeling_llama.py").read_text(
        encoding="utf-8"
    )
