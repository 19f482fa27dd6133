"""Seeds, generators and random tensors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor


class Generator:
    """A source of random numbers with its own state, as `torch.Generator`; backed by numpy's PCG64.

    The streams differ from torch's: the same seed gives the same numbers again, not torch's numbers.
    """

    def __init__(self, device: Any = None) -> None:
        self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of a seed."""
        self._seed = int(seed)
        self.numpy = np.random.Generator(np.random.PCG64(self._seed % 2**64))
        return self

    def seed(self) -> int:
        """Start the stream of a random seed and return it."""
        self.manual_seed(secrets.randbits(63))
        return self._seed

    def initial_seed(self) -> int:
        """The seed of the stream."""
        return self._seed

    def get_state(self) -> dict[str, Any]:
        """State to be given to `set_state`."""
        return {"seed": self._seed, "state": self.numpy.bit_generator.state}

    def set_state(self, new_state: dict[str, Any]) -> Generator:
        """Continue from a state of `get_state`."""
        self.manual_seed(new_state["seed"])
        self.numpy.bit_generator.state = new_state["state"]
        return self


default_generator = Generator()


def manual_seed(seed: int) -> Generator:
    """Seed everything that draws numbers: initial values, sampling, dropout.

    `mindspore.set_seed` also seeds numpy's global state, which `torch.manual_seed` leaves alone; it is put back.
    """
    numpy_state = np.random.get_state()
    ms.set_seed(int(seed) % 2**32)
    ms.manual_seed(int(seed) % 2**32)
    np.random.set_state(numpy_state)
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def _source(generator: Generator | None) -> np.random.Generator:
    return (default_generator if generator is None else generator).numpy


def _shape(size: Sequence[Any]) -> tuple[int, ...]:
    if len(size) == 1 and isinstance(size[0], tuple | list):
        size = size[0]
    return tuple(int(n) for n in size)


def rand(*size: Any, generator: Generator | None = None, dtype: Any = None) -> Tensor:
    """Uniform numbers in [0, 1)."""
    return Tensor(_source(generator).random(_shape(size), dtype=np.float32), dtype or ms.float32)


def randn(*size: Any, generator: Generator | None = None, dtype: Any = None) -> Tensor:
    """Numbers from N(0, 1)."""
    return Tensor(_source(generator).standard_normal(_shape(size), dtype=np.float32), dtype or ms.float32)


def rand_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """`rand` in the shape and type of another tensor."""
    return rand(input.shape, dtype=dtype or input.dtype)


def randn_like(input: Tensor, *, dtype: Any = None) -> Tensor:
    """`randn` in the shape and type of another tensor."""
    return randn(input.shape, dtype=dtype or input.dtype)


def randint(
    low: int, high: int, size: Sequence[int], *, generator: Generator | None = None, dtype: Any = None
) -> Tensor:
    """Whole numbers in [low, high)."""
    return Tensor(_source(generator).integers(low, high, _shape(size)), dtype or ms.int64)


def randint_like(input: Tensor, low: int, high: int, *, dtype: Any = None) -> Tensor:
    """`randint` in the shape and type of another tensor."""
    return randint(low, high, input.shape, dtype=dtype or input.dtype)


def randperm(n: int, *, generator: Generator | None = None, dtype: Any = None) -> Tensor:
    """A random order of 0 .. n-1."""
    return Tensor(_source(generator).permutation(n), dtype or ms.int64)


def normal(
    mean: float, std: float, size: Sequence[int], *, generator: Generator | None = None, dtype: Any = None
) -> Tensor:
    """Numbers from N(mean, std^2)."""
    return randn(size, generator=generator, dtype=dtype) * std + mean


def normal_around(mean: Any, std: Any = 1.0, *, generator: Generator | None = None) -> Tensor:
    """Numbers from N(mean, std^2), each with its own mean, its own deviation or both."""
    shape = np.broadcast_shapes(getattr(mean, "shape", ()), getattr(std, "shape", ()))
    return randn(shape, generator=generator) * std + mean


def bernoulli(input: Tensor, *, generator: Generator | None = None) -> Tensor:
    """1 with the probability given by each element of `input`, else 0."""
    drawn = _source(generator).random(input.shape) < input.asnumpy()
    return Tensor(drawn.astype(np.float32), input.dtype)


def multinomial(
    input: Tensor, num_samples: int, replacement: bool = False, *, generator: Generator | None = None
) -> Tensor:
    """Positions drawn with the weights in the rows of `input` `[n]` or `[m, n]`: int64 `[k]` or `[m, k]`.

    Without replacement by exponential races (Efraimidis and Spirakis, 2006): the `num_samples` largest of `w / Exp(1)`.

    Raises:
        RuntimeError: negative, infinite or all-zero weights, or more samples than positive weights.
    """
    weights = np.atleast_2d(input.asnumpy().astype(np.float64))
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise RuntimeError("probability tensor contains either inf, nan or element < 0")
    if (weights.sum(-1) <= 0).any():
        raise RuntimeError("invalid multinomial distribution (sum of probabilities <= 0)")
    source = _source(generator)
    if replacement:
        cumulative = weights.cumsum(-1)
        drawn = source.random((len(weights), num_samples)) * cumulative[:, -1:]
        picked = np.stack([np.searchsorted(c, d, side="right") for c, d in zip(cumulative, drawn, strict=True)])
    else:
        if num_samples > (weights > 0).sum(-1).min():
            raise RuntimeError("cannot sample more than the positive weights without replacement")
        keys = weights / source.standard_exponential(weights.shape)
        picked = np.argsort(-keys, axis=-1, kind="stable")[:, :num_samples]
    return Tensor(picked[0] if input.ndim == 1 else picked, ms.int64)
