"""Checkpoints of made-up atoms in random layouts, and what numpy says that they hold."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from mappings.arrangement import Arrangement, concat, stack
from mappings.formats.safetensors import read_header
from migrate.weights.tensors import Checkpoint, Part, SourceTensor, Stored, TargetFile

Atoms = Mapping[str, np.ndarray]
KINDS = ["whole", "turned", "rows", "columns", "stacked", "alternating", "experts", "flat", "padded"]


def built(arrangement: Arrangement, atoms: Atoms) -> np.ndarray:
    """The tensor, placed element by element by numpy."""
    dtype = next(iter(atoms.values())).dtype
    flat = np.zeros(arrangement.size, dtype)
    for placement in arrangement.placements():
        box = tuple(slice(s, s + e) for s, e in zip(placement.start, placement.extent, strict=True))
        index = np.full(placement.extent, placement.offset)
        for axis, step in enumerate(placement.strides):
            shape = [-1 if a == axis else 1 for a in range(len(placement.extent))]
            index = index + (np.arange(placement.extent[axis]) * step).reshape(shape)
        flat[index] = atoms[placement.atom][box]
    return flat.reshape(arrangement.shape)


def random_layout(rng: random.Random, atoms: Atoms, kinds: Sequence[str] = KINDS) -> list[Arrangement]:
    """Tensors that hold every element of the atoms, some of them twice."""
    names = list(atoms)
    rng.shuffle(names)
    result: list[Arrangement] = []
    while names:
        name = names.pop()
        kind = rng.choice(kinds)
        parts = [Arrangement.of(name, atoms[name].shape)]
        if kind in ("stacked", "alternating", "experts"):
            same = [other for other in names if atoms[other].shape == atoms[name].shape][: rng.randint(0, 3)]
            for other in same:
                names.remove(other)
                parts.append(Arrangement.of(other, atoms[other].shape))
        result += _tensors(rng, kind, parts)
        if rng.random() < 0.2:
            result.append(result[-1])
    return result


def _tensors(rng: random.Random, kind: str, parts: list[Arrangement]) -> list[Arrangement]:
    first = parts[0]
    if kind in ("rows", "columns"):
        axis = ("rows", "columns").index(kind)
        ranks = rng.randint(2, 4)
        size = -(-first.shape[axis] // ranks)
        whole = first.pad(axis, size * ranks)
        return [whole.slice(axis, rank * size, (rank + 1) * size) for rank in range(ranks)]
    made = {
        "whole": lambda: first,
        "turned": lambda: first.transpose(),
        "padded": lambda: first.pad(0, first.shape[0] + 2).pad(1, first.shape[1] + 1),
        "flat": lambda: first.transpose().reshape(-1),
        "stacked": lambda: stack(0, parts),
        "alternating": lambda: stack(1, parts).reshape(-1, first.shape[1]),
        "experts": lambda: concat(1, [part.transpose() for part in parts]),
    }[kind]()
    if kind in ("whole", "turned", "padded") or rng.random() < 0.5:
        return [made]
    axis = rng.randrange(len(made.shape))
    cut = rng.randint(0, made.shape[axis])
    return [made.slice(axis, 0, cut), made.slice(axis, cut, made.shape[axis])]


class Doubled:
    """A decoder for the tests: each stored byte stands for the 16-bit number with that byte twice."""

    note = "bytes doubled"

    def __init__(self, part: Part) -> None:
        self.part, self.decoded = part, np.zeros(max(1, int(np.prod(part.shape[:-1]))), int)
        """How often each row was decoded."""

    @property
    def parts(self) -> tuple[Part]:
        return (self.part,)

    @property
    def row_bytes(self) -> int:
        return 4 * self.part.shape[-1]

    def rows(self, start: int, stop: int, read: Any) -> np.ndarray:
        width = self.part.shape[-1]
        self.decoded[start:stop] += 1
        raw = np.frombuffer(read(self.part.path, self.part.offset + start * width, (stop - start) * width), np.uint8)
        return raw.astype("<u2").reshape(-1, width) * 257


@dataclass
class Case:
    """A source on disk, targets to make of it, and the right answer."""

    source: Checkpoint
    files: list[TargetFile]
    expected: dict[str, np.ndarray]

    def written(self, directory: Path) -> dict[str, np.ndarray]:
        """What is in the target files."""
        return {name: array for file in self.files for name, array in load_file(directory / file.name).items()}


def make_case(directory: Path, seed: int, *, decoded: bool = False, kinds: Sequence[str] = KINDS) -> Case:
    """Random atoms, two random layouts of them, three target files; sources with a decoder if asked."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    shapes = [(rng.randint(1, 40), rng.randint(1, 40)) for _ in range(3)]
    # Padding is zero, so no element is; bytes repeat where they shall be decoded.
    atoms = {
        f"a{number}": (numbers.integers(1, 256, rng.choice(shapes)) * 257 if decoded else None) for number in range(6)
    }
    atoms = {
        name: (values if values is not None else numbers.integers(1, 65536, rng.choice(shapes))).astype("<u2")
        for name, values in atoms.items()
    }
    stored = random_layout(rng, atoms)
    wanted = random_layout(rng, atoms, kinds)
    contents = {f"s{number}": built(arrangement, atoms) for number, arrangement in enumerate(stored)}
    if decoded:
        contents = {name: array.astype("u1") for name, array in contents.items()}
    tensors = []
    for half in (0, 1):
        path = directory / f"source{half}.safetensors"
        save_file({name: array for n, (name, array) in enumerate(contents.items()) if n % 2 == half}, path)
        for entry in read_header(path)[0]:
            part = Part(path, entry.name, entry.dtype, entry.shape, entry.offset, entry.nbytes)
            spoken = Stored(path.name, entry.name, "U16", stored[int(entry.name[1:])])
            tensors.append(SourceTensor(spoken, path, entry.offset, Doubled(part) if decoded else None))
    shapes_of = {name: values.shape for name, values in atoms.items()}
    source = Checkpoint(directory, "hf", None, {}, shapes_of, tuple(tensors), (), (), {})
    files = [
        TargetFile(
            f"t{third}.safetensors",
            tuple(
                Stored(f"t{third}.safetensors", f"t{number}", "U16", arrangement)
                for number, arrangement in enumerate(wanted)
                if number % 3 == third
            ),
            {},
        )
        for third in range(3)
    ]
    expected = {f"t{number}": built(arrangement, atoms) for number, arrangement in enumerate(wanted)}
    return Case(source, files, expected)
