"""Training steps of tests/code/projects/kv_cache, one at each `next`."""

import numpy as np
import torch
import torch.nn.functional as F

from model import ModelArgs, Transformer

SIZES = {
    "small": {"batch": 4, "length": 32, "dim": 64, "intermediate_size": 176},
    "large": {"batch": 8, "length": 128, "n_layer": 4, "dim": 256, "intermediate_size": 688},
}


def steps(size):
    sizes = dict(SIZES[size])
    batch, length = sizes.pop("batch"), sizes.pop("length")
    model = Transformer(ModelArgs(block_size=length, vocab_size=2000, **sizes))
    model.setup_caches(batch, length, use_cache=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    rng = np.random.default_rng(0)
    while True:
        inputs = torch.from_numpy(rng.integers(0, 2000, (batch, length)))
        targets = torch.from_numpy(rng.integers(0, 2000, (batch, length)))
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        yield loss.item()
