"""A tiny repository as the code converter leaves one, and configurations of runs of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mappings.layout import ParallelLayout
from ms_models.train.config import RunConfig
from ms_models.train.config.schema import build

MODEL = """
from dataclasses import dataclass

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops


@dataclass
class Config:
    vocab: int = 19
    width: int = 6
    layers: int = 3
    dropout: float = 0.0
    learned: bool = False
    counts: bool = False


class Dense(nn.Cell):
    def __init__(self, inputs, outputs, rng):
        super().__init__()
        self.weight = Parameter(Tensor(rng.standard_normal((outputs, inputs)).astype(np.float32) * 0.3))
        self.bias = Parameter(Tensor(rng.standard_normal(outputs).astype(np.float32) * 0.1))

    def construct(self, x):
        return ops.matmul(x, self.weight.T) + self.bias


class Block(nn.Cell):
    kind = "plain"

    def __init__(self, config, index, rng):
        super().__init__()
        self.index = index
        self.mix = Dense(config.width, config.width, rng)
        self.out = Dense(config.width, config.width, rng)
        self.dropout = nn.Dropout(p=config.dropout)

    def construct(self, x, table, scale=1.0):
        mean = ops.cumsum(self.mix(x) * table, 1) * scale
        return x + self.dropout(self.out(ops.relu(mean)))


class Model(nn.Cell):
    def __init__(self, config):
        super().__init__()
        rng = np.random.default_rng(3)
        self.config = config
        self.embed = Parameter(Tensor(rng.standard_normal((config.vocab, config.width)).astype(np.float32)))
        self.blocks = nn.CellList([Block(config, index, rng) for index in range(config.layers)])
        self.scale = Parameter(Tensor(rng.standard_normal(config.width).astype(np.float32)))
        self.table = Parameter(Tensor(np.ones((1, 8, config.width), np.float32)), requires_grad=config.learned)
        if config.counts:
            self.register_buffer("seen", Tensor(np.zeros(1, np.float32)))

    def construct(self, ids, targets=None, as_dict=False):
        if self.config.counts:
            self._buffers["seen"] = self._buffers["seen"] + 1.0
        x = ops.gather(self.embed, ids, 0)
        for index, block in enumerate(self.blocks):
            assert block.index == index
            x = block(x, self.table[:, : ids.shape[1]], scale=0.5)
        logits = ops.matmul(x * self.scale, self.embed.T)
        if targets is None:
            return logits
        rows, labels = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
        counted = (labels != -100).astype(ms.float32)
        picked = ops.gather_elements(ops.log_softmax(rows, -1), 1, ops.maximum(labels, 0).expand_dims(-1)).squeeze(-1)
        loss = -(picked * counted).sum() / counted.sum()
        return {"loss": loss, "logits": logits} if as_dict else (logits, loss)


class Unfinished(nn.Cell):
    pass


def no_cell(config):
    return config
"""
DATA = '''
import numpy as np


def loaders(rows=40, start=0, length=8, masked=True):
    """Rows of very unequal numbers of labels, in batches of three."""

    def row(number):
        rng = np.random.default_rng(number % rows)
        ids = rng.integers(0, 19, length + 1)
        labels = ids[1:].copy()
        if masked:
            labels[: int(rng.integers(0, length))] = -100
        return ids[:-1], labels

    def batches(first, last):
        while first < last:
            made = [row(number) for number in range(first, min(first + 3, last))]
            yield np.stack([one for one, _ in made]), np.stack([one for _, one in made])
            first += 3

    return batches(start, 10**9), batches(1000, 1007)


def short(start=0):
    return [(np.zeros((2, 8), np.int64), np.zeros((2, 8), np.int64))]


def odd(start=0):
    return [np.zeros((2, 8))]
'''
ADAPTER: dict[str, Any] = {
    "module": "adapter_tiny_model",
    "class_name": "Model",
    "arguments": {"config": {"_target_": "adapter_tiny_model:Config"}},
    "inputs": {"input_ids": "ids", "labels": "targets"},
    "select": 1,
    "batches": {
        "function": "adapter_tiny_data:loaders", "arguments": {"rows": 30}, "position": "start", "train": 0,
        "validation": 1,
    },
}  # fmt: skip


def write_repository(directory: Path) -> Path:
    """The repository; one of an earlier test is forgotten, as this process imports one by these names."""
    sys.path[:] = [path for path in sys.path if not (Path(path) / "adapter_tiny_model.py").is_file()]
    for name in ("adapter_tiny_model", "adapter_tiny_data"):
        sys.modules.pop(name, None)
    directory.mkdir(parents=True)
    (directory / "adapter_tiny_model.py").write_text(MODEL)
    (directory / "adapter_tiny_data.py").write_text(DATA)
    return directory


def configured(repository: Path, output: Path, adapter: dict[str, Any] | None = None, **sections: Any) -> RunConfig:
    """A run of six steps with a global batch of 8 rows; sections replace fields, `adapter` those of the adapter."""
    values: dict[str, Any] = {
        "model": {"adapter": {"repository": str(repository), **ADAPTER, **(adapter or {})}},
        "train": {"steps": 6, "micro_batch_size": 2, "accumulation": 4, "seed": 5, "jit": False},
        "optimizer": {"lr": 0.01, "weight_decay": 0.1, "clip_norm": 0.5},
        "schedule": {"warmup_steps": 2},
        "output": {"directory": str(output)},
    }
    for name, fields in sections.items():
        values[name] = {**values.get(name, {}), **fields} if isinstance(fields, dict) else fields
    return build(RunConfig, values)


def with_model(**values: Any) -> dict[str, Any]:
    """Adapter fields for other values of the model's configuration."""
    return {"arguments": {"config": {"_target_": "adapter_tiny_model:Config", **values}}}


GRID = [
    ParallelLayout(),
    ParallelLayout(dp=2, zero=1),
    ParallelLayout(dp=2, zero=3),
    ParallelLayout(tp=2),
    ParallelLayout(tp=2, pp=2),
    ParallelLayout(pp=3),
    ParallelLayout(pp=2, dp=3, zero=2),
]
