"""Tensors derived again without the planner: whole parameters in memory, numpy's own functions, one tensor at a time.

`verify` and `diff` judge with this. It shares with the conversion what a layout *is* (names, arrangements), but no
interval arithmetic, no strides, no units and no copying.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mappings.arrangement import Arrangement, Piece, Shape
from mappings.errors import UserError
from mappings.expressions import evaluate
from mappings.families.atoms import Atom, Spelled
from mappings.formats.safetensors import DTYPE_BITS
from mappings.layout import ParallelLayout
from migrate.weights.decoding.tables import to_bf16
from migrate.weights.tensors import Checkpoint, SourceTensor

Bytes = npt.NDArray[np.uint8]
"""A tensor whose last axis is the bytes of an element."""
CACHED = 64  # parameters kept in memory: tensors of one layer follow each other


class Atoms:
    """The atoms of a checkpoint as arrays, read when they are asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.shapes = checkpoint.atoms
        self._places: dict[str, list[tuple[SourceTensor, Piece]]] = {}
        for tensor in checkpoint.tensors:
            for piece in tensor.stored.arrangement.pieces:
                self._places.setdefault(piece.atom, []).append((tensor, piece))
        self.bytes = lru_cache(maxsize=CACHED)(self._bytes)

    def __contains__(self, atom: str) -> bool:
        return atom in self._places

    def dtype(self, atom: str) -> str:
        """Safetensors' spelling of its elements."""
        return self._places[atom][0][0].stored.dtype

    def _bytes(self, atom: str) -> Bytes:
        dtype = self.dtype(atom)
        result = np.zeros((*self.shapes[atom], DTYPE_BITS[dtype] // 8), np.uint8)
        for tensor, piece in reversed(self._places[atom]):  # of several copies the first one counts
            if tensor.stored.dtype == dtype:
                box = tuple(slice(s, s + e) for s, e in zip(piece.start, piece.extent, strict=True))
                result[box] = stored(tensor)[_index(piece, len(tensor.stored.arrangement.shape))]
        return result


def stored(tensor: SourceTensor) -> Bytes:
    """All elements of a stored tensor.

    Raises:
        UserError: the file became shorter than its header says.
    """
    shape, size = tensor.stored.arrangement.shape, DTYPE_BITS[tensor.stored.dtype] // 8
    if tensor.decoder is not None:
        rows = int(np.prod(shape[:-1], dtype=np.int64))
        decoded = np.ascontiguousarray(tensor.decoder.rows(0, rows, _read))
        return decoded.view(np.uint8).reshape(*shape, size)
    count = tensor.stored.arrangement.size * size
    with tensor.path.open("rb") as file:
        file.seek(tensor.offset)
        data = file.read(count)
    if len(data) != count:
        raise UserError(f"{tensor.path}: tensor {tensor.stored.name!r}: ends {count - len(data)} bytes early")
    return np.frombuffer(data, np.uint8).reshape(*shape, size)


def gathered(arrangement: Arrangement, dtype: str, atoms: Atoms) -> Bytes:
    """What a tensor of an arrangement should hold, in `dtype`."""
    result = np.zeros((*arrangement.shape, DTYPE_BITS[dtype] // 8), np.uint8)
    for piece in arrangement.pieces:
        box = tuple(slice(s, s + e) for s, e in zip(piece.start, piece.extent, strict=True))
        values = converted(atoms.bytes(piece.atom)[box], atoms.dtype(piece.atom), dtype)
        result[_index(piece, len(arrangement.shape))] = values
    return result


def _index(piece: Piece, rank: int) -> tuple[npt.NDArray[np.int64], ...]:
    """For each axis of a tensor, the index of every element of a piece."""
    index = [np.full((1,) * len(piece.extent), at, np.int64) for at in piece.at]
    for axis, (place, step, count) in enumerate(zip(piece.axes, piece.steps, piece.extent, strict=True)):
        along = np.arange(count, dtype=np.int64) * step
        index[place] = index[place] + along.reshape([-1 if a == axis else 1 for a in range(len(piece.extent))])
    assert len(index) == rank
    return tuple(np.broadcast_to(i, piece.extent) for i in index)


def rank_tensor(
    spelled: Spelled,
    atoms: Atoms,
    facts: Mapping[str, Atom],
    layout: ParallelLayout,
    rank: int,
    dims: Mapping[str, int],
    dtype: str,
) -> Bytes:
    """A rank's tensor by splitting whole parameters and packing the parts: not the arithmetic of `RankCuts`.

    Args:
        spelled: which tensor.
        atoms: of the whole model.
        facts: of the atoms.
        layout: of the ranks; ZeRO is left aside.
        rank: of the world, on the stage of the tensor.
        dims: dimensions of one rank.
        dtype: in which it is stored.
    """
    tp = layout.coordinates(rank)["tp"]
    expert_rank = layout.coordinates(rank)["dp"] % layout.ep

    def part(name: str) -> Bytes:
        return _split(converted(atoms.bytes(name), atoms.dtype(name), dtype), facts[name], layout, tp)

    if not spelled.packing:
        return part(spelled.atoms[0])
    held = len(spelled.experts) // layout.ep
    experts = spelled.experts[expert_rank * held : (expert_rank + 1) * held]
    single = {name: part(atom) for name, atom in spelled.single}
    return _packed(spelled.packing, single, [{n: part(a) for n, a in parts} for parts in experts], dims)


def _split(whole: Bytes, atom: Atom, layout: ParallelLayout, tp: int) -> Bytes:
    if atom.cut is None:
        return whole
    size = whole.shape[atom.cut]
    if atom.grouped and size // atom.unit < layout.tp:  # several ranks hold the same head
        whole = np.repeat(whole.reshape(_units(whole.shape, atom)), layout.tp * atom.unit // size, axis=atom.cut)
        whole = whole.reshape(*whole.shape[: atom.cut], -1, *whole.shape[atom.cut + 2 :])
    elif atom.padded:
        widths = [(0, 0)] * whole.ndim
        widths[atom.cut] = (0, -size % (layout.tp * layout.vocab_multiple))
        whole = np.pad(whole, widths)
    return np.split(whole, layout.tp, axis=atom.cut)[tp]


def _units(shape: Shape, atom: Atom) -> Shape:
    assert atom.cut is not None
    return (*shape[: atom.cut], shape[atom.cut] // atom.unit, atom.unit, *shape[atom.cut + 1 :])


def _packed(text: str, single: Mapping[str, Bytes], experts: Sequence[Mapping[str, Bytes]], dims: Any) -> Bytes:
    """`is` of a family file, carried out by numpy; elements keep their bytes as a last axis that no function sees."""

    def number(node: ast.expr) -> int:
        text = ast.unparse(node)
        return -1 if text == "-1" else evaluate(text, dims)

    def tensors(nodes: Sequence[ast.expr], names: Mapping[str, Bytes]) -> list[Bytes]:
        result = []
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "each":
                result += [value(node.args[0], {**names, **parts}) for parts in experts]
            else:
                result.append(value(node, names))
        return result

    def value(node: ast.expr, names: Mapping[str, Bytes]) -> Bytes:
        if isinstance(node, ast.Name):
            return names[node.id]
        assert isinstance(node, ast.Call)
        function, (first, *rest) = ast.unparse(node.func), node.args
        if function == "reshape":
            tensor = value(first, names)
            return tensor.reshape(*map(number, rest), tensor.shape[-1])
        if function == "transpose":
            tensor = value(first, names)
            axes = [number(axis) for axis in rest] or list(reversed(range(tensor.ndim - 1)))
            return tensor.transpose(*axes, tensor.ndim - 1)
        join: Callable[..., Bytes] = np.concatenate if function == "concat" else np.stack
        return join(tensors(rest, names), axis=number(first))

    return value(ast.parse(text, mode="eval").body, single)


def converted(elements: Bytes, before: str, after: str) -> Bytes:
    """Elements in another floating-point type, rounded to the nearest, ties to even."""
    if before == after:
        return elements
    numbers = as_numbers(elements, before)
    if after == "BF16":
        with np.errstate(over="ignore"):
            raw: Any = to_bf16(numbers.astype(np.float32).reshape(-1))
    else:
        with np.errstate(over="ignore"):
            narrow = numbers.astype(np.float32) if after == "F16" else numbers  # F64 is rounded twice, as in torch
            raw = narrow.reshape(-1).astype({"F64": "<f8", "F32": "<f4", "F16": "<f2"}[after])
    return np.ascontiguousarray(raw).view(np.uint8).reshape(*elements.shape[:-1], -1)


def as_numbers(elements: Bytes, dtype: str) -> npt.NDArray[np.float64]:
    """Elements as numbers of fp64, which holds all of F16, BF16, F32 and F64."""
    flat: npt.NDArray[Any] = np.ascontiguousarray(elements).reshape(-1)
    if dtype == "BF16":
        flat, dtype = flat.view("<u2").astype(np.uint32) << 16, "F32"
    kinds = {
        "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "<i1",
        "U64": "<u8", "U32": "<u4", "U16": "<u2",
    }  # fmt: skip
    with np.errstate(invalid="ignore"):  # signalling NaN
        return flat.view(kinds.get(dtype, "<u1")).astype(np.float64).reshape(elements.shape[:-1])


def _read(path: Any, offset: int, count: int) -> memoryview:
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(count)
    if len(data) != count:
        raise UserError(f"{path}: ends {count - len(data)} bytes early")
    return memoryview(data)
