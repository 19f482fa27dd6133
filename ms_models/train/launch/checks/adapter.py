"""What an adapter names is there, and the layout fits; read from source, nothing of it is imported."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mappings.errors import UserError
from mappings.formats.hf_directory import read_tensors
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.safetensors import SafetensorsError, TensorEntry, read_header
from mappings.parallel_options import ParallelOptions
from ms_models.parallel.schedules.orders import check_sizes
from ms_models.train.adapter.tensors import Tensors
from ms_models.train.config import RunConfig
from ms_models.train.config.adapter import AdapterConfig, references

SHARDED = "ms_compat/current.py"
"""File that `msmigrate code --shard` leaves in a repository."""
PLAIN_BASES = {"Module", "Cell", "nn.Cell", "nn.Module"}
"""Base classes of which it is known that they add no cells and no forward."""


@dataclass(frozen=True)
class AdaptedSource:
    """The converted model that a run starts from."""

    config: AdapterConfig
    directory: Path
    cls: ast.ClassDef
    parameters: int
    """Number of parameters; 0 where no weights are named, so that only the constructor knows."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.config.class_name} of {self.config.repository}"


def read_adapter(config: RunConfig) -> AdaptedSource:
    """The repository, the module and the class are there.

    Raises:
        UserError: says what is missing.
    """
    adapter = config.model.adapter
    assert adapter is not None
    directory = Path(adapter.repository)
    if not directory.is_dir():
        raise UserError(f"model.adapter.repository {directory}: no such directory; it is the -o of `msmigrate code`")
    path, tree = _module(directory, adapter.module, "model.adapter.module")
    found = _definition(tree, adapter.class_name)
    if found is None:
        known = ", ".join(node.name for node in tree.body if isinstance(node, ast.ClassDef)) or "none"
        raise UserError(f"model.adapter.class_name: {path} has no class {adapter.class_name!r}; it has {known}")
    if not isinstance(found, ast.ClassDef):
        raise UserError(f"model.adapter.class_name: {adapter.class_name!r} of {path} is no class")
    for name in references(adapter.arguments):
        _check_reference(directory, name, "model.adapter.arguments")
    return AdaptedSource(adapter, directory, found, _count(adapter))


def questions(config: RunConfig, source: AdaptedSource) -> dict[str, Callable[[], str]]:
    """What is asked about it besides."""
    return {
        "arguments": lambda: check_arguments(source),
        "forward": lambda: check_forward(source),
        "layout": lambda: check_layout(config, source),
        "weights": lambda: check_weights(source),
        "batches": lambda: check_batches(config, source),
    }


