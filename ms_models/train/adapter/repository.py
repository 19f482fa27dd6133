"""`Repository`: the converted repository of an adapter, importable in this process."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mindspore import nn

from mappings.errors import UserError
from ms_models.parallel.mesh import Mesh
from ms_models.train.config.adapter import TARGET, AdapterConfig

SHARDED = "ms_compat/current.py"
"""File of a repository that was converted with `--shard`: the mesh of its cut layers."""
GENERATOR = "ms_compat/random.py"
"""File of a repository that draws random numbers as torch does."""


class Repository:
    """Modules of a converted repository.

    Its directory comes first on the path of imports, as for `python train.py` in it. Its cut layers are given the mesh
    of the run itself, so that they use the groups that are there already: no second set of groups is created.

    Args:
        config: of the adapter.
        mesh: of this rank.

    Raises:
        UserError: there is no such directory.
    """

    def __init__(self, config: AdapterConfig, mesh: Mesh) -> None:
        self.config, self.mesh = config, mesh
        self.directory = Path(config.repository).resolve()
        if not self.directory.is_dir():
            raise UserError(f"model.adapter.repository {config.repository}: no such directory")
        if str(self.directory) not in sys.path:
            sys.path.insert(0, str(self.directory))

    def build(self) -> nn.Cell:
        """The model, with the weights that its constructor draws.

        Raises:
            UserError: the class or a target is missing, or does not take the arguments.
        """
        kind = self._get(self.config.module, self.config.class_name, "model.adapter.class_name")
        self._tell_mesh()
        made = self._call(kind, self.config.arguments, "model.adapter.arguments")
        if not isinstance(made, nn.Cell):
            raise UserError(
                f"model.adapter: {self.config.module}.{self.config.class_name} made a {type(made).__name__}, which is "
                "no mindspore.nn.Cell; name the class of the model"
            )
        return made

    def call(self, reference: str, arguments: Mapping[str, Any], where: str) -> Any:
        """What `module:name` returns for keyword arguments.

        Raises:
            UserError: it is missing, does not take the arguments, or fails.
        """
        module, _, name = reference.partition(":")
        return self._call(self._get(module, name, where), arguments, where)

    def _get(self, module: str, name: str, where: str) -> Any:
        try:
            found = importlib.import_module(module)
        except Exception as error:
            raise UserError(
                f"{where}: {module!r} of {self.directory} cannot be imported ({_line(error)}); it must be "
                "converted code"
            ) from error
        file = getattr(found, "__file__", None)
        if file is None or not Path(file).resolve().is_relative_to(self.directory):
            raise UserError(
                f"{where}: {module!r} is imported from {file}, not from {self.directory}; rename the module there"
            )
        if not hasattr(found, name):
            raise UserError(f"{where}: {file} has no {name!r}")
        return getattr(found, name)

    def _call(self, function: Any, arguments: Mapping[str, Any], where: str) -> Any:
        values = {key: self._value(value, where) for key, value in arguments.items() if key != TARGET}
        name = getattr(function, "__qualname__", repr(function))
        try:
            inspect.signature(function).bind(**values)
        except TypeError as error:
            raise UserError(f"{where}: {name} does not take these arguments: {_line(error)}") from error
        except ValueError:
            pass  # a builtin without a signature says so itself when it is called
        try:
            return function(**values)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{where}: {name} failed: {_line(error)}") from error

    def _value(self, value: Any, where: str) -> Any:
        if isinstance(value, list | tuple):
            return [self._value(item, where) for item in value]
        if not isinstance(value, Mapping):
            return value
        if TARGET in value:
            return self.call(value[TARGET], value, where)
        return {key: self._value(item, where) for key, item in value.items()}

    def seed(self, seed: int) -> None:
        """Seeds what its helpers draw from: a generator of their own, which MindSpore's seeds do not reach."""
        for helpers in self._helpers(GENERATOR):
            helpers.manual_seed(seed)

    def _tell_mesh(self) -> None:
        for helpers in self._helpers(SHARDED):
            helpers.set_mesh(self.mesh)

    def _helpers(self, file: str) -> Iterator[Any]:
        for path in sorted(self.directory.rglob(file)):
            yield importlib.import_module(".".join(path.relative_to(self.directory).with_suffix("").parts))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
