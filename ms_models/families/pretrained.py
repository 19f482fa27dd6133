"""`Pretrained`: what every model of this package has, whatever it predicts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindspore import nn

from mappings.errors import UserError
from mappings.families.family import HF
from mappings.holdings import Held
from ms_models.families.sharding import Sharding
from ms_models.parallel.place import Place
from ms_models.saving import Origin, write_directory


class Pretrained(nn.Cell):
    """A model in a place.

    Attributes:
        config: the typed settings.
        place: this rank's part of the model.
        mesh: where this process sits.
        held: by parameter name, what this rank holds.
        origin: where the weights came from; None before they are loaded.
    """

    spelling = HF
    """How tensors are named and fused in memory: a spelling of the family."""
    sharding: type[Sharding] = Sharding
    """Makes the layers."""

    def __init__(self, config: Any, place: Place) -> None:
        super().__init__()
        self.config = config
        self.place = place
        self.mesh = place.mesh
        self.held: dict[str, Held] = place.held
        self.origin: Origin | None = None
        self._tables: tuple[Mapping[str, str], ...] = ()

    def rename_parameters(self, *tables: Mapping[str, str]) -> None:
        """Gives parameters their names in checkpoints.

        Args:
            tables: applied one after the other: beginnings of names, and what stands in their place. Of a table, the
                first beginning that fits a name is replaced.
        """
        self._tables = tables
        for parameter in self.get_parameters():
            parameter.name = self._renamed(parameter.name)

    def modules(self) -> dict[str, nn.Cell]:
        """Cells by the beginnings of their parameters' names, which are transformers' names of modules."""
        return {self._renamed(f"{name}.").removesuffix("."): cell for name, cell in self.cells_and_names() if name}

    def _renamed(self, name: str) -> str:
        for table in self._tables:
            beginning = next((key for key in table if name.startswith(key)), "")
            name = table.get(beginning, "") + name.removeprefix(beginning)
        return name

    def check_parameters(self) -> None:
        """Asserts that the cells hold exactly the parameters, in exactly the shapes, that the family's facts name."""
        built = {parameter.name: tuple(parameter.shape) for parameter in self.get_parameters()}
        named = {name: held.shape for name, held in self.held.items()}
        assert built == named, f"cells and family facts differ in {sorted(set(built.items()) ^ set(named.items()))}"

    def save_pretrained(self, directory: str | Path) -> None:
        """Writes a Hugging Face directory: the tensors in the dtypes and files they were loaded from, and side files.

        Weights that were not changed are written bit for bit as they were; changed ones are rounded to nearest even.

        Raises:
            UserError: the model is cut over ranks, the target exists, or a value does not fit the stored dtype.
        """
        if self.origin is None:
            raise UserError(f"{directory}: this model was not loaded from a directory, so its format is unknown")
        layout = self.mesh.layout
        if layout.world_size > layout.dp * layout.cp or layout.ep > 1 or layout.zero == 3:
            raise UserError(
                f"{directory}: each rank of {layout} holds a piece only; "
                "save a sharded checkpoint and run `msmigrate weights export` on it"
            )
        values = {parameter.name: parameter.asnumpy() for parameter in self.get_parameters()}
        write_directory(Path(directory), self.origin, self.origin.stored(values, self.held))
