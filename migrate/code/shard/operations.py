"""torch's operations on tensors that may be cut, by what they do to the axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from migrate.code.shard.sizes import Size, named, product, unknown
from migrate.code.shard.values import AxesError, Tensor, UnprovedError

# Each element by itself; further arguments are numbers, data types or tensors that are broadcast.
ELEMENTWISE = frozenset(
    {
        "abs", "add", "addcmul", "bfloat16", "ceil", "celu", "clamp", "clip", "clone", "contiguous", "cos", "cpu",
        "cuda", "detach", "div", "divide", "double", "dropout", "elu", "erf", "exp", "expm1", "float", "floor",
        "gelu", "half", "hardswish", "hardtanh", "leaky_relu", "lerp", "log", "log1p", "logsigmoid", "masked_fill",
        "mish", "mul", "multiply", "neg", "nan_to_num", "pow", "reciprocal", "relu", "relu6", "round", "rsqrt",
        "rsub", "selu", "sigmoid", "sign", "silu", "sin", "softplus", "sqrt", "square", "sub", "subtract", "tanh",
        "to", "true_divide", "type", "type_as", "where",
    }
)  # fmt: skip
_MODULES = (
    "CELU", "Dropout", "ELU", "GELU", "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "LogSigmoid", "Mish",
    "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Tanh",
)  # fmt: skip
ELEMENTWISE_MODULES = frozenset(f"torch.nn.{name}" for name in _MODULES)
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "var", "std", "logsumexp", "norm"})
ALONG_AXIS = frozenset({"softmax", "log_softmax", "cumsum"})
WITHOUT_GRADIENT = frozenset(
    {
        "arange", "zeros", "ones", "full", "empty", "zeros_like", "ones_like", "full_like", "empty_like", "tensor",
        "eye", "linspace", "finfo", "argmax", "argsort", "eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf",
        "logical_not", "logical_and", "logical_or", "long", "int", "bool", "detach", "size", "dim", "as_tensor",
        "from_numpy", "triu_indices",
    }
)  # fmt: skip


def axis_from_end(tensor: Tensor, dim: int) -> int:
    """An axis counted from the end."""
    if dim < 0:
        return dim
    shape = tensor.shape
    if shape is None or shape[0].rest:
        raise AxesError("an axis is counted from the front of a tensor whose number of axes is not known")
    return dim - len(shape)


def elementwise(operands: Sequence[Tensor]) -> Tensor:
    """The result of operands that are broadcast against each other; whole ones must have been entered before."""
    cut = [t for t in operands if t.is_cut]
    layers = frozenset().union(*(t.layers for t in operands))
    origins = frozenset().union(*(t.origins for t in operands))
    if not cut:
        shapes = {t.shape for t in operands if t.shape is not None}
        return Tensor(shapes.pop() if len(shapes) == 1 and len(operands) == 1 else None, origins, None, layers)
    first = cut[0]
    if any(t.cut_axis != first.cut_axis for t in cut):
        raise UnprovedError("tensors that are cut along different axes are combined")
    axis = first.cut_axis
    assert axis is not None and first.shape is not None
    for other in operands:
        if not other.is_cut and other.shape is not None and len(other.shape) >= -axis:
            size = other.shape[axis]
            if not size.rest and size.factors == first.shape[axis].factors:
                raise UnprovedError("a tensor that every rank has whole is combined with its share on each rank")
    widest = max(cut, key=lambda t: len(t.shape or ()))
    return Tensor(widest.shape, frozenset(), None, layers)


def transposed(tensor: Tensor, order: Callable[[list[int]], list[int]]) -> Tensor:
    """Axes in another order; `order` maps the positions."""
    if tensor.shape is None or tensor.shape[0].rest:
        if tensor.is_cut:
            raise AxesError("the axes of a tensor are swapped whose number of axes is not known")
        return tensor.with_shape(None)
    return tensor.with_shape(tuple(tensor.shape[i] for i in order(list(range(len(tensor.shape))))))


def swapped(tensor: Tensor, first: int, second: int) -> Tensor:
    """Two axes exchanged."""
    if tensor.shape is not None and tensor.shape[0].rest and first < 0 and second < 0:
        shape = list(tensor.shape)
        if -first < len(shape) and -second < len(shape):
            shape[first], shape[second] = shape[second], shape[first]
            return tensor.with_shape(tuple(shape))

    def order(axes: list[int]) -> list[int]:
        axes[first], axes[second] = axes[second], axes[first]
        return axes

    return transposed(tensor, order)


def along(tensor: Tensor, dims: Sequence[int], *, what: str) -> None:
    """Refuses an operation that mixes elements along the cut axis."""
    for dim in dims:
        if axis_from_end(tensor, dim) == tensor.cut_axis:
            raise UnprovedError(f"{what} runs along the axis that is cut")


def reduced(tensor: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Summed over some axes that are not cut."""
    along(tensor, dims, what="a sum or mean")
    assert tensor.shape is not None
    places = {axis_from_end(tensor, dim) for dim in dims}
    sizes = [(i - len(tensor.shape), size) for i, size in enumerate(tensor.shape)]
    kept = [Size() if place in places else size for place, size in sizes if keepdim or place not in places]
    return tensor.with_shape(tuple(kept))


