"""Worker of test_evaluation.py: one evaluation in several layouts of two ranks, and in one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from harness import report
from mindspore import Parameter, Tensor

from mappings.layout import ParallelLayout
from mappings.parallel_options import ParallelOptions
from ms_models import AutoModelForCausalLM
from ms_models.data.packing import IGNORED
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.pipeline import Pipeline
from ms_models.parallel.vocabulary import VocabParallelCrossEntropy
from ms_models.train.backward import Backward
from ms_models.train.evaluation import Evaluation, evaluate
from ms_models.train.step import count_valid
from tests.ms_models.train.run_helpers import make_rows

LAYOUTS: dict[str, tuple[dict[str, int], dict[str, Any]]] = {
    "dp2": ({"dp": 2}, {}),
    "tp2": ({"tp": 2}, {}),
    "tp2 with sequence parallel": ({"tp": 2}, {"sequence_parallel": True}),
    "pp2": ({"pp": 2}, {}),
    "cp2 ring": ({"cp": 2}, {"context": "ring"}),
    "cp2 ulysses": ({"cp": 2}, {"context": "ulysses"}),
}
ROWS, MICRO = 6, 1


def adds_nothing(parameters: Sequence[Parameter]) -> Callable[[Sequence[Tensor]], None]:
    return lambda gradients: None


def rows_with_hits(directory: Path) -> list[dict[str, np.ndarray]]:
    """Rows of very unequal masks; where a target is known, every other one is what the model says."""
    model = AutoModelForCausalLM.from_pretrained(directory)
    rows = make_rows(ROWS, 3)
    for row in rows:
        said = model(Tensor(row["input_ids"][None]), Tensor(row["attention_mask"][None])).asnumpy()[0].argmax(-1)
        for place in range(1, len(said), 2):
            if row["labels"][place] != IGNORED:
                row["labels"][place] = said[place - 1]
    return rows


def evaluated(
    directory: Path, rows: list[dict[str, np.ndarray]], mesh: Mesh, options: dict[str, Any]
) -> tuple[Evaluation, list[int]]:
    model = AutoModelForCausalLM.from_pretrained(directory, mesh, ParallelOptions(**options))
    make: Any = Pipeline if mesh.layout.pp > 1 else Backward
    passes = make(model, adds_nothing, lambda function: function)
    mine = rows[mesh.coordinates["dp"] :: mesh.layout.dp]
    batches = [{name: value[None] for name, value in row.items()} for row in mine]
    found = evaluate(model, passes, mesh, batches, count_valid)
    made: list[int] = []
    if mesh.layout.pp == mesh.layout.cp == 1 and not options:
        made = model.generate(Tensor(np.array([[3, 7, 2]], np.int32)), 4).asnumpy()[0].tolist()
    return found, made


def local_hits(cell: VocabParallelCrossEntropy, logits: Tensor, labels: Tensor) -> Tensor:
    """A planted fault: the likeliest token of this rank's part of the vocabulary."""
    return ((cell.without_padding(logits).argmax(axis=-1).astype(labels.dtype) + cell.start) == labels).astype(
        "float32"
    )


def work() -> dict[str, Any]:
    directory = Path(sys.argv[1])
    rows = rows_with_hits(directory)
    results: dict[str, Any] = {}
    meshes = {name: Mesh.from_environment(ParallelLayout(**axes)) for name, (axes, _) in LAYOUTS.items()}
    for name, mesh in {"one": Mesh.single(), **meshes}.items():
        found, made = evaluated(directory, rows, mesh, LAYOUTS[name][1] if name != "one" else {})
        results[name] = {"loss": found.loss, "tokens": found.tokens, "hits": found.hits, "made": made}
    whole, VocabParallelCrossEntropy.hits = VocabParallelCrossEntropy.hits, local_hits  # type: ignore[method-assign]
    results["fault"] = {"hits": evaluated(directory, rows, meshes["tp2"], {})[0].hits}
    VocabParallelCrossEntropy.hits = whole  # type: ignore[method-assign]
    return results


if __name__ == "__main__":
    report(work)
