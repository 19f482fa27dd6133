"""Files that declare dependencies: torch out, MindSpore in, nothing else touched, and read back as what was meant."""

from __future__ import annotations

import configparser
import re
import tomllib
from pathlib import Path, PurePosixPath

import pytest
import yaml

from migrate.code.command import convert
from migrate.code.dependencies import convert_dependencies, imported_names, may_declare
from migrate.code.dependencies.swap import swap

MS, NP = "mindspore==2.10.*", "numpy>=1.26,<2"


def rewritten(name: str, text: str, imported: frozenset[str] = frozenset()) -> tuple[str, list[str]]:
    """The new text and the findings; a second run finds nothing more to change."""
    path = PurePosixPath(name)
    assert may_declare(path)
    new, findings = convert_dependencies(path, text, imported)
    assert convert_dependencies(path, new, imported)[0] == new
    return new, [f"{f.code}:{f.line}" for f in findings]


def changed_lines(old: str, new: str) -> tuple[list[str], list[str]]:
    """Lines that are only in one of the two."""
    a, b = old.splitlines(), new.splitlines()
    return [line for line in a if line not in b], [line for line in b if line not in a]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["torch"], [MS, NP]),
        (["torch>=2,<3", "numpy>=2"], [MS, NP]),
        (["Torch==2.1", "numpy==1.26.4"], [MS, "numpy==1.26.4"]),
        (["torch[opt]~=2.1 ; os_name == 'nt'"], [f"{MS} ; os_name == 'nt'", f"{NP} ; os_name == 'nt'"]),
        (["torch @ https://h/torch.whl ; sys_platform=='linux'", "numpy"], [f"{MS} ; sys_platform=='linux'", NP]),
        # each platform has its own torch, and each gets its MindSpore, once
        (["torch==1; a=='b'", "torch==2; c=='d'", "torch", "torch>1", NP], [f"{MS}; a=='b'", f"{MS}; c=='d'", MS, NP]),
        (["torch", "torchvision", "triton", "pytorch-cuda", "numpy"], [MS, NP]),
        (["transformers[torch]>=4", "x[a, torch]"], ["transformers>=4", "x[a]"]),
        (["pytorch-lightning", "mytorch", "torch-geometric", "torchmetrics"], None),
        (["-r base.txt", "--no-binary torch", "numpy>=2"], None),
    ],
)  # fmt: skip
def test_a_list_of_requirements(old: list[str], new: list[str] | None) -> None:
    assert swap(old, frozenset()).result() == (old if new is None else new)


def test_what_the_repository_imports_stays() -> None:
    found = swap(["torch", "torchvision", "numpy"], {"torchvision"})
    assert found.result() == [MS, "torchvision", NP] and [p.name for p in found.problems] == ["torchvision"]
    assert imported_names(["import os, torchvision.ops as o\n  from a.b import c\nfrom . import d\n"]) == {
        "os",
        "torchvision",
        "a",
    }


def test_requirements_txt() -> None:
    text = (
        "# top\n--extra-index-url https://download.pytorch.org/whl/cu121\n-r base.txt\n\n"
        "torch>=2.1 \\\n    ,<3  # why\n"
        "torchvision==0.16\r\nnumpy # any\npyyaml\n"
    )
    new, findings = rewritten("requirements/train.txt", text)
    assert new == f"# top\n-r base.txt\n\n{MS}\n{NP} # any\npyyaml\n" and findings == []
    assert rewritten("requirements.txt", "torch  # why")[0] == f"{MS}  # why\n{NP}"
    assert rewritten("notes/requirements-dev.txt", "flash-attn\npytest\n") == ("flash-attn\npytest\n", ["M114:1"])


def test_pinned_hashes_are_a_finding() -> None:
    text = "pyyaml==6 --hash=sha256:aa\ntorch==2.1 \\\n    --hash=sha256:bb\n"
    assert rewritten("requirements.txt", text) == (text, ["M115:2"])