def with_axis(tensor: Tensor, dim: int) -> Tensor:
    """An axis of length one put in."""
    assert tensor.shape is not None
    shape = list(tensor.shape)
    if dim < 0:
        shape.insert(len(shape) + dim + 1, Size())
    elif shape[0].rest:
        raise AxesError("an axis is put in from the front of a tensor whose number of axes is not known")
    else:
        shape.insert(dim, Size())
    return tensor.with_shape(tuple(shape))


def without_axis(tensor: Tensor, dim: int) -> Tensor:
    """An axis of length one taken out."""
    along(tensor, [dim], what="squeeze")
    assert tensor.shape is not None
    shape = list(tensor.shape)
    del shape[axis_from_end(tensor, dim)]
    return tensor.with_shape(tuple(shape))


def as_complex(tensor: Tensor) -> Tensor:
    """`view_as_complex`: the last axis, pairs of real and imaginary parts, goes."""
    along(tensor, [-1], what="view_as_complex")
    return tensor.with_shape((tensor.shape or ())[:-1])


def as_real(tensor: Tensor) -> Tensor:
    """`view_as_real`: an axis of two comes last."""
    return tensor.with_shape((*(tensor.shape or ()), named("2")))


def flattened(tensor: Tensor, start: int, end: int) -> Tensor:
    """Axes from `start` to `end` made one; the cut one must be the first of them."""
    assert tensor.shape is not None
    first, last = axis_from_end(tensor, start), axis_from_end(tensor, end)
    count = len(tensor.shape)
    inside = list(tensor.shape[count + first : count + last + 1])
    if any(size.cut for size in inside[1:]):
        raise UnprovedError("flatten merges the axis that is cut into one in front of it")
    shape = (*tensor.shape[: count + first], product(inside), *tensor.shape[count + last + 1 :])
    return tensor.with_shape(shape)


def repeated(tensor: Tensor, dim: int, times: Size) -> Tensor:
    """Every element along an axis several times: shares of repeated heads are repeated shares."""
    assert tensor.shape is not None
    axis = axis_from_end(tensor, dim)
    shape = list(tensor.shape)
    shape[axis] = product([shape[axis], times])
    return tensor.with_shape(tuple(shape))


def matrix_product(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right`; both cut along the same batch axis."""
    cut = [t for t in (left, right) if t.is_cut]
    layers = left.layers | right.layers
    if not cut:
        return Tensor(None, left.origins | right.origins, None, layers)
    if len(cut) == 1 or left.cut_axis != right.cut_axis or left.cut_axis in (-1, -2):
        raise UnprovedError("a matrix product of a cut tensor with one that is not cut along the same batch axis")
    assert left.shape is not None and right.shape is not None
    return Tensor((*left.shape[:-1], right.shape[-1]), frozenset(), None, layers)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Scaled dot product attention: heads are a batch axis."""
    parts = (query, key, value)
    layers = frozenset().union(*(t.layers for t in parts))
    if not any(t.is_cut for t in parts):
        return Tensor(None, frozenset().union(*(t.origins for t in parts)), None, layers)
    if len({t.cut_axis for t in parts}) != 1 or query.cut_axis in (-1, -2):
        raise UnprovedError("attention over queries, keys and values that are not cut along the same head axis")
    assert query.shape is not None and value.shape is not None
    return Tensor((*query.shape[:-1], value.shape[-1]), frozenset(), None, layers)


def concatenated(tensors: Sequence[Tensor], dim: int) -> Tensor:
    """Joined along an axis that is not the cut one."""
    layers = frozenset().union(*(t.layers for t in tensors))
    origins = frozenset().union(*(t.origins for t in tensors))
    cut = [t for t in tensors if t.is_cut]
    if not cut:
        return Tensor(None, origins, None, layers)
    if len(cut) < len(tensors) or len({t.cut_axis for t in cut}) != 1:
        raise UnprovedError("cut tensors are joined with tensors that are not cut the same way")
    along(cut[0], [dim], what="cat")
    shape = list(cut[0].shape or ())
    shape[axis_from_end(cut[0], dim)] = unknown()
    return replace(cut[0].with_shape(tuple(shape)), layers=layers)


def summed(equation: str, tensors: Sequence[Tensor]) -> Tensor:
    """`torch.einsum`; a letter that is cut is a batch letter of all cut operands and of the result."""
    layers = frozenset().union(*(t.layers for t in tensors))
    if not any(t.is_cut for t in tensors):
        return Tensor(None, frozenset().union(*(t.origins for t in tensors)), None, layers)
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow or "." in equation or len(terms) != len(tensors):
        raise UnprovedError(f"einsum {equation!r} with a cut tensor")
    sizes: dict[str, Size] = {}
    cut: set[str] = set()
    for term, tensor in zip(terms, tensors, strict=True):
        if not tensor.is_cut:
            continue
        assert tensor.shape is not None and tensor.cut_axis is not None
        if tensor.shape[0].rest or len(tensor.shape) != len(term):
            raise UnprovedError(f"einsum {equation!r}: the number of axes of a cut tensor is not known")
        cut.add(term[tensor.cut_axis])
        sizes.update(zip(term, tensor.shape, strict=True))
    (letter,) = cut if len(cut) == 1 else ("",)
    for term, tensor in zip(terms, tensors, strict=True):
        if (letter in term) != tensor.is_cut:
            raise UnprovedError(f"einsum {equation!r} mixes cut axes with whole ones")
    if letter not in result or not letter:
        raise UnprovedError(f"einsum {equation!r} sums over the axis that is cut")
    return Tensor(tuple(sizes.get(c) or unknown() for c in result), frozenset(), None, layers)
