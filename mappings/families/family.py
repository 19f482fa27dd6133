"""A model family read from its file: what a `config.json` implies about atoms, parameters and spelled tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mappings.errors import UserError
from mappings.expressions import evaluate, holds
from mappings.families import settings
from mappings.families.atoms import Atom, Parameter, Spelled
from mappings.families.patterns import EXPERT, LAYER, concrete, pattern_matches
from mappings.families.rows import parameter, row_atoms, row_tensors
from mappings.families.spelling import replaced, respelled

Row = Mapping[str, Any]
HF = "hf"
BARE = "hf_bare"
"""Names of the model without heads as its own class saves them, whatever `architectures` says."""
PREFIXED = "hf_prefixed"
"""Names of the model without heads as they are below its heads, whatever `architectures` says."""


@dataclass(frozen=True)
class Family:
    """Facts about one architecture, as written in `mappings/families/<family>.yaml`."""

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    dimensions: Mapping[str, Mapping[str, Any]]
    flags: Mapping[str, Mapping[str, Any]]
    rows: tuple[Row, ...]
    ignored: tuple[str, ...]
    tied: Mapping[str, Mapping[str, str]]
    lists: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    layer_sets: Mapping[str, str] = field(default_factory=dict)
    layer_count: str = "layers"
    """Number of layer indices: decoder layers, then those that predict further tokens."""
    spellings: Mapping[str, tuple[str, tuple[Row, ...]]] = field(default_factory=dict)
    """Spelling -> the spelling whose tensors its rows replace, and the rows."""
    encodings: tuple[str, ...] = ()
    """Low-precision forms in which checkpoints store matrices (`mappings/families/encodings.py`)."""
    optional_layers: Mapping[str, str] = field(default_factory=dict)
    """Group -> condition for the layers of which a checkpoint holds all tensors or none."""
    note: str = ""
    prefix: str = ""
    """Start of the names of the model without heads. Its own class saves them without it."""
    headless: tuple[str, ...] = ()
    """Classes of the model without heads: they have the rows with the prefix only."""

    def symbols(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Every name that expressions of the file may use, with its value in this model.

        Raises:
            UserError: a field of `config.json` does not fit.
        """
        return settings.symbols(config, self.dimensions, self.flags, self.lists, self.name)

    def dims(self, config: Mapping[str, Any], tp: int = 1) -> dict[str, int]:
        """Dimension symbols of a model, or of what each of `tp` ranks holds of it, from its `config.json`.

        Raises:
            UserError: a field is missing, null without a default, or no positive whole number.
        """
        return settings.local_sizes(self.symbols(config), self.dimensions, tp)

    def layer_indices(self, config: Mapping[str, Any]) -> range:
        """Indices of the decoder layers, then of those that predict further tokens."""
        return range(evaluate(self.layer_count, self.symbols(config)))

    def flag(self, config: Mapping[str, Any], name: str) -> bool:
        """A boolean of `config.json` that parameters depend on.

        Raises:
            UserError: the field holds something that is no boolean.
        """
        source = self.flags[name]
        return settings.switch(config, source) if "field" in source else bool(self.symbols(config)[name])

    def atoms(self, config: Mapping[str, Any]) -> dict[str, Atom]:
        """Every atom of the model by name, in file order with layers ascending.

        Raises:
            UserError: a field of `config.json` does not fit.
        """
        symbols = self.symbols(config)
        rows = self._rows(symbols, self._headless(config))
        return {atom.name: atom for row, layer in rows for atom in row_atoms(row, layer, symbols)}

    def spelling(self, config: Mapping[str, Any], name: str = HF) -> list[Spelled]:
        """Every tensor of the model as one spelling has it, in file order with layers ascending.

        Args:
            config: `config.json`.
            name: "hf" is what transformers saves; others are those of the family file.

        Raises:
            UserError: the family has no such spelling, or a field of `config.json` does not fit.
        """
        symbols, headless = self.symbols(config), self._headless(config)
        tensors = [s for row, layer in self._rows(symbols, headless) for s in self._tensors(row, layer, symbols)]
        for rows in self._steps(name):
            layers = range(evaluate(self.layer_count, symbols))
            known = {atom: spelled for spelled in tensors for atom in spelled.atoms}
            made = respelled(rows, known, layers, symbols, self._present)
            tensors = replaced(tensors, made)
        if headless and name != PREFIXED:
            return [replace(spelled, name=spelled.name.removeprefix(self.prefix)) for spelled in tensors]
        return tensors

    def parameters(self, config: Mapping[str, Any]) -> list[Parameter]:
        """Every parameter of the model, in file order with layers ascending."""
        symbols = self.symbols(config)
        result: list[Parameter] = []
        for row, layer in self._rows(symbols, self._headless(config)):
            atoms = {atom.name: atom for atom in row_atoms(row, layer, symbols)}
            for spelled in self._tensors(row, layer, symbols):
                result.append(parameter(spelled, [atoms[name] for name in spelled.atoms], symbols))
        return result

    def is_ignored(self, name: str, config: Mapping[str, Any]) -> bool:
        """Whether a checkpoint may hold `name` although it is no parameter of its own (old buffers, tied copies)."""
        patterns = (*self.ignored, *(pattern.removeprefix(self.prefix) for pattern in self.ignored))
        if any(pattern_matches(pattern, name) for pattern in patterns):
            return True
        return self.tied_to(name, config) is not None

    def ties(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Names that a checkpoint may hold a second time -> the parameter each is another name of."""
        symbols = self.symbols(config)
        found: dict[str, str] = {}
        for name, tie in self.tied.items():
            for layer in range(evaluate(self.layer_count, symbols)) if LAYER in name else (None,):
                if holds(tie["when"], {**symbols, "layer": layer}):
                    found[concrete(name, layer)] = found.get(tie["same_as"], tie["same_as"])
        return found

    def tied_to(self, name: str, config: Mapping[str, Any]) -> str | None:
        """The parameter that `name` is another name of, or None."""
        if not any(pattern_matches(pattern, name) for pattern in self.tied):
            return None
        return self.ties(config).get(name)

    def explain(self, name: str, config: Mapping[str, Any]) -> str:
        """Why a name is none of this model's tensors, in a few words."""
        symbols = self.symbols(config)
        rows = [*self.rows, *(row for _, rows in self.spellings.values() for row in rows)]
        for row in rows:
            if pattern_matches(row["name"], name):
                sizes = [f"{evaluate(self.layer_count, symbols)} layers"]
                if EXPERT in row["name"]:
                    sizes.append(f"{symbols['experts']} experts")
                return f"it reads like {row['name']}, which this model ({', '.join(sizes)}) does not have here"
        return f"the {self.name} family has no such name"

    def _steps(self, name: str) -> list[tuple[Row, ...]]:
        """Rows of a spelling and of those it builds on, the first to be applied first."""
        steps: list[tuple[Row, ...]] = []
        while name != HF:
            if name not in self.spellings:
                known = ", ".join((HF, *self.spellings))
                raise UserError(f"the {self.name} family has no spelling {name!r} (known: {known})")
            name, rows = self.spellings[name]
            steps.insert(0, rows)
        return steps

    def _tensors(self, row: Row, layer: int | None, symbols: Mapping[str, Any]) -> Iterator[Spelled]:
        groups = [
            group
            for group, condition in self.optional_layers.items()
            if layer is not None and holds(condition, {**symbols, "layer": layer})
        ]
        return row_tensors(row, layer, symbols, row.get("optional", groups[0] if groups else ""))

    def _headless(self, config: Mapping[str, Any]) -> bool:
        return any(name in self.headless for name in config.get("architectures") or ())

    def _rows(self, symbols: Mapping[str, Any], headless: bool) -> Iterator[tuple[Row, int | None]]:
        """Rows that the model has, those of a layer together."""
        layers = range(evaluate(self.layer_count, symbols))
        block: list[Row] = []
        for row in (*self.rows, None):
            if headless and row is not None and not row["name"].startswith(self.prefix):
                continue
            if row is not None and LAYER in row["name"]:
                block.append(row)
                continue
            for layer in layers if block else ():
                yield from ((r, layer) for r in block if self._present(r, {**symbols, "layer": layer}))
            block = []
            if row is not None and self._present(row, symbols):
                yield row, None

    def _present(self, row: Row, symbols: Mapping[str, Any]) -> bool:
        if "when" in row and not holds(row["when"], symbols):
            return False
        if "unless" in row and holds(row["unless"], symbols):
            return False
        return "in" not in row or holds(self.layer_sets[row["in"]], symbols)
