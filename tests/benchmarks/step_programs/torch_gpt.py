"""Training steps of samples/torch_gpt, one at each `next`."""

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_

from model import GPT, GPTConfig

SIZES = {
    "small": {"batch": 4, "length": 64, "n_layer": 2, "n_embd": 64, "hidden_dim": 176},
    "large": {"batch": 8, "length": 128, "n_layer": 4, "n_embd": 256, "hidden_dim": 688},
}


def steps(size):
    sizes = dict(SIZES[size])
    batch, length = sizes.pop("batch"), sizes.pop("length")
    model = GPT(GPTConfig(vocab_size=257, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rng = np.random.default_rng(0)
    model.train()
    while True:
        x = torch.from_numpy(rng.integers(0, 257, (batch, length)))
        y = torch.from_numpy(rng.integers(0, 257, (batch, length)))
        optimizer.zero_grad()
        _, loss = model(x, y)
        loss.backward()
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()
