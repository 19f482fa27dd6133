"""Greedy generation of samples/torch_gpt with its cache, TOKENS at each `next`."""

import torch

from generate import generate
from model import GPT, GPTConfig

TOKENS = 16
SIZES = {
    "small": {"n_layer": 2, "n_embd": 64, "hidden_dim": 176},
    "large": {"n_layer": 4, "n_embd": 256, "hidden_dim": 688},
}


def steps(size):
    model = GPT(GPTConfig(vocab_size=2000, max_seq_len=64, **SIZES[size])).eval()
    prompt = torch.arange(8).reshape(1, 8)
    while True:
        yield generate(model, prompt, TOKENS, temperature=0).tolist()
