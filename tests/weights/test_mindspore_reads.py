"""The rank files are what MindSpore's own reader expects: same names, shapes and bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hf_checkpoints import DTYPES, config, tensors_of, write_model

from mappings.layout import ParallelLayout
from migrate.weights.command import convert


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_load_checkpoint_gives_the_bytes_of_every_rank(tmp_path, dtype):
    import mindspore

    mindspore.runtime.launch_blocking()
    write_model(tmp_path / "hf", config("qwen2", vocab_size=7), dtype=dtype, shards=2)
    convert(tmp_path / "hf", tmp_path / "out", layout=ParallelLayout(tp=4))
    for rank in range(4):
        path = tmp_path / f"out/model-rank{rank:05d}.safetensors"
        loaded = mindspore.load_checkpoint(str(path), format="safetensors")
        (tmp_path / "one").mkdir(exist_ok=True)
        (tmp_path / "one/rank.safetensors").write_bytes(path.read_bytes())
        stored = tensors_of(tmp_path / "one")
        assert set(loaded) == set(stored) and len(stored) == 27
        for name, (_, shape, raw) in stored.items():
            assert loaded[name].shape == shape
            if dtype == "BF16":
                # Widening is exact but quietens signalling NaNs, so NaNs are compared as such.
                expected = (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
                found = loaded[name].astype(mindspore.float32).asnumpy()
                assert np.array_equal(found, expected, equal_nan=True), name
            else:
                expected = np.frombuffer(raw, DTYPES[dtype]).reshape(shape)
                assert np.array_equal(loaded[name].asnumpy(), expected, equal_nan=True), name
