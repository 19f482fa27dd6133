"""Matrix products with torch's results where an axis is empty.

For an empty inner axis the kernels of MindSpore 2.10 leave their output as it was in memory. The gradient of a product
with an empty batch is such a product too, so an expert or a head that got no token would receive arbitrary gradients.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops


def _nothing(shape: tuple[int, ...], operand: Tensor) -> Tensor:
    """Zeros of `shape`. What does not depend on an operand has a gradient of zeros, which is what torch gives here.

    No sum of the operands may stand in for that dependence: a sum of nothing is uninitialised memory, too.
    """
    return ops.zeros(shape, dtype=operand.dtype)


def _shape(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Shape of a product of operands with these shapes.

    Raises:
        ValueError: the inner axes differ.
    """
    inner = right[-2] if len(right) > 1 else right[0]
    if left[-1] != inner:
        raise ValueError(f"the inner axes of a product must agree, got the shapes {left} and {right}")
    rows = left[-2:-1]
    columns = right[-1:] if len(right) > 1 else ()
    return tuple(np.broadcast_shapes(left[:-2], right[:-2])) + rows + columns


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Product of vectors, matrices or batches of matrices, as `@`."""
    if 0 in input.shape or 0 in other.shape:
        return _nothing(_shape(input.shape, other.shape), input)
    return ops.matmul(input, other)


def bmm(input: Tensor, mat2: Tensor) -> Tensor:
    """Products of two batches of matrices `[b, n, m]` and `[b, m, p]`."""
    if 0 in input.shape or 0 in mat2.shape:
        return _nothing(_shape(input.shape, mat2.shape), input)
    return ops.bmm(input, mat2)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`input [..., in]` times the transposed `weight [out, in]`, plus `bias [out]`."""
    if 0 in input.shape or 0 in weight.shape:
        outputs = weight.shape[:1] if weight.ndim > 1 else ()
        product = _nothing(input.shape[:-1] + outputs, input)
        # Added to no rows, the bias would get a sum of nothing as its gradient.
        return product if bias is None or 0 in product.shape else product + bias
    return ops.dense(input, weight, bias)


def addmm(input: Tensor, mat1: Tensor, mat2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (mat1 @ mat2)`; with beta = 0 the input, even NaN, plays no part."""
    if beta != 0 and not (0 in mat1.shape or 0 in mat2.shape):
        return ops.addmm(input, mat1, mat2, beta=beta, alpha=alpha)
    return _added(input, matmul(mat1, mat2), beta, alpha)


def baddbmm(input: Tensor, batch1: Tensor, batch2: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (batch1 @ batch2)` for batches; with beta = 0 the input, even NaN, plays no part."""
    if beta != 0 and not (0 in batch1.shape or 0 in batch2.shape):
        return ops.baddbmm(input, batch1, batch2, beta=beta, alpha=alpha)
    return _added(input, bmm(batch1, batch2), beta, alpha)


def addmv(input: Tensor, mat: Tensor, vec: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """`beta * input + alpha * (mat @ vec)`; with beta = 0 the input, even NaN, plays no part."""
    return _added(input, matmul(mat, vec), beta, alpha)


def _added(input: Tensor, product: Tensor, beta: float, alpha: float) -> Tensor:
    if beta == 0 or 0 in product.shape:
        return product * alpha
    return input * beta + product * alpha
