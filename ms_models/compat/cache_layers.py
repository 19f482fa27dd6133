"""Keys and values of one attention layer, kept from one call to the next; transformers' four kinds of layer."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, ops


class CacheLayerMixin:
    """What every layer of a cache has. Keys and values are `[batch, heads, positions, size]`."""

    is_compileable = False
    is_croppable = False
    is_sliding = False
    supports_early_init = True

    def __init__(self, **kwargs: Any) -> None:
        self.keys: Tensor | None = None
        self.values: Tensor | None = None
        self.is_initialized = False

    def __repr__(self) -> str:
        return type(self).__name__

    def get_seq_length(self) -> int:
        """Positions seen so far."""
        raise NotImplementedError

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Adds positions; gives the keys and values to attend to."""
        raise NotImplementedError

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of keys that the next `query_length` queries meet, and the position of the first of them."""
        raise NotImplementedError

    def get_max_length(self) -> int:
        """Positions that the layer can hold, -1 for any number."""
        return -1

    def reset(self) -> None:
        """Forgets every position."""
        self.keys = self.values = None
        self.is_initialized = False

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Takes the rows of the batch in another order."""
        if self.is_initialized and self.keys is not None and self.values is not None:
            self.keys, self.values = ops.gather(self.keys, beam_idx, 0), ops.gather(self.values, beam_idx, 0)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row of the batch."""
        if self.is_initialized and self.keys is not None and self.values is not None:
            self.keys = ops.repeat_interleave(self.keys, repeats, 0)
            self.values = ops.repeat_interleave(self.values, repeats, 0)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps some rows of the batch."""
        self.reorder_cache(indices)


def _joined(old: Tensor | None, new: Tensor) -> Tensor:
    # a tensor without elements breaks the gradient of concatenation
    return new if old is None or old.size == 0 else ops.cat((old, new), -2)


def _tail(states: Tensor, count: int) -> Tensor:
    return states if states.shape[-2] <= count else states[:, :, states.shape[-2] - count :, :]


