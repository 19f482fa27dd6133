"""Greedy generation of tests/code/projects/kv_cache, TOKENS at each `next`."""

import torch

from generate import generate
from model import ModelArgs, Transformer

TOKENS = 16
SIZES = {
    "small": {"dim": 64, "intermediate_size": 176},
    "large": {"n_layer": 4, "dim": 256, "intermediate_size": 688},
}


def steps(size):
    model = Transformer(ModelArgs(block_size=64, vocab_size=2000, **SIZES[size])).eval()
    prompt = torch.arange(8)
    while True:
        yield generate(model, prompt, TOKENS, temperature=0.0).tolist()
