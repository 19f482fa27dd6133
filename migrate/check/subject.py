"""Everything `check` reads, read once: the files of a model directory, and of a run if one is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError
from mappings.families import Family, Parameter, family_for_config, settings
from mappings.formats.hf_directory import INDEX, read_config, read_json, read_tensors
from mappings.formats.safetensors import SafetensorsError, TensorEntry
from migrate.check.codes import finding
from migrate.check.data.data_sets import DataSet, of_run, of_user
from migrate.check.tokenizer import Tokenizer, parse_tokenizer
from migrate.report import Finding

SIDE_FILES = (
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
)

ADAPTER = "adapter_model.safetensors"
OTHER_WEIGHTS = {
    ADAPTER: f"only an adapter ({ADAPTER}), to be merged into its base model first,",
    "*.bin": "only pickled weights (.bin)",
    "*.bin.index.json": "only the index of pickled weights (.bin)",
    "*.gguf": "only GGUF weights",
}
LARGEST_COUNT = 10_000
"""Of layers, and of experts of a layer; published models have hundreds."""


@dataclass
class Subject:
    """A model directory as read from disk. What could not be read is None, and `findings` says why."""

    directory: Path
    config: dict[str, Any]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The side files that exist, by name."""
    tokenizer: Tokenizer | None = None
    family: Family | None = None
    tensors: dict[str, TensorEntry] | None = None
    run: dict[str, Any] | None = None
    """The run configuration, as plain data."""
    run_path: Path | None = None
    data_sets: list[DataSet] = field(default_factory=list)
    """The data that the run names, and that the user names."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def vocab_size(self) -> int | None:
        """`vocab_size` if it is a positive whole number; anything else is reported by the arithmetic topic."""
        value = self.config.get("vocab_size")
        return value if type(value) is int and value > 0 else None

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """Every parameter of the model, none without a family; listed once, as a large model has tens of thousands.

        Raises:
            UserError: the sizes contradict each other.
        """
        return () if self.family is None else tuple(self.family.parameters(self.config))

    def section(self, name: str) -> dict[str, Any]:
        """A section of the run configuration; empty where there is none."""
        value = (self.run or {}).get(name)
        return value if isinstance(value, dict) else {}


def read_subject(directory: Path, run: Path | None = None, data: Sequence[Path] = ()) -> Subject:
    """Reads a model directory, and what describes the data that a run or the user names.

    Raises:
        UserError: no directory or no readable `config.json`, or an unreadable run configuration. Any other unreadable
            file becomes a finding.
    """
    subject = Subject(directory, read_config(directory))
    for name in SIDE_FILES:
        if (directory / name).is_file():
            try:
                subject.files[name] = read_json(directory / name)
            except UserError as error:
                subject.findings.append(finding("C208", str(error), file=name))
    _read_tokenizer(subject)
    try:
        subject.family = family_for_config(subject.config)
    except UserError as error:
        subject.findings.append(finding("C418", str(error), file="config.json", field="model_type"))
    _leave_out_what_no_model_has(subject)
    _read_tensors(subject)
    if run is not None:
        subject.run, subject.run_path = _read_run(run), run
        _read_data(subject, run)
    for path in data:
        _take(subject, of_user(path))
    return subject


def _leave_out_what_no_model_has(subject: Subject) -> None:
    """A slip of the pen in these counts would list parameters until memory is full."""
    family = subject.family
    if family is None:
        return
    for name in ("layers", "experts"):
        source = family.dimensions.get(name, {})
        value = settings.field(subject.config, source) if "field" in source else None
        if type(value) is int and value > LARGEST_COUNT:
            field = source["field"]
            message = f"{field} is {value}, more than {LARGEST_COUNT}; layers, tensors and layout are not looked at"
            subject.findings.append(finding("C414", message, file="config.json", field=field))
            subject.family = None


def _read_tokenizer(subject: Subject) -> None:
    path = subject.directory / "tokenizer.json"
    if not path.is_file():
        subject.findings.append(finding("C207", "tokenizer.json: no such file", file=path.name))
        return
    try:
        subject.tokenizer = parse_tokenizer(read_json(path))
    except UserError as error:
        subject.findings.append(finding("C208", str(error), file=path.name))


def _read_tensors(subject: Subject) -> None:
    directory = subject.directory
    found = {path.name for path in directory.glob("*.safetensors")} - {ADAPTER}
    if not found and not (directory / INDEX).is_file():
        what = next((kind for pattern, kind in OTHER_WEIGHTS.items() if any(directory.glob(pattern))), "no weights")
        subject.findings.append(finding("C428", f"{what} in the directory"))
        return
    try:
        subject.tensors = read_tensors(directory)
    except SafetensorsError as error:
        subject.findings.append(finding("C427", str(error), file=error.path.name))
    except UserError as error:
        subject.findings.append(finding("C427", str(error), file=INDEX if (directory / INDEX).is_file() else None))
    except OSError as error:
        subject.findings.append(finding("C427", f"{error.filename}: cannot be read ({error.strerror})"))


def _read_run(path: Path) -> dict[str, Any]:
    try:
        body = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        first = " ".join(str(error).split())
        raise UserError(f"{path}: not valid YAML ({first})") from error
    if not isinstance(body, dict):
        raise UserError(f"{path}: must hold a mapping of sections, found {type(body).__name__}")
    return body


def _read_data(subject: Subject, run: Path) -> None:
    for found in of_run(subject.section("data"), run):
        _take(subject, found)


def _take(subject: Subject, found: DataSet | Finding) -> None:
    if isinstance(found, DataSet):
        subject.data_sets.append(found)
    else:
        subject.findings.append(found)
