"""What names of Hugging Face `transformers` and `accelerate` become: a helper, themselves, or a finding.

`transformers.yaml` is a list of rows:

    - names: [PreTrainedModel]                      # or patterns: "*Config"
      from: [transformers, transformers.modeling_utils]   # modules or patterns; `transformers` alone by default
      helper: pretrained                            # file of ms_compat that has the names
      whole: true                                   # the name is a module, and the helper of that name stands for it
      returns: module                               # what the names are, in the words of mappings/api rows, or:
                                                    # `output`, a ModelOutput; `config`, a configuration
      members: {config: config, device: device}     # of an object of the class: the types of its attributes
      arguments: {compute_loss: {inputs: batch}}    # what the library gives to methods that a subclass overrides:
                                                    # a `batch` holds tensors

instead of `helper`, `plain: true` says that the names work where torch is not installed, and `unsupported: reason`
that they stay, with a finding. A name stands for itself before a pattern does; among patterns the first row wins.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).with_suffix(".yaml")
PACKAGE = "transformers"
PACKAGES = (PACKAGE, "accelerate")
_FIELDS = {"names", "from", "helper", "whole", "plain", "unsupported", "returns", "members", "arguments"}


@dataclass(frozen=True)
class Entry:
    """What is known about a name; neither helper nor reason: it works without torch."""

    helper: str | None = None
    reason: str | None = None
    returns: str | None = None
    members: Mapping[str, str] = field(default_factory=dict)
    whole: bool = False
    """The name is a module; the helper has the same name."""
    arguments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class TransformersTable:
    """Entries by module and name."""

    def __init__(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._exact: dict[str, Entry] = {}
        self._patterns: list[tuple[re.Pattern[str], re.Pattern[str], Entry]] = []
        for number, row in enumerate(rows, 1):
            self._add(row, f"{FILE.name}: row {number}")

    def _add(self, row: Mapping[str, Any], where: str) -> None:
        unknown = set(row) - _FIELDS
        if unknown or "names" not in row:
            raise ValueError(f"{where}: {'names is missing' if 'names' not in row else f'unknown {sorted(unknown)}'}")
        if sum(bool(row.get(kind)) for kind in ("helper", "plain", "unsupported")) != 1:
            raise ValueError(f"{where}: exactly one of helper, plain and unsupported says what becomes of the names")
        members, whole = row.get("members") or {}, bool(row.get("whole"))
        if whole and row["names"] != [row.get("helper")]:
            raise ValueError(f"{where}: a module is replaced by the helper of its name only")
        arguments = row.get("arguments") or {}
        entry = Entry(row.get("helper"), row.get("unsupported"), row.get("returns"), members, whole, arguments)
        for module in row.get("from", [PACKAGE]):
            for name in row["names"]:
                if "*" in module or "*" in name:
                    self._patterns.append((_pattern(module), _pattern(name), entry))
                elif f"{module}.{name}" in self._exact:
                    raise ValueError(f"{where}: {module}.{name} has a row already")
                else:
                    self._exact[f"{module}.{name}"] = entry

    def find(self, module: str, name: str) -> Entry | None:
        """The entry of what `from module import name` gives; None when the table does not know it."""
        if entry := self._exact.get(f"{module}.{name}"):
            return entry
        return next((e for modules, names, e in self._patterns if modules.match(module) and names.match(name)), None)

    def entry(self, qualified: str) -> Entry | None:
        """The entry of a qualified name, e.g. `transformers.modeling_utils.PreTrainedModel`."""
        module, _, name = qualified.rpartition(".")
        if module.split(".")[0] not in PACKAGES:
            return None
        return self.find(module, name)

    def fails_without_torch(self, qualified: str) -> bool:
        """Whether importing a name may fail; `transformers` itself has stand-ins for the classes that need torch."""
        package, _, rest = qualified.partition(".")
        if package not in PACKAGES or not rest or (package == PACKAGE and "." not in rest and rest[0].isupper()):
            return False
        entry = self.entry(qualified)
        return entry is None or entry.reason is not None

    def helpers(self) -> Mapping[str, str]:
        """Helper by qualified name, for every name that has one and is no pattern."""
        return {name: entry.helper for name, entry in self._exact.items() if entry.helper}


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(text))


@functools.cache
def load_transformers() -> TransformersTable:
    """Read `transformers.yaml`.

    Raises:
        ValueError: a row breaks the schema; the message names it.
    """
    return TransformersTable(yaml.safe_load(FILE.read_text(encoding="utf-8")))
