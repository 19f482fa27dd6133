"""Wrong conversions that other tools are known for, one case each: by the text of the output, or by computed values."""

from __future__ import annotations

import ast
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from migrate.code.command import convert

RIVALS = Path(__file__).parent / "rivals"
HEAD = "import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n"
NET = (
    "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(2, 2)\n\n"
)


@dataclass(frozen=True)
class Case:
    """A file, and what its conversion shows."""

    source: str
    has: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
    """Codes of the warnings, in their order; no others may be there."""


CASES: dict[str, Case] = {
    "comments are deleted": Case(
        "# header\n" + HEAD + "# above\nx = torch.ones(2)  # beside\n\n\ndef f():\n    # inside\n    return 1\n",
        has=("# header", "# above", "# beside", "    # inside"),
    ),
    "quotes and blank lines change": Case(
        HEAD + "a = 'one'\n\n\n\nb = \"two\"\nx = torch.ones(2)\n", has=("a = 'one'\n\n\n\nb = \"two\"\n",)
    ),
    "an absolute path is put in": Case(HEAD + "x = torch.ones(2)\n", lacks=("sys.path", "/tmp", str(Path.home()))),
    "a mark makes the file unreadable": Case(
        HEAD + "y = 1 + torch.frobnicate(\n    2,\n)\n", has=("y = 1 + torch.frobnicate(",), codes=("M110",)
    ),
    "the second result of max is computed again": Case(
        HEAD + "def f(x: torch.Tensor):\n    a, b = x.max(dim=1)\n    return a, b\n",
        has=("a, b = ",), lacks=("argmax",),
    ),
    "getattr with a constant name loses its import": Case(
        HEAD + 'kind = getattr(torch, "float32")\n', has=("kind = ms.float32",), lacks=("getattr",)
    ),
    "torchvision is renamed with torch in the requirements": Case("import torch\n", lacks=("mindspore",)),
    "backward() is commented out": Case(
        HEAD + NET + "    def forward(self, x):\n        return self.fc(x)\n\n\n"
        "def train(net: Net, x: torch.Tensor):\n    loss = net(x).sum()\n    loss.backward()\n",
        has=("backward_of(compute_loss, net)", "    loss_and_backward()"), lacks=("# loss", "pass"),
    ),
    "an import of a namespace that does not exist": Case(
        HEAD + "import torch.optim as optim\n\nlayer = nn.Linear(2, 2)\ny = F.relu(torch.ones(2))\n"
        "o = optim.SGD(layer.parameters(), lr=0.1)\n", lacks=("import mint.", "mint.mint", "import mindspore.mint"),
    ),
    "an argument that is called device vanishes from a user's call": Case(
        HEAD + "def place(x, device):\n    return x, device\n\n\ndef f(cfg, device):\n"
        "    return place(cfg.device, device), place(1, device=device), torch.ones(2, device=device)\n",
        has=("place(cfg.device, device), place(1, device=device), ops.ones((2,))",),
    ),
    "size() of a tokenizer becomes shape": Case(
        HEAD + "class Tok:\n    def size(self):\n        return 7\n\n\ndef f(tok: Tok, x: torch.Tensor):\n"
        "    return tok.size(), x.size()\n", has=("return tok.size(), x.shape",),
    ),
    "every forward is renamed, its calls are not": Case(
        HEAD + "class Pipe:\n    def forward(self, x):\n        return x\n\n\n" + NET
        + "    def forward(self, x):\n        return self.fc(x)\n\n    def twice(self, x):\n"
        "        return Pipe().forward(self.forward(self.forward(x)))\n",
        has=("    def forward(self, x):\n        return x", "def construct(self, x):\n        return self.fc(x)",
             "Pipe().forward(self.construct(self.construct(x)))"),
    ),
    "feed_forward is renamed in part": Case(
        HEAD + NET + "    def feed_forward(self, forward_only):\n        return self.fc(forward_only)\n\n"
        "    def forward(self, x):\n        return self.feed_forward(x)\n",
        has=("def feed_forward(self, forward_only)", "return self.feed_forward(x)"), lacks=("feed_construct",),
    ),
    "forward of an autograd function is renamed": Case(
        HEAD + "class Twice(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n"
        "        return x * 2\n\n"
        "    @staticmethod\n    def backward(ctx, grad):\n        return grad * 2\n",
        has=("    def forward(ctx, x):", "    def backward(ctx, grad):"), lacks=("construct",),
    ),
    "torch.distributed stays imported": Case(
        "import torch.distributed as dist\n\nrank = dist.get_rank() if dist.is_initialized() else 0\n", lacks=("torch",)
    ),
    "torch is not imported any more, and still used": Case(
        "import math, torch\n\nx = torch.frobnicate(math.pi)\ny = torch.ones(2)\n",
        has=("import math", "torch.frobnicate(math.pi)", "from ms_compat.unconverted import torch", "ops.ones((2,))"),
        codes=("M110",),
    ),
    "an alias is removed that is still used": Case(
        HEAD + "def f(x: torch.Tensor):\n    return F.relu(x), F.frobnicate(x)\n",
        has=("ops.relu(x), F.frobnicate(x)", "import torch.nn.functional as F"), codes=("M110",),
    ),
    "a setting becomes the method with the same last word": Case(
        HEAD + "torch.backends.cuda.matmul.allow_tf32 = True\n", lacks=("Tensor.matmul", "ops.matmul", "mint.matmul")
    ),
    "devices stay as arguments": Case(
        HEAD + "def f(device):\n    return torch.zeros(2, device=device), torch.arange(3, device=device)\n",
        lacks=("device=",),
    ),
    "a typing name is used and not imported": Case(
        "from typing import List\n\nimport torch\nfrom torch import Tensor\n\n\ndef f(x: List[Tensor]) -> List[int]:\n"
        "    return [y.size(0) for y in x]\n", has=("from typing import List", "List[ms.Tensor]) -> List[int]"),
    ),
    "numbers run into the names of types": Case(
        HEAD + "kinds = torch.int32, torch.float32, torch.int8, torch.float16\nx = torch.zeros(2, dtype=torch.int32)\n",
        has=("ms.int32, ms.float32, ms.int8, ms.float16", "dtype=ms.int32"), lacks=("328", "88"),
    ),
    "only the first unknown name of a line is told": Case(
        HEAD + "x = torch.frobnicate(1), torch.ones(2), torch.defrobnicate(2), torch.frobnicate(3)\n",
        codes=("M110", "M110", "M110"), has=("torch.frobnicate(1), ops.ones((2,)), torch.defrobnicate(2)",),
    ),
    "a name is replaced inside another one": Case(
        HEAD + "my_torch = 1\ntorch_ones = my_torch\nnnn = F_ = torch_ones\nx = torch.ones(2)\n",
        has=("my_torch = 1\ntorch_ones = my_torch\nnnn = F_ = torch_ones\n",),
    ),
    "texts are replaced": Case(
        HEAD + 'note = "torch.ones(2) and nn.Linear"\nx = torch.ones(2)\n', has=('"torch.ones(2) and nn.Linear"',)
    ),
    "a write through a transposed view loses its gradient without a word": Case(
        HEAD + "def f(x: torch.Tensor):\n    y = x * 2\n    y.transpose(0, 1)[0] = x[0]\n    return y\n",
        codes=("M304",),
    ),
    "retained options are dropped without a word": Case(
        HEAD + "def f(x: torch.Tensor):\n    return torch.sum(x, dim=0, out=x)\n", codes=("M112",), has=("out=x",)
    ),
    "escapes in texts break the conversion": Case(
        HEAD + "a = r'\\u12'\nb = '\\N{BULLET}'\nx = torch.ones(2)\n", has=("a = r'\\u12'\nb = '\\N{BULLET}'\n",)
    ),
    "a module of the repository named like torch's is converted": Case(
        "from mytorch import nn\n\nlayer = nn.Linear(2, 2)\n", has=("layer = nn.Linear(2, 2)",), lacks=("ms_compat",)
    ),
    "main and argparse are taken apart": Case(
        "import argparse\n\nimport torch\n\nif __name__ == '__main__':\n    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--device', default='cuda' if torch.cuda.is_available() else 'cpu')\n"
        "    args = parser.parse_args()\n    print(args.device)\n",
        has=("if __name__ == '__main__':", "parser.add_argument('--device', default=", "print(args.device)"),
    ),
}  # fmt: skip


