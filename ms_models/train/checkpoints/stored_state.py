"""What a rank holds in memory as the tensors of a checkpoint, and back.

A sharded checkpoint has the names and packing of Hugging Face. A model that holds its tensors otherwise (experts in one
stack) is taken apart for it; where ZeRO divides optimizer states, the shares of memory and of the checkpoint then cut
across each other, so ranks gather whole states to save and read each other's files to load.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from mappings.arrangement import Arrangement
from mappings.cutting import fill
from mappings.errors import UserError
from mappings.families.family import HF
from mappings.formats.safetensors import TensorEntry, read_bytes
from ms_models.parallel.optimizer_sharding import OptimizerSharding
from ms_models.parallel.place import Place
from ms_models.train.optimizer import AdamW
from ms_models.train.step import Trainer

Arrays = dict[str, np.ndarray]


def weights(trainer: Trainer) -> Arrays:
    """This rank's file of weights: fp32 arrays by stored name. Every rank must call this."""
    place, divided = trainer.model.place, trainer.divided
    values = {parameter.name: parameter.asnumpy() for parameter in trainer.model.get_parameters()}
    if divided is not None:
        values |= trainer.sharding.whole(divided.kept)
    elif place.spelling == HF:
        return values
    consist = {name: held.arrangement for name, held in place.held.items()}
    return _rearranged(place.stored(place.mesh.rank, states=False), values, consist)


def states(trainer: Trainer) -> Arrays:
    """This rank's file of optimizer states, by `<state>.<stored name>`. Every rank must call this."""
    place, optimizer = trainer.model.place, trainer.optimizer
    trained = {name for bucket in trainer.sharding.buckets for name in bucket.names}
    consist = {name: held.arrangement for name, held in place.held.items()}
    wanted = place.stored(place.mesh.rank, states=True)
    result: Arrays = {}
    if place.spelling == HF:
        for kind in optimizer.flat:
            # What is not trained has states for the tools that recut checkpoints: zeros.
            still = {f"{kind}.{name}": wanted[name] for name in consist if name not in trained}
            result |= {name: np.zeros(arrangement.shape, np.float32) for name, arrangement in still.items()}
        return optimizer.state() | result
    whole = optimizer.whole_state()
    for kind in optimizer.flat:
        values = {name: whole[f"{kind}.{name}"] for name in trained}
        result |= {f"{kind}.{name}": value for name, value in _rearranged(wanted, values, consist).items()}
    return result


def load_states(trainer: Trainer, read: Callable[[int], tuple[Path, list[TensorEntry]]], step: int) -> None:
    """Restores optimizer states.

    Args:
        trainer: to restore.
        read: path and tensors of the optimizer file of a rank that has one.
        step: updates made so far.

    Raises:
        UserError: states are missing, unexpected or misshapen.
    """
    place, optimizer, layout = trainer.model.place, trainer.optimizer, trainer.mesh.layout
    trained = {name for bucket in trainer.sharding.buckets for name in bucket.names}
    path, entries = read(layout.state_owner(trainer.mesh.rank))
    if place.spelling == HF:
        still = {f"{kind}.{name}" for kind in optimizer.flat for name in place.held if name not in trained}
        state = {entry.name: _array(entry) for entry in entries if entry.name not in still}
        optimizer.load_state(state, step, str(path))
        return
    kept = kept_arrangements(trainer.sharding, place)
    state = {
        f"{kind}.{name}": np.zeros(arrangement.shape, np.float32)
        for kind in optimizer.flat
        for name, arrangement in kept.items()
    }
    missing = {
        f"{kind}.{name}": arrangement.size - arrangement.padding
        for kind in optimizer.flat
        for name, arrangement in kept.items()
    }
    # Replicas of the same experts and of what is no expert: all of them differ in dp only.
    for owner in dict.fromkeys(layout.state_owner(rank) for rank in layout.group(trainer.mesh.rank, "dp")):
        stored = {entry.name: _array(entry) for entry in read(owner)[1]}
        _take(optimizer, state, missing, kept, stored, place.stored(owner, states=True))
    if lacking := [name for name, count in missing.items() if count]:
        raise UserError(f"{path}: optimizer state does not fit the model: elements of {', '.join(lacking[:8])} missing")
    optimizer.load_state(state, step, str(path))


def kept_arrangements(sharding: OptimizerSharding, place: Place) -> dict[str, Arrangement]:
    """By parameter, what this rank keeps of its states."""
    result = {}
    for bucket in sharding.buckets:
        for name, rows in zip(bucket.names, bucket.rows, strict=True):
            whole = place.held[name].arrangement
            if whole.shape:
                whole = whole.pad(0, rows * bucket.shares).slice(0, bucket.index * rows, (bucket.index + 1) * rows)
            result[name] = whole
    return result


def _take(
    optimizer: AdamW,
    state: Arrays,
    missing: dict[str, int],
    kept: Mapping[str, Arrangement],
    stored: Arrays,
    consist: Mapping[str, Arrangement],
) -> None:
    """Fills `state` with what the file of one rank has of it."""
    holders = _holders(consist)
    for kind in optimizer.flat:
        for name, arrangement in kept.items():
            for source in _sources(arrangement, holders):
                value = stored.get(f"{kind}.{source}")
                if value is not None and value.shape == consist[source].shape:
                    full = f"{kind}.{name}"
                    missing[full] -= fill(state[full], arrangement, value, consist[source])


def _rearranged(wanted: Mapping[str, Arrangement], values: Arrays, consist: Mapping[str, Arrangement]) -> Arrays:
    """Tensors of other names and packing with the same elements; zeros where there are no values."""
    holders = _holders({name: consist[name] for name in values})
    result: Arrays = {}
    for name, arrangement in wanted.items():
        result[name] = np.zeros(arrangement.shape, np.float32)
        sources = _sources(arrangement, holders)
        count = sum(fill(result[name], arrangement, np.ascontiguousarray(values[s]), consist[s]) for s in sources)
        assert not sources or count == arrangement.size - arrangement.padding, f"{name}: {count} elements are there"
    return result


def _holders(consist: Mapping[str, Arrangement]) -> dict[str, list[str]]:
    """Tensors by the atoms in them."""
    holders: dict[str, list[str]] = {}
    for name, arrangement in consist.items():
        for atom in dict.fromkeys(piece.atom for piece in arrangement.pieces):
            holders.setdefault(atom, []).append(name)
    return holders


def _sources(arrangement: Arrangement, holders: Mapping[str, list[str]]) -> list[str]:
    return list(dict.fromkeys(name for piece in arrangement.pieces for name in holders.get(piece.atom, ())))


def _array(entry: TensorEntry) -> np.ndarray:
    return np.frombuffer(read_bytes(entry), "<f4").reshape(entry.shape)
