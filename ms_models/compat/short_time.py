"""Short-time Fourier transform as a product with the matrices of cosines and sines, so that it has a gradient."""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, ops


def stft(
    input: Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Tensor | None = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Tensor:
    """Spectrum `[(batch,) frequencies, frames]` of a real signal `[(batch,) length]`.

    Without `return_complex` the last axis of the result holds real and imaginary part.

    Raises:
        ValueError: a complex signal, an unknown `pad_mode`, a window of another length, a signal that is too short.
    """
    if not input.is_floating_point() or input.ndim not in (1, 2):
        raise ValueError(f"stft takes a real signal with one or two axes, not {input.dtype} {input.shape}")
    if return_complex is None:
        raise ValueError("stft of a real signal needs return_complex, as in torch")
    length = win_length or n_fft
    if window is not None and window.shape != (length,):
        raise ValueError(f"stft: a window of shape {window.shape} does not fit win_length {length}")
    places, held = _frames(input.shape[-1], n_fft, hop_length or n_fft // 4, center, pad_mode)
    signal = input if input.ndim == 2 else input.expand_dims(0)
    framed = ops.gather(signal, Tensor(places.reshape(-1)), 1).reshape(signal.shape[:1] + places.shape)
    framed = framed * Tensor(held.astype(np.float32)).astype(input.dtype)
    before = (n_fft - length) // 2
    if window is None:
        window = ops.ones((length,), dtype=input.dtype)
    margins = [ops.zeros((before,), dtype=window.dtype), window]
    wide = ops.cat([*margins, ops.zeros((n_fft - length - before,), dtype=window.dtype)], 0)
    bins = n_fft if onesided is not None and not onesided else n_fft // 2 + 1
    angles = 2 * math.pi * (np.outer(np.arange(n_fft), np.arange(bins)) % n_fft) / n_fft
    scale = 1 / math.sqrt(n_fft) if normalized else 1.0
    parts = []
    for matrix in (np.cos(angles) * scale, -np.sin(angles) * scale):
        part = ops.matmul(framed * wide, Tensor(matrix).astype(input.dtype)).swapaxes(1, 2)
        parts.append(part if input.ndim == 2 else part.squeeze(0))
    return ops.Complex()(parts[0], parts[1]) if return_complex else ops.stack(parts, -1)


def _frames(length: int, n_fft: int, hop: int, center: bool, pad_mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions `[frames, n_fft]` in the signal, and whether there is one (else the element is 0)."""
    margin = n_fft // 2 if center else 0
    count = 1 + (length + 2 * margin - n_fft) // hop
    if count < 1 or (center and pad_mode == "reflect" and margin >= length):
        raise ValueError(f"stft: a signal of {length} elements is too short for n_fft {n_fft}")
    places = np.arange(count)[:, None] * hop + np.arange(n_fft) - margin
    held = np.ones(places.shape, bool)
    if pad_mode == "reflect":
        places = np.abs(places)
        places = np.where(places >= length, 2 * (length - 1) - places, places)
    elif pad_mode == "constant":
        held = (places >= 0) & (places < length)
        places = np.clip(places, 0, length - 1)
    elif pad_mode == "replicate":
        places = np.clip(places, 0, length - 1)
    elif pad_mode == "circular":
        places = places % length
    else:
        raise ValueError(f"stft: pad_mode is {pad_mode!r}, not reflect, constant, replicate or circular")
    return places.astype(np.int64), held