PYPROJECT = """\
# torch in a comment
[build-system]
requires = ["setuptools>=61", "torch"]

[project]
name = "torch-thing"
description = '''needs torch
[project]
dependencies = ["torch"]
'''
keywords = ["torch"]
dependencies = [
    "torch>=2.1",  # the framework, "torch"
    # numbers
    'numpy>=2; python_version > "3.8"',
    "torchaudio",
    "rich",
]

[project.optional-dependencies]
gpu = ["torch==2.1; sys_platform == 'linux'", "triton", "einops"]
plain = ["einops"]

[dependency-groups]
dev = ["pytest", {include-group = "lint"}]
lint = ["ruff"]

[tool.mypy]
strict = true
"""


def test_pyproject() -> None:
    new, findings = rewritten("pyproject.toml", PYPROJECT)
    assert findings == []
    old_lines, new_lines = changed_lines(PYPROJECT, new)
    assert len(old_lines) == 5 and len(new_lines) == 4
    body = tomllib.loads(new)
    assert body["build-system"]["requires"] == ["setuptools>=61", MS, NP]
    assert body["project"]["dependencies"] == [MS, f'{NP}; python_version > "3.8"', "rich"]
    marker = "; sys_platform == 'linux'"
    assert body["project"]["optional-dependencies"]["gpu"] == [MS + marker, NP + marker, "einops"]
    assert f'    "{MS}",  # the framework, "torch"\n    # numbers\n' in new
    # everything else says what it said
    before = tomllib.loads(PYPROJECT)
    for path in (("build-system", "requires"), ("project", "dependencies"), ("project", "optional-dependencies")):
        before[path[0]].pop(path[1])
        body[path[0]].pop(path[1])
    assert body == before


POETRY = """\
[tool.poetry.dependencies]
python = "^3.11"
torch = { version = "^2.1", source = "wheels", optional = true }  # keep
torchvision = "*"

[tool.poetry.group.dev.dependencies]
Torch = "2.1"
numpy = "^2"

[tool.poetry.extras]
gpu = ["torch", "rich"]
"""


def test_poetry() -> None:
    new, findings = rewritten("pyproject.toml", POETRY)
    body = tomllib.loads(new)["tool"]["poetry"]
    assert findings == [] and "  # keep\n" in new
    assert body["dependencies"] == {
        "python": "^3.11",
        "mindspore": {"version": "==2.10.*", "optional": True},
        "numpy": {"version": ">=1.26,<2", "optional": True},
    }
    assert body["group"]["dev"]["dependencies"] == {"mindspore": "==2.10.*", "numpy": ">=1.26,<2"}
    assert body["extras"] == {"gpu": ["mindspore", "rich"]}


def test_pipfile() -> None:
    new, _ = rewritten("Pipfile", '[packages]\ntorch = "*"\nrich = "*"\n')
    assert tomllib.loads(new) == {"packages": {"mindspore": "==2.10.*", "numpy": ">=1.26,<2", "rich": "*"}}


@pytest.mark.parametrize(
    "text",
    [
        "[tool.poetry.dependencies.torch]\nversion = '2'\n",
        "[tool.uv.sources]\ntorch = { index = 'cu' }\n",
        "project = { dependencies = ['torch'] }\n",
        "[project]\n'dependencies' = ['torch', 1]\n",
        "[project\n",
    ],
)
def test_toml_that_is_not_rewritten_is_a_finding(text: str) -> None:
    new, findings = convert_dependencies(PurePosixPath("pyproject.toml"), text, frozenset())
    assert new == text and len(findings) == 1, findings


SETUP_CFG = """\
[metadata]
name = torch-thing
[options]
packages = find:
install_requires =
    torch>=2 ; python_version < "3.12"
    # numbers
    numpy
    rich
[options.extras_require]
gpu =
    torch
    triton
dev = pytest
[tool:pytest]
markers =
    torch
"""