class DynamicLayer(CacheLayerMixin):
    """Grows with every call."""

    is_croppable = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Before the first update, with its tensors."""
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        self.keys, self.values = _joined(self.keys, key_states), _joined(self.values, value_states)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def get_seq_length(self) -> int:
        return 0 if self.keys is None else self.keys.shape[-2]

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last `-tokens_to_remove` positions."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop takes a negative number of positions to forget, not {tokens_to_remove}")
        if tokens_to_remove and self.keys is not None and self.values is not None:
            kept = max(self.keys.shape[-2] + tokens_to_remove, 0)
            self.keys, self.values = self.keys[:, :, :kept, :], self.values[:, :, :kept, :]


class DynamicSlidingWindowLayer(DynamicLayer):
    """Grows up to what a window of `sliding_window` positions still needs, one less than the window."""

    is_sliding = True

    def __init__(self, sliding_window: int, **kwargs: Any) -> None:
        super().__init__()
        self.sliding_window = sliding_window
        self.cumulative_length = 0
        self.record_past = False

    def activate_past_recording(self) -> None:
        """From now on every position is kept until `crop`, so that the last ones can be taken back."""
        self.record_past = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        keys, values = super().update(key_states, value_states)
        self.cumulative_length += key_states.shape[-2]
        if self.record_past:
            visible = self.sliding_window - 1 + key_states.shape[-2]
            return _tail(keys, visible), _tail(values, visible)
        self._narrow()
        return keys, values

    def _narrow(self) -> None:
        assert self.keys is not None and self.values is not None
        # a window of one keeps everything: torch's slice from -0
        kept = self.sliding_window - 1 or self.keys.shape[-2]
        self.keys, self.values = _tail(self.keys, kept), _tail(self.values, kept)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = min(self.cumulative_length, self.sliding_window - 1)
        return kept + query_length, max(self.cumulative_length - self.sliding_window + 1, 0)

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.sliding_window

    def reset(self) -> None:
        super().reset()
        self.cumulative_length = 0

    def crop(self, tokens_to_remove: int) -> None:
        if self.cumulative_length < self.sliding_window:
            super().crop(tokens_to_remove)
            self.cumulative_length = 0 if self.keys is None else self.keys.shape[-2]
            return
        if not self.record_past:
            raise RuntimeError("the window is full and its past was not recorded: activate_past_recording comes first")
        super().crop(tokens_to_remove)
        self._narrow()
        self.cumulative_length += tokens_to_remove


class StaticLayer(CacheLayerMixin):
    """Room for `max_cache_len` positions from the start; what is not used yet is masked."""

    is_compileable = True
    is_croppable = True

    def __init__(self, max_cache_len: int, **kwargs: Any) -> None:
        super().__init__()
        self.max_cache_len = max_cache_len
        self.cumulative_length = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Makes the room, for the batch and heads of the first tensors."""
        if not self.is_initialized:
            self.keys, self.values = self._room(key_states), self._room(value_states)
            self.is_initialized = True

    def _room(self, states: Tensor) -> Tensor:
        batch, heads, _, size = states.shape
        return ops.zeros((batch, heads, self.max_cache_len, size), states.dtype)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        begin, self.cumulative_length = self.cumulative_length, self.cumulative_length + key_states.shape[-2]
        if self.cumulative_length > self.max_cache_len:
            raise IndexError(f"{self.cumulative_length} positions for a cache of {self.max_cache_len}")
        self.keys, self.values = _written(self.keys, key_states, begin), _written(self.values, value_states, begin)
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.max_cache_len, 0

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def get_max_length(self) -> int:
        return self.max_cache_len

    def reset(self) -> None:
        super().reset()
        self.cumulative_length = 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last `-tokens_to_remove` positions."""
        if tokens_to_remove > 0:
            raise RuntimeError(f"crop takes a negative number of positions to forget, not {tokens_to_remove}")
        self.cumulative_length += tokens_to_remove


def _written(room: Tensor, states: Tensor, begin: int) -> Tensor:
    """A new tensor, because one that was changed in place has no gradient."""
    parts = [room[:, :, :begin, :], states.astype(room.dtype), room[:, :, begin + states.shape[-2] :, :]]
    parts = [part for part in parts if part.shape[-2] > 0]
    return ops.cat(parts, -2) if len(parts) > 1 else parts[0]


class StaticSlidingWindowLayer(StaticLayer):
    """Room for the last positions of a window."""

    is_sliding = True

    def __init__(self, max_cache_len: int, sliding_window: int, **kwargs: Any) -> None:
        super().__init__(min(sliding_window, max_cache_len))
        self.is_croppable = max_cache_len <= sliding_window

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.lazy_initialization(key_states, value_states)
        assert self.keys is not None and self.values is not None
        before, added = self.cumulative_length, key_states.shape[-2]
        if before + added <= self.max_cache_len:
            return super().update(key_states, value_states)
        self.cumulative_length = before + added
        # a full window drops its oldest position before the new ones come
        first, last = (1, self.max_cache_len) if before >= self.max_cache_len else (0, before)
        keys = _joined(self.keys[:, :, first:last, :], key_states) if last > first else key_states
        values = _joined(self.values[:, :, first:last, :], value_states) if last > first else value_states
        self.keys, self.values = _tail(keys, self.max_cache_len), _tail(values, self.max_cache_len)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        before, window = self.cumulative_length, self.max_cache_len
        offset = max(before - window + 1, 0)
        if before >= window:
            return window + query_length - 1, offset
        return max(before + query_length, window), offset


class DummyLayer(CacheLayerMixin):
    """A layer that attends to the keys of another one, or has no attention."""

    is_compileable = True
    is_croppable = True
    supports_early_init = False

    def update(self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any) -> Any:
        if key_states is None and value_states is None:
            return None, None
        raise NotImplementedError("a layer without a cache of its own cannot be updated")

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing to forget."""


__all__ = [
    "CacheLayerMixin",
    "DummyLayer",
    "DynamicLayer",
    "DynamicSlidingWindowLayer",
    "StaticLayer",
    "StaticSlidingWindowLayer",
]
