"""Named tensors of any origin: safetensors files, or state dicts that torch pickled. Nothing asks what names mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mappings.arrangement import Arrangement, Shape, viewed
from mappings.errors import UserError
from mappings.formats.hf_directory import INDEX, read_json, read_weights
from mappings.formats.safetensors import TensorEntry, read_header
from mappings.formats.torch_pickles import PickledTensor, read_tensors
from migrate.weights.tensors import SourceTensor, Stored

PICKLES = (".bin", ".pt", ".pth")
PICKLE_INDEX = "pytorch_model.bin.index.json"
PICKLE_SINGLE = "pytorch_model.bin"


@dataclass(frozen=True)
class Entry:
    """A tensor of a state dict before its name is understood."""

    name: str
    dtype: str
    shape: Shape
    path: Path
    offset: int
    strides: Shape | None = None
    """In elements, where the elements do not lie row by row; None where they do."""

    def holding(self, atom: str) -> SourceTensor:
        """The tensor as a source of a whole atom."""
        arrangement = Arrangement.of(atom, self.shape)
        if self.strides is not None:
            arrangement = viewed(arrangement, self.strides)
        stored = Stored(self.path.name, self.name, self.dtype, arrangement)
        return SourceTensor(stored, self.path, self.offset, is_view=self.strides is not None)


def read_state_dict(source: Path, key: str | None = None) -> dict[str, Entry]:
    """All tensors of a file, or of a directory with the weights of one model, by name.

    Args:
        source: `.safetensors`, `.bin`, `.pt` or `.pth`; or a directory with such weights under the names that
            transformers gives them.
        key: where in a pickled file the state dict is, see `torch_pickles.read_tensors`.

    Raises:
        UserError: nothing readable is there, a file is malformed, or the key is given for a file without keys.
    """
    weight_map = _pickled_index(source)
    files = [source / name for name in sorted(set(weight_map.values()))] or _files(source)
    if key is not None and any(path.suffix not in PICKLES for path in files):
        raise UserError(f"{source}: --key is for pickled files; tensors of safetensors have no place but their name")
    entries: dict[str, Entry] = {}
    for path in files:
        for entry in _entries(path, key):
            if entry.name in entries:
                raise UserError(f"{path}: tensor {entry.name!r}: also stored in {entries[entry.name].path.name}")
            entries[entry.name] = entry
    if weight_map:
        _check_index(source, weight_map, entries)
    return entries


def _files(source: Path) -> list[Path]:
    if not source.exists():
        raise UserError(f"{source}: no such file or directory")
    if not source.is_dir():
        if source.suffix not in (*PICKLES, ".safetensors"):
            raise UserError(f"{source}: neither .safetensors nor {', '.join(PICKLES)}")
        return [source]
    if (source / INDEX).exists() or any(source.glob("*.safetensors")):
        return [source / name for name in read_weights(source).files]
    if (source / PICKLE_SINGLE).exists():
        return [source / PICKLE_SINGLE]
    raise UserError(f"{source}: no weights under a name of transformers; give the file itself")


def _pickled_index(source: Path) -> dict[str, str]:
    """The index of pickled shards, tensor to file; empty where a directory has none, or has safetensors to read."""
    path = source / PICKLE_INDEX
    if not path.exists() or (source / INDEX).exists() or any(source.glob("*.safetensors")):
        return {}
    weight_map = read_json(path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map or not all(isinstance(v, str) for v in weight_map.values()):
        raise UserError(f"{path}: 'weight_map' must map tensor names to file names")
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not name.isprintable() or Path(name).suffix not in PICKLES:
            raise UserError(f"{path}: file {name!r} is outside the directory or no pickle")
        if not (source / name).is_file():
            raise UserError(f"{path}: names {name!r}, which is missing")
    return weight_map


def _check_index(source: Path, weight_map: Mapping[str, str], entries: Mapping[str, Entry]) -> None:
    """Refuses an index that does not name exactly the tensors of each file."""
    held = {(name, entry.path.name) for name, entry in entries.items()}
    if differing := held ^ set(weight_map.items()):
        file = min(file for _, file in differing)
        some = ", ".join(sorted(name for name, other in differing if other == file)[:5])
        raise UserError(f"{source / PICKLE_INDEX}: disagrees with {file} about {some}")


def _entries(path: Path, key: str | None) -> list[Entry]:
    if path.suffix in PICKLES:
        return [_pickled(tensor) for tensor in read_tensors(path, key).values()]
    return [_plain(entry) for entry in read_header(path)[0]]


def _pickled(tensor: PickledTensor) -> Entry:
    strides = None if tensor.is_contiguous else tensor.strides
    return Entry(tensor.name, tensor.dtype, tensor.shape, tensor.path, tensor.offset, strides)


def _plain(entry: TensorEntry) -> Entry:
    return Entry(entry.name, entry.dtype, entry.shape, entry.path, entry.offset)