def check_arguments(source: AdaptedSource) -> str:
    """The constructor takes the arguments, as far as its own text says.

    Raises:
        UserError: one is unknown or missing.
    """
    where = f"{source.config.class_name}.__init__"
    method = _method(source.cls, "__init__")
    if method is None:
        return "the constructor is inherited; seen when it is called"
    given, (names, required, takes_any) = set(source.config.arguments), _parameters(method)
    if (unknown := sorted(given - set(names))) and not takes_any:
        raise UserError(
            f"model.adapter.arguments: {where} has no argument {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )
    if missing := [name for name in required if name not in given]:
        raise UserError(f"model.adapter.arguments: {where} needs {missing[0]!r}")
    return ", ".join(sorted(given)) or "none"


def check_forward(source: AdaptedSource) -> str:
    """Forward has the parameters that inputs and constants name, as far as its own text says.

    Raises:
        UserError: it has not.
    """
    method = _method(source.cls, "construct")
    where = f"forward of {source.config.class_name}"
    if method is None:
        if _is_plain(source.cls):
            raise UserError(f"model.adapter.class_name: {source.config.class_name} has no forward (construct)")
        return "inherited; seen when it is called"
    names, required, _ = _parameters(method)
    given = {*source.config.inputs.values(), *source.config.constants}
    if unknown := sorted(given - set(names)):
        raise UserError(f"model.adapter.inputs: {where} has no parameter {unknown[0]!r}; it has {', '.join(names)}")
    if missing := [name for name in required if name not in given]:
        raise UserError(f"model.adapter.inputs: {where} needs {missing[0]!r}; name it in 'inputs' or 'constants'")
    return ", ".join(f"{name} as {value}" for name, value in source.config.inputs.items())


def check_layout(config: RunConfig, source: AdaptedSource) -> str:
    """An adapted model can be trained in the layout.

    Raises:
        UserError: says what is in the way.
    """
    layout, adapter, options = config.layout, source.config, config.parallel
    if layout.cp > 1 or layout.ep > 1 or options.sequence_parallel or layout.vocab_multiple > 1:
        raise UserError(
            f"layout: {layout}: converted code knows tp, pp, dp and zero; cp, ep, vocab_multiple and sequence_parallel "
            "need a model of ms_models"
        )
    if config.precision.compute != "fp32":
        raise UserError(
            f"precision.compute is {config.precision.compute!r}, but converted code has number formats of its own; set "
            "them there, and precision.compute to fp32"
        )
    if layout.tp > 1 and not any(source.directory.rglob(SHARDED)):
        raise UserError(
            f"layout: tp={layout.tp}, but {source.directory} was converted whole; convert it with `msmigrate code "
            "--shard auto`"
        )
    if options.recompute not in ("none", "block"):
        raise UserError(f"parallel.recompute is {options.recompute!r}; converted code knows none and block")
    needs = [
        name
        for name, holds in {
            f"layout: pp={layout.pp}": layout.pp > 1,
            "layout: zero=3": layout.zero == 3,
            "parallel.recompute: block": options.recompute == "block",
        }.items()
        if holds
    ]
    if needs and adapter.blocks is None:
        raise UserError(f"{needs[0]} needs the list of blocks; name it in model.adapter.blocks")
    if adapter.blocks is not None:
        _check_blocks(source, adapter.blocks)
    if layout.zero == 3:
        _check_zero_3(config, options)
    if layout.pp > 1:
        check_sizes(options.schedule_for(layout), layout, config.train.accumulation)
        if config.train.jit:
            raise UserError(
                f"layout: pp={layout.pp} of converted code leaves forward between two blocks, which a compiled graph "
                "cannot; set train.jit: false"
            )
    return f"{layout}: {layout.world_size} ranks, global batch {config.global_batch}"


def check_weights(source: AdaptedSource) -> str:
    """The file of weights is there and can be read.

    Raises:
        UserError: it is not.
    """
    if source.config.weights is None:
        return "drawn by the constructor with train.seed"
    return f"{source.config.weights}: {source.parameters:,} numbers"


def check_batches(config: RunConfig, source: AdaptedSource) -> str:
    """The function of batches is there, and there is something to evaluate on where the run evaluates.

    Raises:
        UserError: one is missing.
    """
    batches = source.config.batches
    if batches is None:
        return "prepared data"
    _check_reference(source.directory, batches.function, "model.adapter.batches.function")
    for name in references(batches.arguments):
        _check_reference(source.directory, name, "model.adapter.batches.arguments")
    if config.train.eval_every and batches.validation is None:
        raise UserError("train.eval_every is set, but model.adapter.batches.validation names no validation batches")
    return batches.function


def _check_zero_3(config: RunConfig, options: ParallelOptions) -> None:
    if config.layout.pp > 1:
        raise UserError("layout: zero=3 with pp: stages do not gather their parameters; take zero=2")
    if config.train.jit:
        raise UserError("layout: zero=3 changes the size of parameters, which needs train.jit: false; or take zero=2")
    if options.recompute != "none":
        raise UserError("parallel.recompute: with zero=3 each block is computed again anyway; set it to none")


def _check_blocks(source: AdaptedSource, name: str) -> None:
    first = name.partition(".")[0]
    method = _method(source.cls, "__init__")
    if method is None or not _is_plain(source.cls):
        return  # a base class may have it; seen when the model is built
    cells = dict.fromkeys(
        target.attr
        for node in ast.walk(method)
        for target in (node.targets if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    )
    if cells and first not in cells:
        raise UserError(
            f"model.adapter.blocks: {source.config.class_name} sets no {first!r}; it sets {', '.join(cells)}"
        )


def _module(directory: Path, name: str, where: str) -> tuple[Path, ast.Module]:
    stem = directory.joinpath(*name.split("."))
    path = next((one for one in (stem.with_suffix(".py"), stem / "__init__.py") if one.is_file()), None)
    if path is None:
        raise UserError(f"{where}: {directory} has no module {name!r}")
    try:
        return path, ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{where}: {path} is no Python ({error})") from error


def _check_reference(directory: Path, reference: str, where: str) -> None:
    module, _, name = reference.partition(":")
    path, tree = _module(directory, module, where)
    if _definition(tree, name) is None and not any(name in names for names in _bound(tree)):
        raise UserError(f"{where}: {path} has no {name!r}")


def _definition(tree: ast.Module, name: str) -> ast.stmt | None:
    kinds = (ast.ClassDef, ast.FunctionDef)
    return next((node for node in ast.walk(tree) if isinstance(node, kinds) and node.name == name), None)


def _bound(tree: ast.Module) -> Iterator[set[str]]:
    """Names that a module gets by import or assignment."""
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign):
            yield {target.id for target in node.targets if isinstance(target, ast.Name)}


def _method(cls: ast.ClassDef, name: str) -> ast.FunctionDef | None:
    return next((node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == name), None)


def _parameters(method: ast.FunctionDef) -> tuple[list[str], list[str], bool]:
    """Names that can be given, those that must be, and whether any other can."""
    arguments = method.args
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    with_default = len(arguments.defaults)
    required = [one.arg for one in positional[: len(positional) - with_default]]
    required += [
        one.arg for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if default is None
    ]
    return [one.arg for one in (*positional, *arguments.kwonlyargs)], required, arguments.kwarg is not None


def _is_plain(cls: ast.ClassDef) -> bool:
    return all(ast.unparse(base) in PLAIN_BASES for base in cls.bases)


def _count(adapter: AdapterConfig) -> int:
    if adapter.weights is None:
        return 0
    path = Path(adapter.weights)
    if not path.exists():
        raise UserError(f"model.adapter.weights {path}: no such file or directory")
    if (path / MANIFEST).is_file():
        return sum(math.prod(whole.shape) for whole in Tensors.read(path).wholes)
    try:
        entries: dict[str, TensorEntry] | list[TensorEntry] = (
            read_tensors(path) if path.is_dir() else read_header(path)[0]
        )
    except SafetensorsError as error:
        raise UserError(f"model.adapter.weights: {error}") from error
    return sum(math.prod(one.shape) for one in (entries.values() if isinstance(entries, dict) else entries))
