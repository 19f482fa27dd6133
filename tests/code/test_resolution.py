"""Names and types across files: re-exports, relative imports, aliases, callers that tell a function its types."""

from __future__ import annotations

from pathlib import Path

from migrate.code.command import convert
from migrate.report import Report


def converted(tmp_path: Path, files: dict[str, str]) -> tuple[dict[str, str], Report]:
    for name, text in files.items():
        path = tmp_path / "repo" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    report = convert(tmp_path / "repo", tmp_path / "out")
    return {name: (tmp_path / "out" / name).read_text(encoding="utf-8") for name in files}, report


def test_reexports_and_relative_imports(tmp_path: Path) -> None:
    files = {
        "pkg/__init__.py": "from .base import Base, act\n",
        "pkg/base.py": (
            "import torch.nn as nn\nimport torch.nn.functional as F\n\n"
            "act = F.relu\n\n\nclass Base(nn.Module):\n    pass\n"
        ),
        "pkg/sub/__init__.py": "",
        "pkg/sub/head.py": (
            "from .. import Base\nfrom ..base import act\nfrom .. import base as b\n\n\n"
            "class Head(Base):\n    def forward(self, x):\n        return act(x) + b.F.relu(x)\n"
        ),
    }
    out, report = converted(tmp_path, files)
    assert "class Base(Module):" in out["pkg/base.py"]
    assert "def construct(self, x):" in out["pkg/sub/head.py"]
    assert "ops.relu(x) + ops.relu(x)" in out["pkg/sub/head.py"]
    assert report.facts["torch_names_unconverted"] == 0


def test_callers_tell_a_function_its_types(tmp_path: Path) -> None:
    files = {
        "helpers.py": (
            "def halves(x):\n    return x.size(0) // 2, x.unsqueeze(0)\n\n\n"
            "class Bag:\n    def __init__(self):\n        self.items = []\n\n"
            "    def size(self, dim):\n        return dim\n\n"
            "    def put(self, item):\n        self.items.append(item)\n\n"
            "    def first(self):\n        return self.items[0].size(1)\n\n\n"
            "def other(x):\n    return x.size(0)\n"
        ),
        "main.py": (
            "import torch\nfrom helpers import Bag, halves, other\n\n"
            "n, y = halves(torch.zeros(2, 3))\nz = y.size(1)\nbag = Bag()\nbag.put(y)\nw = bag.size(1) + other(bag)\n"
        ),
    }
    out, _ = converted(tmp_path, files)
    assert "return x.shape[0] // 2" in out["helpers.py"]
    assert "return self.items[0].shape[1]" in out["helpers.py"]
    assert "def other(x):\n    return x.size(0)" in out["helpers.py"]  # given a Bag, not a tensor
    assert "z = y.shape[1]" in out["main.py"]
    assert "bag.size(1)" in out["main.py"]


def test_a_local_name_hides_an_import(tmp_path: Path) -> None:
    files = {
        "a.py": (
            "import torch\nimport torch.nn.functional as F\n\n\n"
            "def f(F, x: torch.Tensor):\n    return F.relu(x)\n\n\n"
            "def g(x: torch.Tensor):\n    return F.relu(x)\n"
        )
    }
    out, _ = converted(tmp_path, files)
    assert "    return F.relu(x)" in out["a.py"].split("def g")[0]
    assert "    return ops.relu(x)" in out["a.py"].split("def g")[1]


def test_a_module_of_the_repository_is_not_torch(tmp_path: Path) -> None:
    files = {
        "nn.py": "class Linear:\n    pass\n",
        "a.py": "from nn import Linear\nimport nn\n\nx = Linear(), nn.Linear()\n",
    }
    out, report = converted(tmp_path, files)
    assert out["a.py"] == files["a.py"]
    assert report.facts["torch_names_seen"] == 0


def test_packages_that_need_torch_are_reported(tmp_path: Path) -> None:
    text = (
        "import timm\nfrom transformers import AutoConfig, AutoTokenizer\nfrom transformers import LlamaForCausalLM\n"
        "import torchvision.transforms as T\nfrom torch import *\n"
    )
    _, report = converted(tmp_path, {"a.py": text})
    assert [(f.code, f.line) for f in report.findings] == [("M114", 1), ("M114", 3), ("M114", 4), ("M103", 5)]


def test_a_name_that_others_still_take_stays_imported(tmp_path: Path) -> None:
    files = {
        "common.py": "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n",
        "a.py": "from common import F, nn, torch\n\nx = F.frobnicate(torch.zeros(2)), nn.Linear(2, 2)\n",
    }
    out, report = converted(tmp_path, files)
    kept = "import torch.nn.functional as F", "from ms_compat.unconverted import functional as F"
    assert out["common.py"] == f"try:\n    {kept[0]}\nexcept ImportError:\n    {kept[1]}\n"
    assert "from common import F\n" in out["a.py"]
    assert [f.code for f in report.findings] == ["M110"]


def test_einops_stays_a_requirement_without_a_finding_and_its_helpers_come_along(tmp_path: Path) -> None:
    files = {
        "requirements.txt": "torch>=2\neinops\nflash-attn\n",
        "pkg/__init__.py": "",
        "pkg/a.py": (
            "import torch\nfrom einops import rearrange\n\n\n"
            "def f(x: torch.Tensor):\n    return rearrange(x, 'a b -> b a')\n"
        ),
    }
    out, report = converted(tmp_path, files)
    assert out["requirements.txt"].splitlines()[-2:] == ["einops", "flash-attn"]
    assert [(f.code, f.file) for f in report.findings] == [("M114", "requirements.txt")]
    assert "flash_attn" not in report.findings[0].message and "attention kernels" in report.findings[0].message
    assert "from ms_compat.einops import rearrange" in out["pkg/a.py"]
    assert (tmp_path / "out" / "ms_compat" / "einops_patterns.py").is_file()


def test_a_package_of_the_repository_may_have_the_name_of_a_library(tmp_path: Path) -> None:
    files = {
        "einops.py": "import torch\n\n\ndef rearrange(x: torch.Tensor):\n    return x.size(0)\n",
        "peft.py": "",
        "a.py": "from einops import rearrange\nimport peft\n",
    }
    out, report = converted(tmp_path, files)
    assert out["a.py"] == files["a.py"]
    assert report.findings == []
