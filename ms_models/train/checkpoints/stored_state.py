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
from mappings.assembly import holders_of, sources_of
from mappings.cutting import fill
from mappings.families.family import HF
from mappings.formats.safetensors import TensorEntry, read_bytes
from mappings.layout import ParallelLayout
from ms_models.parallel.optimizer_sharding import OptimizerSharding
from ms_models.parallel.place import Place
from ms_models.train.checkpoints.pieces import Arrays, assemble
from ms_models.train.step import Trainer


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


def load_states(
    trainer: Trainer, read: Callable[[int], tuple[Path, list[TensorEntry]]], step: int, layout: ParallelLayout
) -> None:
    """Restores optimizer states, of any layout.

    Args:
        trainer: to restore.
        read: path and tensors of the optimizer file of a rank that has one.
        step: updates made so far.
        layout: of the checkpoint.

    Raises:
        UserError: states are missing, unexpected or misshapen.
    """
    place, optimizer, mesh = trainer.model.place, trainer.optimizer, trainer.mesh
    if layout == mesh.layout and place.spelling == HF:
        trained = {name for bucket in trainer.sharding.buckets for name in bucket.names}
        path, entries = read(layout.state_owner(mesh.rank))
        still = {f"{kind}.{name}" for kind in optimizer.flat for name in place.held if name not in trained}
        state = {entry.name: _array(entry) for entry in entries if entry.name not in still}
        optimizer.load_state(state, step, str(path))
        return
    # In the same layout all that have a part of this rank's differ from it in dp only: replicas of the same experts,
    # and of what is no expert.
    ranks = layout.group(mesh.rank, "dp") if layout == mesh.layout else range(layout.world_size)
    state = assemble(
        kept_arrangements(trainer.sharding, place),
        dict.fromkeys(layout.state_owner(rank) for rank in ranks),
        lambda owner: place.stored(owner, states=True, layout=layout),
        read,
        list(optimizer.flat),
    )
    optimizer.load_state(state, step, "optimizer files")


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


def _rearranged(wanted: Mapping[str, Arrangement], values: Arrays, consist: Mapping[str, Arrangement]) -> Arrays:
    """Tensors of other names and packing with the same elements; zeros where there are no values."""
    holders = holders_of({name: consist[name] for name in values})
    result: Arrays = {}
    for name, arrangement in wanted.items():
        result[name] = np.zeros(arrangement.shape, np.float32)
        sources = sources_of(arrangement, holders)
        count = sum(fill(result[name], arrangement, np.ascontiguousarray(values[s]), consist[s]) for s in sources)
        assert not sources or count == arrangement.size - arrangement.padding, f"{name}: {count} elements are there"
    return result


def _array(entry: TensorEntry) -> np.ndarray:
    return np.frombuffer(read_bytes(entry), "<f4").reshape(entry.shape)
