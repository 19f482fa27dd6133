"""KV caches with transformers' interface: dynamic, static, and the pair of an encoder-decoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mindspore import Tensor

from .cache_layers import (
    CacheLayerMixin,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    StaticLayer,
    StaticSlidingWindowLayer,
)

DYNAMIC_LAYERS = {
    "full_attention": DynamicLayer,
    "sliding_attention": DynamicSlidingWindowLayer,
    "chunked_attention": DynamicSlidingWindowLayer,
    "dummy": DummyLayer,
}
STATIC_LAYERS = {
    "full_attention": StaticLayer,
    "sliding_attention": StaticSlidingWindowLayer,
    "chunked_attention": StaticSlidingWindowLayer,
    "dummy": DummyLayer,
}


class Cache:
    """Layers by number; made at once from `layers`, or one by one from `layer_class_to_replicate`."""

    def __init__(
        self,
        layers: list[CacheLayerMixin] | None = None,
        layer_class_to_replicate: Callable[[], CacheLayerMixin] | None = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
    ) -> None:
        if (layers is None) == (layer_class_to_replicate is None):
            raise ValueError("a cache is made either of `layers` or of a `layer_class_to_replicate`")
        if offloading:
            raise NotImplementedError("offloading of a KV cache has no counterpart; leave offloading=False")
        self.layers = [] if layers is None else layers
        self.layer_class_to_replicate = layer_class_to_replicate

    def __repr__(self) -> str:
        return f"{type(self).__name__}(layers={self.layers})"

    def __len__(self) -> int:
        return len(self.layers)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Adds positions to a layer; gives the keys and values to attend to."""
        if self.layer_class_to_replicate is not None:
            while len(self.layers) <= layer_idx:
                self.layers.append(self.layer_class_to_replicate())
        return self.layers[layer_idx].update(key_states, value_states, *args, **kwargs)

    def _layer(self, layer_idx: int) -> CacheLayerMixin | None:
        """The layer whose length stands for that of `layer_idx`; None when there is none yet."""
        if layer_idx >= len(self.layers):
            return None
        if not isinstance(self.layers[layer_idx], DummyLayer):
            return self.layers[layer_idx]
        own = [layer for layer in self.layers if not isinstance(layer, DummyLayer)]
        if layer_idx != 0 or not own:
            raise ValueError(f"layer {layer_idx} keeps no keys, so it has no length")
        return own[0]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions seen so far."""
        layer = self._layer(layer_idx)
        return 0 if layer is None else layer.get_seq_length()

    def get_query_offset(self, layer_idx: int = 0) -> int:
        """Position of the next query."""
        return self.get_seq_length(layer_idx)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Number of keys that the next queries meet, and the position of the first of them."""
        layer = self._layer(layer_idx)
        return (query_length, 0) if layer is None else layer.get_mask_sizes(query_length)

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Positions that fit, -1 for any number; of all layers the largest."""
        if layer_idx is None:
            return max(layer.get_max_length() for layer in self.layers)
        return -1 if layer_idx >= len(self.layers) else self.layers[layer_idx].get_max_length()

    def _each(self, method: str, *args: Any) -> None:
        for layer in self.layers:
            if hasattr(layer, method):
                getattr(layer, method)(*args)

    def reset(self) -> None:
        """Forgets every position."""
        self._each("reset")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Takes the rows of the batch in another order."""
        self._each("reorder_cache", beam_idx)

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last `-tokens_to_remove` positions."""
        self._each("crop", tokens_to_remove)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats every row of the batch."""
        self._each("batch_repeat_interleave", repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keeps some rows of the batch."""
        self._each("batch_select_indices", indices)

    def activate_past_recording(self) -> None:
        """Sliding windows keep what `crop` may take back."""
        self._each("activate_past_recording")

    @property
    def is_compileable(self) -> bool:
        """Whether no shape changes from call to call."""
        return bool(self.layers) and all(layer.is_compileable for layer in self.layers)

    @property
    def is_initialized(self) -> bool:
        """Whether every layer has seen tensors."""
        layers = [layer for layer in self.layers if layer.supports_early_init]
        return bool(layers) and all(layer.is_initialized for layer in layers)

    @property
    def is_croppable(self) -> bool:
        """Whether `crop` works on every layer."""
        return all(layer.is_croppable for layer in self.layers)

    @property
    def is_sliding(self) -> list[bool]:
        """Layer by layer."""
        return [layer.is_sliding for layer in self.layers]

    @property
    def is_linear(self) -> list[bool]:
        """Layer by layer; layers of linear attention are refused when the cache is made."""
        return [False] * len(self.layers)

    @property
    def is_dummy(self) -> list[bool]:
        """Layer by layer."""
        return [isinstance(layer, DummyLayer) for layer in self.layers]


def _layers(config: Any, kinds: dict[str, Any], **options: Any) -> list[CacheLayerMixin]:
    """One layer for each layer of the decoder that a configuration describes."""
    config = config.get_text_config(decoder=True)
    layers: list[CacheLayerMixin] = []
    stated = getattr(config, "layer_types", None)
    shared = getattr(config, "kv_sharing_modes", None)
    for number, own in enumerate(config.per_layer_config):
        window, chunk = getattr(own, "sliding_window", None), getattr(own, "attention_chunk_size", None)
        if stated is not None:
            kind = stated[number]
        else:
            kind = "sliding_attention" if window is not None else "chunked_attention" if chunk is not None else ""
        if kind in ("moe", "mlp") or (shared is not None and shared[number] == "reuse"):
            kind = "dummy"
        kind = kind or "full_attention"
        if kind not in kinds:
            raise NotImplementedError(f"a KV cache has no layer of type {kind!r}; known are {', '.join(kinds)}")
        size = {"sliding_attention": window, "chunked_attention": chunk}.get(kind)
        layers.append(kinds[kind](**options) if size is None else kinds[kind](sliding_window=size, **options))
    return layers


class DynamicCache(Cache):
    """Grows with every call; with a configuration, layers with a window keep no more than it needs."""

    def __init__(
        self,
        ddp_cache_data: Iterable[tuple[Any, ...]] | None = None,
        config: Any = None,
        offloading: bool = False,
        offload_only_non_sliding: bool = False,
    ) -> None:
        layers = [] if config is None else _layers(config, DYNAMIC_LAYERS)
        for number, (keys, values, *rest) in enumerate(ddp_cache_data or ()):
            if config is None:
                window = rest[0] if rest else None
                layers.append(DynamicLayer() if window is None else DynamicSlidingWindowLayer(int(window)))
            if keys is not None and values is not None:
                layers[number].update(keys, values)
        if layers:
            super().__init__(layers, None, offloading, offload_only_non_sliding)
        else:
            super().__init__(None, DynamicLayer, offloading, offload_only_non_sliding)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for layer in self.layers:
            yield layer.keys, layer.values, getattr(layer, "sliding_window", None)


class StaticCache(Cache):
    """Room for `max_cache_len` positions from the start."""

    def __init__(
        self,
        config: Any,
        max_cache_len: int,
        offloading: bool = False,
        offload_only_non_sliding: bool = True,
        **kwargs: Any,
    ) -> None:
        layers = _layers(config, STATIC_LAYERS, max_cache_len=max_cache_len)
        super().__init__(layers, None, offloading, offload_only_non_sliding)


class EncoderDecoderCache(Cache):
    """A cache for the decoder's own positions and one for the encoder's, which is filled once."""

    def __init__(self, *caches: Any) -> None:
        if len(caches) == 1:
            halves: tuple[list[Any], list[Any]] = ([], [])
            for entry in caches[0]:
                middle = len(entry) // 2
                halves[0].append(entry[:middle])
                halves[1].append(entry[middle:])
            own, cross = DynamicCache(halves[0]), DynamicCache(halves[1])
        elif len(caches) == 2 and all(isinstance(cache, Cache) for cache in caches):
            own, cross = caches
        else:
            raise TypeError("expected two caches, of the decoder itself and of its cross attention")
        self.self_attention_cache: Cache = own
        self.cross_attention_cache: Cache = cross
        self.is_updated = {layer: cross.get_seq_length(layer) > 0 for layer in range(len(cross))}

    def __repr__(self) -> str:
        return f"EncoderDecoderCache({self.self_attention_cache}, {self.cross_attention_cache})"

    def __len__(self) -> int:
        return len(self.self_attention_cache)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        own, cross = self.self_attention_cache, self.cross_attention_cache
        assert isinstance(own, DynamicCache) and isinstance(cross, DynamicCache)
        for left, right in zip(own, cross, strict=False):
            yield left + right

    @property
    def layers(self) -> list[CacheLayerMixin]:  # type: ignore[override]
        """Of the decoder itself."""
        return self.self_attention_cache.layers

    def reset(self) -> None:
        self.self_attention_cache.reset()
        self.cross_attention_cache.reset()
        self.is_updated = dict.fromkeys(self.is_updated, False)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.self_attention_cache.reorder_cache(beam_idx)
        self.cross_attention_cache.reorder_cache(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.self_attention_cache.batch_repeat_interleave(repeats)
        self.cross_attention_cache.batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.self_attention_cache.batch_select_indices(indices)
        self.cross_attention_cache.batch_select_indices(indices)


__all__ = ["Cache", "CacheLayerMixin", "DynamicCache", "DynamicLayer", "EncoderDecoderCache", "StaticCache"]
