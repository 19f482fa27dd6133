"""C526 to C530: classes of `auto_map` that the user names are run, and compared with config.json and the weights."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from mappings.errors import UserError
from migrate.check.codes import finding
from migrate.check.remote import isolation
from migrate.check.remote.reading import REFERENCE, entries
from migrate.check.subject import Subject
from migrate.processes import run
from migrate.report import Finding, Severity, Stage, Verdict

RUNNER = Path(__file__).with_name("runner.py")
OPTION = "--run-remote-code"
STAGE = "remote code run"
TIMEOUT_S = 300.0
REAL_BYTES = 1 << 30
"""Weights up to which a model that cannot be made without memory is made with it."""
SHOWN = 3
KINDS = {"AutoConfig": "config", "AutoTokenizer": "tokenizer", "AutoModel": "model"}


@dataclass(frozen=True)
class Named:
    """One class of `auto_map`."""

    auto: str
    file: str
    """The file whose `auto_map` names it."""
    module: str
    """Python file, relative to the directory."""
    name: str

    @property
    def kind(self) -> str:
        """What it is: config, tokenizer, model or other."""
        return next((kind for start, kind in KINDS.items() if self.auto.startswith(start)), "other")

    @property
    def reference(self) -> str:
        """As `auto_map` writes it."""
        return f"{self.module.removesuffix('.py').replace('/', '.')}.{self.name}"


def run_remote_code(
    subject: Subject, names: Sequence[str], timeout_s: float = TIMEOUT_S
) -> tuple[list[Finding], Stage]:
    """Runs classes of the checkpoint's own code, elsewhere.

    The process has a home and Hugging Face caches of its own and no network; its code may write in its home only and
    start no process. That is a guard against accidents, no prison.

    Args:
        subject: the model directory.
        names: classes (`X`, `modeling_x.X`) or files (`modeling_x.py`: every class of `auto_map` in it).
        timeout_s: seconds after which the process is ended.

    Raises:
        UserError: `auto_map` has no such name, or it is code of another repository.
    """
    chosen = choose(subject, names)
    with tempfile.TemporaryDirectory(prefix="msmigrate-remote-") as folder:
        home, job, out = (Path(folder).resolve() / name for name in ("home", "job.json", "out.json"))
        home.mkdir()
        size = sum(entry.nbytes for entry in (subject.tensors or {}).values())
        order = sorted(chosen, key=lambda named: ("config", "tokenizer", "model", "other").index(named.kind))
        body = {
            "home": str(home),
            "model": str(subject.directory.resolve()),
            "classes": [[named.kind, named.reference] for named in order],
            "real": size <= REAL_BYTES,
        }
        job.write_text(json.dumps(body), encoding="utf-8")
        command = [*isolation.prefix(), sys.executable, str(RUNNER), str(job), str(out)]
        outcome = run(command, timeout_s, isolation.environment(home))
        results = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {"error": None, "results": []}
    if results["error"] is not None:
        return [], Stage(STAGE, Verdict.COULD_NOT_RUN, f"needs transformers, and torch for models ({results['error']})")
    found = [finding("C530", act, file=act.partition(":")[0]) for act in results.get("acts", [])]
    compared = 0
    done = {result["reference"]: result for result in results["results"]}
    for named in order:
        result = done.get(named.reference)
        if result is None:
            found.append(finding("C526", f"{named.reference}: {outcome.reason()}", file=named.module))
            continue
        judged = list(_judge(subject, named, result))
        found += judged
        compared += len(result.get("shapes", ())) or 1
    return found, _stage(found, order, compared)


def choose(subject: Subject, names: Sequence[str]) -> list[Named]:
    """The classes of `auto_map` that names stand for, each once.

    Raises:
        UserError: `auto_map` has no such name, or it is code of another repository.
    """
    known: dict[str, list[Named]] = {}
    for auto, file, value in entries(subject):
        for reference in value if isinstance(value, list) else [value]:
            match = REFERENCE.fullmatch(reference) if isinstance(reference, str) else None
            if match is None:
                continue
            repository = f"{match['repository']}--" if match["repository"] else ""
            module = f"{repository}{match['module'].replace('.', '/')}.py"
            named = Named(auto, file, module, match["name"])
            for word in (named.name, named.reference, named.module):
                known.setdefault(word, []).append(named)
    chosen: dict[str, Named] = {}
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            words = sorted({named.reference for group in known.values() for named in group})
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(words)}" if words else "there is none"
            raise UserError(f"{OPTION} {name}: no such class or file in auto_map of {subject.directory}; {hint}")
        for named in known[name]:
            if "--" in named.module:
                repository = named.module.partition("--")[0]
                raise UserError(f"{OPTION} {name}: is code of another repository, {repository}; copy it here first")
            chosen.setdefault(named.reference, named)
    return list(chosen.values())


CODES = {"import": "C526", "config": "C527", "build": "C528"}


def _judge(subject: Subject, named: Named, result: Mapping[str, Any]) -> Iterator[Finding]:
    if (failed := result["failed"]) is not None:
        place = failed["place"] or named.module
        message = f"{named.reference}: {place}: {failed['error']}"
        yield finding(CODES[failed["step"]], message, file=named.module, field=f"auto_map.{named.auto}")
        return
    kind = result.get("config", {}).get("model_type")
    if kind is not None and kind != subject.config.get("model_type"):
        message = (
            f"{result['config']['class']} has model_type {kind!r}, config.json {subject.config.get('model_type')!r}"
        )
        yield finding("C527", message, file=named.module, field="model_type")
    if "shapes" in result and subject.tensors is not None:
        yield from _compare(subject, named, result)


def _compare(subject: Subject, named: Named, result: Mapping[str, Any]) -> Iterator[Finding]:
    """Names and shapes of the class against the headers of the stored tensors."""
    shapes = {name: tuple(shape) for name, shape in result["shapes"].items()}
    stored = {name: entry.shape for name, entry in (subject.tensors or {}).items()}
    prefix = f"{result['prefix']}."
    # transformers puts the name of the base model before the names, or takes it away, where that makes them fit.
    if not stored.keys() & shapes.keys():
        if any(f"{prefix}{name}" in stored for name in shapes):
            shapes = {f"{prefix}{name}": shape for name, shape in shapes.items()}
        else:
            shapes = {name.removeprefix(prefix): shape for name, shape in shapes.items()}
    tied = {name for name in shapes if any(name == one or name.endswith(f".{one}") for one in result["tied"])}
    missing = sorted(shapes.keys() - stored.keys() - tied)
    strange = sorted(stored.keys() - shapes.keys())
    wrong = sorted(name for name in shapes.keys() & stored.keys() if shapes[name] != stored[name])
    if missing:
        yield _at(named, f"{named.name} has {_some(missing)}, which is not stored", missing[0])
    if strange:
        yield _at(named, f"{_some(strange)} is stored, {named.name} has no such parameter", strange[0])
    if wrong:
        name = wrong[0]
        what = f"{_some(wrong)} is stored as {list(stored[name])}, {named.name} has {list(shapes[name])}"
        yield _at(named, what, name)


def _at(named: Named, message: str, tensor: str) -> Finding:
    return finding("C529", message, file=named.module, tensor=tensor)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _stage(found: Sequence[Finding], chosen: Sequence[Named], compared: int) -> Stage:
    what = f"{', '.join(named.reference for named in chosen)} {isolation.described()}"
    errors = sum(one.severity is Severity.ERROR for one in found)
    return Stage(STAGE, Verdict.FAIL if errors else Verdict.PASS, what, compared)
