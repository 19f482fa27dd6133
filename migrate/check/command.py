"""`msmigrate check`: every assertion on one model directory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from migrate.check import (
    arithmetic,
    attention,
    chat_template,
    experts,
    fixes,
    inserted_tokens,
    layout,
    positions,
    round_trip,
    special_ids,
    tensors,
    vocabulary,
)
from migrate.check.codes import finding, name_rules
from migrate.check.data import descriptions, sampled_rows, sampled_texts
from migrate.check.data.data_sets import Readers
from migrate.check.remote import reading as remote_code
from migrate.check.remote.running import choose, run_remote_code
from migrate.check.subject import Subject, read_subject
from migrate.check.tally import Assertion, Tally
from migrate.report import Finding, Report, Severity, Stage, Verdict

TOPICS: tuple[tuple[str, tuple[Assertion, ...]], ...] = (
    ("vocabulary", vocabulary.ASSERTIONS),
    ("special ids", (*special_ids.ASSERTIONS, *inserted_tokens.ASSERTIONS)),
    ("positions", positions.ASSERTIONS),
    ("attention", attention.ASSERTIONS),
    ("arithmetic", arithmetic.ASSERTIONS),
    ("experts", experts.ASSERTIONS),
    ("tensors", tensors.ASSERTIONS),
    ("layout", layout.ASSERTIONS),
    ("round trip", round_trip.ASSERTIONS),
    ("chat template", chat_template.ASSERTIONS),
    ("remote code", remote_code.ASSERTIONS),
    ("data", descriptions.ASSERTIONS),
)
# Shapes and layouts derived from contradictory sizes would only repeat the contradiction in other words.
NEED_SOUND_SIZES = ("tensors", "layout")


def check(
    model_dir: Path,
    *,
    run: Path | None = None,
    data: Sequence[Path] = (),
    readers: Readers | None = None,
    remote_code_of: Sequence[str] = (),
    refused: str | None = None,
) -> Report:
    """Judges a Hugging Face model directory, optionally against the run configuration that will use it.

    Needs no torch, no MindSpore and no accelerator. Each topic is a stage that counts its comparisons.

    Args:
        model_dir: directory with `config.json`, and whatever else belongs to the model.
        run: run configuration (YAML) with `data` and `layout` sections.
        data: directories of prepared data, or directories and files of text, whose contents are looked at, too.
        readers: what opens these; needed with `data`.
        remote_code_of: classes or files of `auto_map` whose code is run, in a process of its own; see
            `migrate.check.remote.running`.
        refused: why the trainer refuses the run configuration; only it knows all fields.

    Raises:
        UserError: there is no model directory, no readable `config.json`, or no readable run configuration, or
            `auto_map` has no such class.
    """
    subject = read_subject(model_dir, run, data)
    if remote_code_of:
        choose(subject, remote_code_of)  # a wrong name before anything else is done
    if refused is not None and run is not None:
        subject.findings.append(finding("C606", refused, file=run.name))
    report = Report("check", str(model_dir), findings=list(subject.findings), facts=_facts(subject))
    sound = True
    for name, assertions in (*TOPICS, *_contents(subject, readers)):
        if name in NEED_SOUND_SIZES and not sound:
            report.stages.append(Stage(name, Verdict.SKIPPED, "the sizes in config.json contradict each other"))
            continue
        findings, stage = _judge(subject, name, assertions)
        report.findings += findings
        report.stages.append(stage)
        if name == "arithmetic":
            sound = stage.verdict is not Verdict.FAIL
    if remote_code_of:
        findings, stage = run_remote_code(subject, remote_code_of)
        report.findings += findings
        report.stages.append(stage)
    name_rules(report)
    return report


def fix(model_dir: Path, *, run: Path | None = None, write: bool) -> tuple[str, list[str]]:
    """The edits that end findings with one right value.

    Args:
        model_dir: see `check`.
        run: see `check`.
        write: make them.

    Returns:
        The edits as a diff, and the codes of the findings that they end.

    Raises:
        UserError: see `check`.
    """
    before = check(model_dir, run=run)
    texts = fixes.edited(model_dir, fixes.fixes(read_subject(model_dir, run), before.findings))
    texts = {file: pair for file, pair in texts.items() if pair[0] != pair[1]}
    ended = sorted({found.code for found in before.findings if found.code in fixes.FIXES}) if texts else []
    if write:
        fixes.write(model_dir, texts)
        still = {found.code for found in check(model_dir, run=run).findings}
        ended = [code for code in ended if code not in still]
    return fixes.diff(texts), ended


def _contents(subject: Subject, readers: Readers | None) -> Iterator[tuple[str, tuple[Assertion, ...]]]:
    """Topics about what is in the data that the user names."""
    opened = [data for data in subject.data_sets if data.is_opened]
    if not opened:
        return
    assert readers is not None, "data cannot be opened without readers"
    if any(data.is_prepared for data in opened):
        yield "data rows", sampled_rows.assertions(readers)
    if not all(data.is_prepared for data in opened):
        yield "data text", sampled_texts.assertions(readers)


def _judge(subject: Subject, name: str, assertions: tuple[Assertion, ...]) -> tuple[list[Finding], Stage]:
    tally = Tally()
    findings = [found for assertion in assertions for found in assertion(subject, tally)]
    errors = sum(found.severity is Severity.ERROR for found in findings)
    if errors:
        return findings, Stage(name, Verdict.FAIL, f"{errors} error{'s' if errors > 1 else ''}", tally.compared)
    if not tally.compared:
        return findings, Stage(name, Verdict.SKIPPED, _why_skipped(subject, name))
    return findings, Stage(name, Verdict.PASS, f"{tally.compared} comparisons", tally.compared)


def _why_skipped(subject: Subject, name: str) -> str:
    if name == "layout" and subject.run is None:
        return "no run configuration given"
    if name == "data" and not any(data.is_prepared for data in subject.data_sets):
        told = any(subject.section("data").get(name) for name in ("path", "blend"))
        return "the data of the run cannot be read: see the findings" if told else "no prepared data given"
    if name == "round trip" and subject.tokenizer is not None:
        return "the tokenizers library is not installed"
    if name in ("tensors", "layout") and subject.family is None:
        return "the model family is unknown"
    if name in ("chat template", "remote code", "experts"):
        return "there is none"
    if name in ("vocabulary", "tensors", "round trip"):
        return "nothing to compare: see the findings"
    return "nothing in config.json asks for it"


def _facts(subject: Subject) -> dict[str, object]:
    facts: dict[str, object] = {
        "model_type": subject.config.get("model_type"),
        "family": subject.family.name if subject.family else None,
        "vocab_size": subject.config.get("vocab_size"),
    }
    if subject.tokenizer is not None:
        facts["tokenizer_length"] = subject.tokenizer.length
    if subject.tensors is not None:
        facts["tensors"] = len(subject.tensors)
        facts["files"] = len({entry.path for entry in subject.tensors.values()})
        facts["bytes"] = sum(entry.nbytes for entry in subject.tensors.values())
    if subject.run_path is not None:
        facts["run"] = str(subject.run_path)
    return facts
