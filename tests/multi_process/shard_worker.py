"""Worker of test_shard.py: converted projects with cut layers, on the ranks of one launch."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from harness import report
from mindspore import Tensor


def compute(job: dict[str, Any], folder: Path, alone: bool) -> dict[str, Any]:
    """Output, loss, gradients and state of a model with the given weights; `alone` builds it for one rank."""
    given = np.load(folder / "weights.npz")
    root = folder / "converted"
    sys.path.insert(0, str(root))
    module = importlib.import_module(job["module"])
    current = importlib.import_module("ms_compat.current")
    split_layers: Any = importlib.import_module("ms_compat.split_layers")
    mesh = importlib.import_module("ms_compat.mesh")
    current.set_mesh(mesh.Mesh.single() if alone else None)
    if job.get("fault") == "reduce":  # the partial results of row layers are no longer added
        split_layers.ReduceFromGroup = lambda group: lambda x: x
    if job.get("fault") == "enter":  # the gradients of what every rank has are no longer added
        split_layers.EnterParallel.construct = lambda self, x: x
    try:
        model = eval(job["build"], vars(module))
        model.load_state_dict({name: Tensor(values) for name, values in given.items()})
        model.train() if job.get("training", True) else model.eval()
        for call in job.get("before", ()):
            eval(call, {"model": model})
        inputs = [Tensor(np.array(v)) if isinstance(v, list) else v for v in job["inputs"]]
        weights = Tensor(np.array(job["loss_weights"], np.float32))

        def forward(*args: Any) -> tuple[Any, Any]:
            out = model(*args)
            logits = out[0] if isinstance(out, tuple) else getattr(out, "logits", out)
            return (logits * weights).sum(), logits

        parameters = dict(model.named_parameters())
        grad = ms.value_and_grad(forward, None, list(parameters.values()), has_aux=True)
        (loss, logits), gradients = grad(*inputs)
        return {
            "loss": float(loss.asnumpy()),
            "logits": logits.asnumpy().tolist(),
            "gradients": {
                name: whole(p, g).tolist() for (name, p), g in zip(parameters.items(), gradients, strict=True)
            },
            "shapes": {name: list(p.shape) for name, p in parameters.items()},
            "state": {name: float(np.abs(v.asnumpy() - given[name]).max()) for name, v in model.state_dict().items()},
            "initial": initial(module, job),
            "pretrained": read_back(module, model, job, folder),
        }
    finally:
        sys.path.remove(str(root))
        forget(root)


def read_back(module: Any, model: Any, job: dict[str, Any], folder: Path) -> float | None:
    """How far the weights are off after `save_pretrained` and `from_pretrained`."""
    if "pretrained" not in job:
        return None
    path = folder / f"saved{os.environ['RANK_ID']}"
    model.save_pretrained(path)
    again = getattr(module, job["pretrained"]).from_pretrained(path).state_dict()
    return max(float(np.abs(v.asnumpy() - again[name].asnumpy()).max()) for name, v in model.state_dict().items())


def initial(module: Any, job: dict[str, Any]) -> float:
    """What a model begins with from a seed, as one number; it must not depend on the ranks."""
    random = importlib.import_module("ms_compat.random")
    random.manual_seed(7)
    state = eval(job["build"], vars(module)).state_dict()
    numbers = [float(np.abs(v.asnumpy().astype(np.float64)).sum()) for v in state.values()]
    return float(sum((i + 1) * n for i, n in enumerate(numbers)))


def whole(parameter: Any, value: Tensor) -> np.ndarray[Any, Any]:
    piece = getattr(parameter, "piece", None)
    return (value if piece is None else piece.whole(value)).asnumpy()


def forget(root: Path) -> None:
    """The projects have modules of the same names."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(f"{root}{os.sep}"):
            del sys.modules[name]


def unseeded(job: dict[str, Any], folder: Path) -> list[float]:
    """Two outputs of a model with dropout, in a program that never seeds."""
    root = folder / "converted"
    sys.path.insert(0, str(root))
    try:
        model = eval(job["dropout"], vars(importlib.import_module(job["module"])))
        model.train()
        inputs = [Tensor(np.array(v)) for v in job["inputs"]]
        return [float(model(*inputs)[1].asnumpy()) for _ in range(2)]
    finally:
        sys.path.remove(str(root))
        forget(root)


def compiled(job: dict[str, Any], folder: Path) -> float:
    """How far the gradients of a compiled step through cut layers are from those of an eager one."""
    root = folder / "converted"
    sys.path.insert(0, str(root))
    try:
        module = importlib.import_module(job["module"])
        config = eval(job["config"], vars(module))

        class Ends(module.Module):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.table = module.VocabParallelEmbedding(config.vocab_size, config.n_embd)
                self.mlp = module.MLP(config)
                self.head = module.VocabParallelLinear(config.n_embd, config.vocab_size, bias=False)

            def construct(self, ids: Tensor) -> Tensor:
                x = self.table(ids)
                return self.head(x + self.mlp(x))

        model = Ends()

        def loss(ids: Tensor) -> Tensor:
            return (model(ids) ** 2).mean()

        step = ms.value_and_grad(loss, None, list(model.parameters()))
        ids = Tensor(np.array(job["inputs"][0]))
        eager, graph = step(ids)[1], ms.jit(step)(ids)[1]
        return max(float(np.abs(a.asnumpy() - b.asnumpy()).max()) for a, b in zip(eager, graph, strict=True))
    finally:
        sys.path.remove(str(root))
        forget(root)


def refused(job: dict[str, Any], folder: Path) -> str:
    """The message with which a model that these ranks cannot share out is refused."""
    root = folder / "converted"
    sys.path.insert(0, str(root))
    try:
        importlib.import_module("ms_compat.current").set_mesh(None)
        eval(job["refused"], vars(importlib.import_module(job["module"])))
    except Exception as error:  # noqa: BLE001  (its text is what the test looks at)
        return f"{type(error).__name__}: {error}"
    finally:
        sys.path.remove(str(root))
        forget(root)
    return "nothing"


def work() -> dict[str, Any]:
    ms.runtime.launch_blocking()
    found: dict[str, Any] = {}
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    found["compiled"] = compiled(jobs["torch_gpt"], Path(jobs["torch_gpt"]["folder"]))
    found["unseeded"] = unseeded(jobs["torch_gpt"], Path(jobs["torch_gpt"]["folder"]))
    for name, job in jobs.items():
        folder = Path(job["folder"])
        if "refused" in job:
            found[name] = refused(job, folder)
            continue
        found[name] = {"cut": compute(job, folder, alone=False)}
        if job.get("alone"):
            found[name]["alone"] = compute(job, folder, alone=True)
    return found


if __name__ == "__main__":
    report(work)