def converted(source: str, directory: Path) -> tuple[str, tuple[str, ...]]:
    repository = directory / "repository"
    repository.mkdir()
    (repository / "case.py").write_text(source, encoding="utf-8")
    (repository / "requirements.txt").write_text("torchvision\ntorch>=2\n", encoding="utf-8")
    report = convert(repository, directory / "out")
    warnings = tuple(f.code for f in report.findings if f.severity != "note" and f.file == "case.py")
    return (directory / "out" / "case.py").read_text(encoding="utf-8"), warnings


@pytest.mark.parametrize("name", CASES)
def test_text(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    text, codes = converted(case.source, tmp_path)
    ast.parse(text)
    assert [part for part in case.has if part not in text] == [], text
    assert [part for part in case.lacks if part in text] == [], text
    assert codes == case.codes
    if not codes:  # then no name of torch is left that runs
        assert not re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE)


def test_torchvision_keeps_its_name_in_the_requirements(tmp_path: Path) -> None:
    converted("import torch\n", tmp_path)
    lines = (tmp_path / "out" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert not any(re.search("torchvision.*mindspore|mindspore.*vision", line) for line in lines)
    assert not any(re.match(r"torch\b", line) for line in lines)


# -- values
RUN = """
import json, sys
if sys.argv[1] == "mindspore":
    import mindspore
    mindspore.runtime.launch_blocking()
import values
print(json.dumps(values.run()))
"""


def computed(framework: str, directory: Path) -> dict[str, list]:
    environment = {**os.environ, "PYTHONPATH": str(directory), "OMP_NUM_THREADS": "2", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, framework],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list], dict[str, list]]:
    out = tmp_path_factory.mktemp("rivals") / "out"
    report = convert(RIVALS, out)
    assert report.exit_code == 0, [f"{f.code} {f.line} {f.message}" for f in report.findings]
    return computed("torch", RIVALS), computed("mindspore", out)


def same(left: Any, right: Any) -> bool:
    """Numbers to the rounding of fp32, everything else exactly; a number is no text."""
    if isinstance(left, list):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, str) or isinstance(right, str):
        return bool(left == right)
    return math.isclose(left, right, rel_tol=1e-4, abs_tol=1e-6)


VALUES = re.findall(r"^def (\w+)\(\):", (RIVALS / "values.py").read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", [name for name in VALUES if name != "run"])
def test_value(name: str, sides: tuple[dict[str, list], dict[str, list]]) -> None:
    torch, mindspore = sides
    assert same(torch[name], mindspore[name]), (torch[name], mindspore[name])


def test_a_changed_value_is_noticed(sides: tuple[dict[str, list], dict[str, list]]) -> None:
    values = sides[0]["detach_stops_the_gradient"]
    assert not same(values, [*values[:-1], values[-1] * 2])
    assert not same(values, values[:-1])
