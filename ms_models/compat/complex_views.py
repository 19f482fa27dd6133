"""Complex tensors from pairs of floats and back; copies, where torch shares memory."""

from __future__ import annotations

from mindspore import Tensor, ops


def view_as_complex(input: Tensor) -> Tensor:
    """`[..., 2]` floats as `[...]` complex numbers."""
    if input.ndim == 0 or input.shape[-1] != 2:
        raise RuntimeError(f"Tensor must have a last dimension of size 2, not shape {input.shape}")
    return ops.Complex()(input[..., 0], input[..., 1])


def view_as_real(input: Tensor) -> Tensor:
    """`[...]` complex numbers as `[..., 2]` floats."""
    return ops.stack([ops.real(input), ops.imag(input)], -1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """`a * b` for complex numbers, by four real products: MindSpore differentiates these, and not its complex one."""
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.is_complex() and b.is_complex()):
        return a * b
    a_real, a_imag, b_real, b_imag = ops.real(a), ops.imag(a), ops.real(b), ops.imag(b)
    return ops.Complex()(a_real * b_real - a_imag * b_imag, a_real * b_imag + a_imag * b_real)
