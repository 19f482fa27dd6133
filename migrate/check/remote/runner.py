"""Imports classes of a checkpoint's own code, reads its config.json with them, and lists their parameters.

    python runner.py JOB.json OUT.json

Stands alone: it is run by path, in a process that may end at any time. OUT.json is written anew after each class.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Reading the clock, files and modules is what imports do; these are what a model has no need of.
NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.bind", "socket.sendto", "urllib.Request")
PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.forkpty")
CHANGES = ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.chmod", "os.truncate", "os.symlink", "os.link")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def main(job: dict[str, Any], out: Path) -> None:
    """Runs the classes of a job, one after the other."""
    os.chdir(job["home"])
    results: list[dict[str, Any]] = []
    acts: list[str] = []
    body: dict[str, Any] = {"error": None, "results": results, "acts": acts}
    try:
        import transformers  # noqa: F401 - before the watch begins: what libraries do by themselves is theirs
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        if any(kind == "model" for kind, _ in job["classes"]):
            import torch  # noqa: F401
    except ImportError as error:
        body["error"] = _line(error)
        out.write_text(json.dumps(body), encoding="utf-8")
        return
    _watch(Path(job["home"]), acts)
    for kind, reference in job["classes"]:
        result: dict[str, Any] = {"reference": reference, "kind": kind, "failed": None}
        results.append(result)
        step = "import"
        try:
            cls: Any = get_class_from_dynamic_module(reference, job["model"], local_files_only=True)
            result["imported"] = True
            step = "config"
            if kind == "config":
                result["config"] = _read(cls, job["model"])
            elif kind == "tokenizer":
                cls.from_pretrained(job["model"], local_files_only=True)
            elif kind == "model":
                config, result["config"] = _config_of(cls, job["model"])
                step = "build"
                result |= _built(cls, config, job["real"])
        except BaseException as error:  # noqa: BLE001 - whatever foreign code raises is the result
            result["failed"] = {"step": step, "error": _line(error), "place": _place(error)}
        out.write_text(json.dumps(body), encoding="utf-8")


def _read(cls: Any, model: str) -> dict[str, Any]:
    config = cls.from_pretrained(model, local_files_only=True)
    return _described(config)


def _config_of(cls: Any, model: str) -> tuple[Any, dict[str, Any]]:
    """The configuration by the class that the model class names, or else by the installed one of its model type."""
    from transformers import AutoConfig

    kind = getattr(cls, "config_class", None) or AutoConfig
    config = kind.from_pretrained(model, local_files_only=True)
    return config, _described(config)


def _described(config: Any) -> dict[str, Any]:
    # Of the class: the object has what config.json says.
    return {"class": type(config).__name__, "model_type": getattr(type(config), "model_type", None)}


def _built(cls: Any, config: Any, real: bool) -> dict[str, Any]:
    """Parameters and stored buffers of a model, by name. Without memory if its code allows that."""
    import torch

    device = "meta"
    try:
        with torch.device(device):
            model = cls(config)
    except (RuntimeError, NotImplementedError) as error:
        if not real or "meta" not in str(error):
            raise
        device, model = "cpu", cls(config)
    tied = getattr(model, "all_tied_weights_keys", None) or getattr(model, "_tied_weights_keys", None) or []
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    prefix = getattr(model, "base_model_prefix", "")
    return {"shapes": shapes, "tied": sorted(tied), "prefix": prefix, "device": device}


def _watch(home: Path, acts: list[str]) -> None:
    """Refuses the network, processes and changes outside of `home` to the code of the checkpoint, and notes them."""
    modules = str(home)

    def is_theirs() -> str:
        frame = sys._getframe(2)
        # What an installed package does while it is imported is not what this code does.
        while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
            if frame.f_code.co_filename.startswith(modules):
                return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return ""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK:
            what = "opens a connection"
        elif event in PROCESSES:
            what = "starts a process"
        elif event in CHANGES or _writes(event, arguments):
            target = os.fsdecode(arguments[0]) if isinstance(arguments[0], str | bytes | os.PathLike) else ""
            if not target or Path(target).absolute().is_relative_to(home) or target == os.devnull:
                return
            what = f"changes {target}"
        else:
            return
        if place := is_theirs():
            line = f"{place} {what} ({event})"
            if line not in acts:
                acts.append(line)
            raise PermissionError(f"msmigrate check: {what} ({event}), which is refused here")
        if event in NETWORK:
            raise PermissionError(f"msmigrate check: {event} is refused here")

    sys.addaudithook(hook)


def _writes(event: str, arguments: tuple[Any, ...]) -> bool:
    if event != "open":
        return False
    _, mode, flags = arguments
    return any(letter in mode for letter in "wax+") if isinstance(mode, str) else bool(flags & WRITING)


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:500]


def _place(error: BaseException) -> str:
    """The innermost line in code of the checkpoint."""
    is_theirs: Callable[[str], bool] = lambda name: "transformers_modules" in Path(name).parts  # noqa: E731
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if is_theirs(frame.filename):
            return f"{Path(frame.filename).name}:{frame.lineno}"
    if isinstance(error, SyntaxError) and error.filename:
        return f"{Path(error.filename).name}:{error.lineno}"
    return ""


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
