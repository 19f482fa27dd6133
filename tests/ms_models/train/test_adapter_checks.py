"""What is found about converted code before a process starts: read from source, one line each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from mappings.errors import UserError
from ms_models.train.launch import preflight
from ms_models.train.launch.dry_run import judge
from tests.ms_models.train.adapter_helpers import configured, with_model, write_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("adapter") / "repository")


def target(name: str) -> dict[str, Any]:
    return {"arguments": {"config": {"_target_": name}}}


def test_a_run_that_fits_passes_and_nothing_is_imported(repository: Path, tmp_path: Path) -> None:
    save_file({"a": np.zeros((2, 3), np.float32)}, tmp_path / "w.safetensors")
    config = configured(repository, tmp_path / "run", {"weights": str(tmp_path / "w.safetensors"), "blocks": "blocks"})
    verdict = judge(config)
    assert verdict.exit_code == 0, list(verdict.lines())
    lines = [check.line for check in verdict.checks]
    assert any("model: Model of" in line and "6 parameters" in line for line in lines)
    assert any("forward: input_ids as ids, labels as targets" in line for line in lines)
    code = (
        "import sys; from tests.ms_models.train.adapter_helpers import configured; from pathlib import Path\n"
        "from ms_models.train.launch.dry_run import judge\n"
        f"assert judge(configured(Path({str(repository)!r}), Path({str(tmp_path / 'run')!r}))).exit_code == 0\n"
        "assert not {'mindspore', 'adapter_tiny_model'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


@pytest.mark.parametrize(
    ("adapter", "sections", "expected"),
    [
        ({"repository": "nowhere"}, {}, "repository nowhere: no such directory; it is the -o of `msmigrate code`"),
        ({"module": "models"}, {}, "has no module 'models'"),
        ({"class_name": "GPT"}, {}, "has no class 'GPT'; it has Config, Dense, Block, Model, Unfinished"),
        ({"class_name": "no_cell"}, {}, "'no_cell' of .* is no class"),
        ({"class_name": "Unfinished", "arguments": {}}, {}, "Unfinished has no forward"),
        (target("adapter_tiny_model:Settings"), {}, "has no 'Settings'"),
        ({"arguments": {"settings": 1}}, {}, "Model.__init__ has no argument 'settings'; it has config"),
        ({"arguments": {}}, {}, "Model.__init__ needs 'config'"),
        ({"inputs": {"input_ids": "tokens", "labels": "targets"}}, {}, "no parameter 'tokens'; it has ids, targets"),
        ({"inputs": {"input_ids": "as_dict", "labels": "targets"}}, {}, "forward of Model needs 'ids'"),
        ({"constants": {"cache": None}}, {}, "forward of Model has no parameter 'cache'"),
        ({"weights": "gone.safetensors"}, {}, "weights gone.safetensors: no such file"),
        ({"batches": {"function": "adapter_tiny_data:loader"}}, {}, "has no 'loader'"),
        ({"batches": {"function": "adapter_tiny_data:short"}}, {"train": {"eval_every": 2}}, "names no validation"),
        ({}, {"layout": {"tp": 2}}, "tp=2, but .* was converted whole; convert it with `msmigrate code --shard auto`"),
        ({}, {"layout": {"cp": 2}}, "converted code knows tp, pp, dp and zero"),
        ({}, {"layout": {"pp": 2}}, "pp=2 needs the list of blocks; name it in model.adapter.blocks"),
        ({}, {"layout": {"dp": 2, "zero": 3}}, "zero=3 needs the list of blocks"),
        ({}, {"parallel": {"recompute": "block"}}, "recompute: block needs the list of blocks"),
        ({}, {"parallel": {"recompute": "full"}}, "converted code knows none and block"),
        ({}, {"precision": {"compute": "bf16"}}, "has number formats of its own"),
        ({"blocks": "layers"}, {"layout": {"pp": 2}}, "Model sets no 'layers'; it sets config, embed, blocks"),
        ({"blocks": "blocks"}, {"layout": {"pp": 2}, "train": {"jit": True}}, "graph cannot; set train.jit: false"),
        ({"blocks": "blocks"}, {"layout": {"pp": 8}}, "4 micro-batches are fewer than the pp=8 stages"),
        ({"blocks": "blocks"}, {"layout": {"dp": 2, "zero": 3}, "train": {"jit": True}}, "needs train.jit: false"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_before_a_process_starts(
    adapter: dict[str, Any], sections: dict[str, Any], expected: str, repository: Path, tmp_path: Path
) -> None:
    config = configured(repository, tmp_path / "run", adapter, **sections)
    with pytest.raises(UserError, match=expected) as caught:
        preflight.check_model(config)
    assert "\n" not in str(caught.value)
    assert judge(config).exit_code == 1


@pytest.mark.parametrize(
    ("adapter", "expected"),
    [
        ({"select": [1]}, "select' must be a position or a name, found list"),
        ({"select": -1}, "select' must be at least 0"),
        ({"logits": -1}, "logits' must be at least 0"),
        ({"output": "logits", "logits": 0}, "with 'output: logits' say 'select' alone"),
        ({"inputs": {"tokens": "ids"}}, "inputs' knows input_ids, labels, attention_mask, found 'tokens'"),
        ({"inputs": {"labels": "targets"}}, "must say what forward calls 'input_ids'"),
        ({"inputs": {"input_ids": "ids"}}, "must say what forward calls 'labels'"),
        ({"outputs": "loss"}, "unknown key 'model.adapter.outputs'; did you mean 'output'"),
        ({"output": "logit"}, "did you mean 'logits'"),
        (target("Config"), "_target_' must be module:name, found 'Config'"),
        ({"batches": {"function": "loaders"}}, "batches.function' must be module:name"),
        ({"batches": None}, "give one of 'data.path'"),
        ({**with_model(), "module": "my-model"}, "module' must be a dotted name"),
    ],
)
def test_configurations_that_make_no_sense_are_refused(
    adapter: dict[str, Any], expected: str, repository: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=expected):
        configured(repository, tmp_path / "run", adapter)


def test_own_batches_take_the_place_of_data(repository: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'model.adapter.batches' takes the place of data"):
        configured(repository, tmp_path / "run", data={"path": "d"})
    with pytest.raises(UserError, match=r"'metrics.prefixes' takes beginnings of prepared data"):
        configured(repository, tmp_path / "run", metrics={"prefixes": 2})
