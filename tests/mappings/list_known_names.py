"""Writes `mappings/api/known_names.json`: every public name of the installed torch.

    python tests/mappings/list_known_names.py

Public: no part of the dotted name begins with an underscore, and the module lists it in `__all__` or, without one,
defines it or re-exports it from torch. Members are listed for the classes whose objects a program holds.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
import types
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

TARGET = Path(__file__).parents[2] / "mappings" / "api" / "known_names.json"
MEMBERS_OF = (
    "torch.Tensor",
    "torch.device",
    "torch.dtype",
    "torch.Generator",
    "torch.Size",
    "torch.nn.Module",
    "torch.nn.ModuleList",
    "torch.nn.ModuleDict",
    "torch.nn.ParameterList",
    "torch.nn.ParameterDict",
    "torch.nn.Sequential",
    "torch.optim.Optimizer",
    "torch.optim.lr_scheduler.LRScheduler",
    "torch.utils.data.DataLoader",
    "torch.utils.data.Dataset",
    "torch.utils.data.Sampler",
    "torch.utils.data.DistributedSampler",
    "torch.autograd.Function",
    "torch.amp.GradScaler",
    "torch.cuda.Event",
    "torch.cuda.Stream",
)
INSTANCE_ATTRIBUTES = {
    "torch.nn.Module": ("training", "__init__"),
    "torch.optim.Optimizer": ("param_groups", "state", "defaults"),
    "torch.optim.lr_scheduler.LRScheduler": ("base_lrs", "last_epoch", "optimizer"),
    "torch.utils.data.DataLoader": ("batch_size", "dataset", "sampler", "batch_sampler", "num_workers", "drop_last"),
}
SWITCHES = {
    "torch.backends.cudnn": "allow_tf32 benchmark benchmark_limit deterministic enabled",
    "torch.backends.cuda.matmul": "allow_bf16_reduced_precision_reduction allow_fp16_reduced_precision_reduction"
    " allow_tf32 fp32_precision",
    "torch.distributed.ReduceOp": "AVG BAND BOR BXOR MAX MIN PREMUL_SUM PRODUCT SUM",
}
"""Names that live on objects, which the walk over modules does not see."""
# Importing these needs software that is absent here, starts something, or they hold torch's own tests and tools.
SKIPPED = ("torch.testing", "torch.utils.benchmark", "torch.utils.tensorboard", "torch.utils.hipify", "torch.contrib")


def public_modules() -> Iterator[types.ModuleType]:
    """torch and its public submodules that can be imported here."""
    yield torch
    yield importlib.import_module("torch.testing")
    for info in pkgutil.walk_packages(torch.__path__, "torch.", onerror=lambda _: None):
        parts = info.name.split(".")
        if any(p.startswith("_") for p in parts) or info.name.startswith(SKIPPED):
            continue
        try:
            yield importlib.import_module(info.name)
        except (ImportError, AttributeError, RuntimeError, AssertionError) as error:
            print(f"left out: {info.name}: {error}", file=sys.stderr)


def public_names(module: types.ModuleType) -> list[str]:
    """Names a program may use as `module.name`."""
    listed = set(getattr(module, "__all__", ()))
    found = []
    for name in sorted(set(dir(module)) | listed):
        if name.startswith("_"):
            continue
        value = getattr(module, name, None)
        if not isinstance(value, types.ModuleType) and (name in listed or belongs(value, module)):
            found.append(name)
            if inspect.isclass(value) and isinstance(getattr(value, "__members__", None), Mapping):
                found += [f"{name}.{member}" for member in value.__members__ if not member.startswith("_")]
    return found


def belongs(value: object, module: types.ModuleType) -> bool:
    """Whether a module defines a value or passes it on from its own insides."""
    if isinstance(value, bool):
        return module.__name__.startswith("torch.backends")  # switches
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return module is torch
    if not callable(value):
        return False
    home = getattr(value, "__module__", None) or ""
    if inspect.isbuiltin(value) or (inspect.isclass(value) and home.startswith("torch._C")):
        return home.startswith("torch") or module is torch
    return home.split(".")[0] == "torch" and (module is torch or f"{home}.".startswith(f"{module.__name__}."))


def member_names(dotted: str) -> list[str]:
    """Public attributes and methods of a class."""
    value: object = torch
    for part in dotted.split(".")[1:]:
        value = getattr(value, part)
    return sorted({name for name in dir(value) if not name.startswith("_")} | set(INSTANCE_ATTRIBUTES.get(dotted, ())))


def main() -> None:
    """Write the file."""
    warnings.simplefilter("ignore")
    names = {m.__name__: " ".join(public_names(m)) for m in public_modules()}
    names["torch"] += " __version__"
    names |= {dotted: " ".join(member_names(dotted)) for dotted in MEMBERS_OF}
    for space, more in SWITCHES.items():
        names[space] = " ".join(sorted({*names.get(space, "").split(), *more.split()}))
    names = {space: names[space] for space in sorted(names) if names[space]}
    content = {"torch": torch.__version__.partition("+")[0], "names": names}
    TARGET.write_text(json.dumps(content, indent=0) + "\n", encoding="ascii")
    print(f"{sum(len(v.split()) for v in names.values())} names in {len(names)} namespaces")


if __name__ == "__main__":
    main()