def test_setup_cfg() -> None:
    new, findings = rewritten("setup.cfg", SETUP_CFG)
    body = configparser.ConfigParser()
    body.read_string(new)
    assert findings == []
    assert body["options"]["install_requires"].split("\n") == [
        "",
        f'{MS} ; python_version < "3.12"',
        NP,
        "rich",
    ]
    assert body["options.extras_require"]["gpu"].split() == [MS, NP]
    assert "    # numbers\n" in new and new.endswith("markers =\n    torch\n")
    text = "[options]\ninstall_requires = torch; numpy\n"
    assert rewritten("setup.cfg", text) == (text, ["M115:None"])


SETUP_PY = '''\
"""torch"""
from setuptools import find_packages, setup

name = "caf\\u00e9 é"; extra = {"gpu": ["torch>=2", "triton"]}  # torch
extra["all"] = ["torch>=2",
                "rich"]
setup(
    name="torch-thing", keywords=["torch"],
    install_requires=["torch>=2.1", 'numpy'] + ["rich"],
    extras_require=extra,
    packages=find_packages(),
)
'''


def test_setup_py() -> None:
    new, findings = rewritten("setup.py", SETUP_PY)
    assert findings == []
    assert new == (
        SETUP_PY.replace("[\"torch>=2.1\", 'numpy']", f"[\"{MS}\", '{NP}']")
        .replace('["torch>=2", "triton"]', f'["{MS}", "{NP}"]')
        .replace('["torch>=2",\n', f'["{MS}", "{NP}",\n')
    )
    assert rewritten("setup.py", "setup(install_requires=open('r').read())\nX = ['torch>=2']\n")[1] == ["M115:2"]


ENVIRONMENT = """\
name: thing
channels:
  - pytorch
  - conda-forge
dependencies:
  - python=3.11
  - pytorch::pytorch=2.1  # the framework
  - pytorch-cuda=12.1
  - torchvision
  - numpy=2.0
"""


@pytest.mark.parametrize(
    ("rest", "conda", "by_pip"),
    [
        ("", ["python=3.11", NP, "pip"], [MS]),
        ("  - pip\n  - pip:\n    - rich  # nice\n", ["python=3.11", NP, "pip"], ["rich", MS]),
        ("  - pip:\n    - torch==2.1\n    - rich\n", ["python=3.11", NP, "pip"], [MS, "rich"]),
        ("  - pip:\n      - 'torch'\n  - scipy\n", ["python=3.11", NP, "scipy", "pip"], [MS]),
    ],
)
def test_conda(rest: str, conda: list[str], by_pip: list[str]) -> None:
    new, findings = rewritten("environment.yml", ENVIRONMENT + rest)
    body = yaml.safe_load(new)
    assert findings == [] and body["channels"] == ["conda-forge"]
    assert sorted(item for item in body["dependencies"] if isinstance(item, str)) == sorted(conda)
    assert [item for item in body["dependencies"] if isinstance(item, dict)] == [{"pip": by_pip}]
    assert ("# nice" in new) == ("# nice" in rest)


def test_other_yaml_is_left_alone() -> None:
    text = "model:\n  - torch\n"
    assert rewritten("config.yaml", text) == (text, [])


def test_the_whole_repository(tmp_path: Path) -> None:
    files = {
        "net.py": "import torch\nimport torchvision\n\nx = torch.ones(2)\n",
        "pyproject.toml": PYPROJECT,
        "setup.py": SETUP_PY,
        "environment.yml": ENVIRONMENT,
        "requirements.txt": "torch\ntorchvision\n",
        "model.yaml": "framework: torch\n",
    }
    for name, text in files.items():
        (tmp_path / "repo").mkdir(exist_ok=True)
        (tmp_path / "repo" / name).write_text(text, encoding="utf-8")
    report = convert(tmp_path / "repo", tmp_path / "out")
    out = {name: (tmp_path / "out" / name).read_text(encoding="utf-8") for name in files}
    assert out["model.yaml"] == files["model.yaml"]
    for name in ("pyproject.toml", "setup.py", "environment.yml", "requirements.txt"):
        assert re.search(r"mindspore==2\.10", out[name]), name
    assert "torchvision" in out["requirements.txt"]  # net.py still needs it
    where = [(f.code, f.file) for f in report.findings]
    assert where.count(("M114", "requirements.txt")) == 1 and ("M114", "net.py") in where
