"""One conversion from begin to end: plan, compare, copy, small files, publish; whatever the containers are."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.manifest import FileRecord, hash_file
from migrate.progress import ByteCount, Tracker, quiet
from migrate.report import Finding, Report, Severity, Stage, Verdict
from migrate.weights.codes import finding
from migrate.weights.engine.compare import Difference, differences
from migrate.weights.engine.execute import Done, execute
from migrate.weights.engine.journal import head_of
from migrate.weights.engine.plan import Plan, plan
from migrate.weights.staging import Staging, check_space, copy_files
from migrate.weights.tensors import Checkpoint, TargetFile

DEFAULT_MEMORY_BUDGET = 1 << 30
DEFAULT_THREADS = min(4, os.cpu_count() or 1)

Finish = Callable[[Path, Mapping[str, FileRecord]], None]
"""Writes the small files of a container: (directory, size and digest of every file that is there already)."""


@dataclass(frozen=True)
class Request:
    """How a conversion is carried out."""

    out: Path
    """Directory to make."""
    force: bool = False
    """Replace an `out` that holds a checkpoint."""
    resume: bool = False
    """Go on where a killed conversion stopped."""
    dry_run: bool = False
    """Plan and prove, write nothing."""
    memory_budget: int = DEFAULT_MEMORY_BUDGET
    """Bytes that all copy buffers together may take."""
    threads: int = DEFAULT_THREADS
    """Copying threads."""
    track: Tracker = quiet
    """Progress in bytes."""


def carry_out(
    report: Report,
    source: Checkpoint,
    files: Sequence[TargetFile],
    request: Request,
    *,
    dropped: Collection[str] = (),
    carried: Sequence[Path] = (),
    finish: Finish,
) -> None:
    """Converts, and says so in the report. Its findings must hold no error; faults found here are added to them.

    Args:
        report: of the command.
        source: what was read.
        files: what shall be written.
        request: how.
        dropped: atoms that are left out on purpose.
        carried: small files that go along under their own names.
        finish: called when everything else is in the directory.

    Raises:
        UserError: the journal is of another conversion, `out` may not be written, or a copy failed.
    """
    made = plan(source, files, dropped=dropped)
    report.findings += made.findings
    head = head_of(made, {"files": [[path.name, *_status(path)] for path in carried]})
    if not errors(report.findings):
        _replicas(report, source, made, request.memory_budget, request.track)
    if errors(report.findings):
        report.stages.append(stage("plan", report.findings, "no plan; nothing was written", None))
        return
    _planned(report, made)
    if request.dry_run:
        report.stages.append(Stage("write", Verdict.SKIPPED, "dry run"))
        return
    small = sum(path.stat().st_size for path in carried)
    check_space(request.out, made.bytes_minimum + made.bytes_padding + small)
    _check_links(request.out, [*map(Path, head["sources"]), *carried])
    staging = Staging(request.out, replace=request.force, resume=request.resume)
    report.findings += [
        finding("W018", f"a killed conversion left {path}, which was removed; --resume would have gone on with it")
        for path in staging.leftovers
    ]
    try:
        staging.journal.begin(head)
    except UserError:
        staging.close()
        raise
    if staging.already_done:
        staging.clean()
        report.stages.append(Stage("write", Verdict.PASS, "was complete; what the killed conversion left was removed"))
        report.facts["out"] = str(request.out)
        return
    start = time.perf_counter()
    with staging:
        with staging.resumable(), request.track("copying", ByteCount(made.bytes_minimum)) as advance:
            done = execute(
                made,
                staging.directory,
                memory_budget=request.memory_budget,
                threads=request.threads,
                advance=advance,
                journal=staging.journal,
            )
        if head_of(made, {"files": head["files"]}) != head:
            raise UserError(f"{source.directory}: a file changed while it was copied; start again")
        with staging.resumable():
            staging.remove_others([file.name for file in files])
            copy_files(carried, staging.directory)
            records = {path.name: hash_file(staging.directory / path.name) for path in carried}
            finish(staging.directory, {**done.files, **records})
    _written(report, made, done, time.perf_counter() - start, request.out)


def errors(findings: Sequence[Finding]) -> list[Finding]:
    """Those that forbid a conversion."""
    return [found for found in findings if found.severity is Severity.ERROR]


def stage(name: str, findings: Sequence[Finding], message: str, compared: int | None) -> Stage:
    """A stage that fails if there are errors."""
    if wrong := errors(findings):
        return Stage(name, Verdict.FAIL, f"{len(wrong)} errors; {message}", compared)
    return Stage(name, Verdict.PASS, message, compared)


def _check_links(out: Path, paths: Sequence[Path]) -> None:
    """Refuses to replace an output in which files of the source are, in truth.

    Raises:
        UserError: names one of them.
    """
    inside = next((path for path in paths if out.resolve() in path.resolve().parents), None)
    if inside is not None:
        raise UserError(f"{inside}: is a link into {out}, which would be replaced; choose another output")


def _status(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def compare_replicas(report: Report, checkpoint: Checkpoint, memory_budget: int, track: Tracker) -> None:
    """Compares what a checkpoint stores more than once; adds a stage if there is any."""
    made = plan(checkpoint, (), dropped=checkpoint.atoms, compare_dropped=True)
    _replicas(report, checkpoint, made, memory_budget, track)


def _replicas(report: Report, source: Checkpoint, made: Plan, memory_budget: int, track: Tracker) -> None:
    count = len(made.comparisons)
    if not count:
        return
    total = int((made.comparisons.volume * made.read_sizes[made.comparisons.target]).sum())
    with track("comparing", ByteCount(total)) as advance:
        unequal = differences(made, memory_budget=memory_budget, advance=advance)
    found = [_difference(source, one) for one in unequal]
    report.findings += found
    report.stages.append(stage("replicas", found, f"{count} copies of stored tensors compared", count))


def _difference(source: Checkpoint, one: Difference) -> Finding:
    kept, copy = one.kept.stored, one.copy.stored
    tied = source.extra.get("tied", {})
    if kept.name in tied:
        kept, copy = copy, kept
    place = "in dtype" if one.byte is None else f"from byte {one.byte}"
    if copy.name in tied:
        message = f"differs {place} from {kept.name}, to which it is tied"
        return finding("W005", message, file=copy.file, tensor=copy.name)
    return finding("W014", f"differs {place} from the copy in {kept.file}", file=copy.file, tensor=copy.name)


def _planned(report: Report, made: Plan) -> None:
    targets = sum(len(file.tensors) for file in made.files)
    message = (
        f"{len(made.sources)} source tensors accounted for; {targets} targets in {len(made.files)} files made once each"
    )
    report.stages.append(Stage("plan", Verdict.PASS, message, targets))
    report.facts.update(
        files=len(made.files),
        tensors=targets,
        bytes_minimum=made.bytes_minimum,
        bytes_to_read=made.bytes_read,
        bytes_padding=made.bytes_padding,
        units=len(made.units) - 1,
        copies=made.kinds,
        lossy=list(made.lossy),
    )


def _written(report: Report, made: Plan, done: Done, seconds: float, out: Path) -> None:
    report.facts.update(
        out=str(out),
        bytes_moved=done.bytes_read,
        seconds=round(seconds, 3),
        bandwidth_mb_per_s=round(done.bytes_written / max(seconds, 1e-9) / 1e6, 1),
    )
    if done.resumed:
        report.facts["batches_resumed"] = done.resumed
    message = f"{done.bytes_written} bytes in {len(made.files)} files, {seconds:.2f} s"
    report.stages.append(Stage("write", Verdict.PASS, message))
