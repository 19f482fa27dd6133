"""Greedy generation with a key-value cache in buffers that are written by slices, masks, complex indexing."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from nets import fill


class CachedAttention(nn.Module):
    def __init__(self, dim, heads, length):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        self.register_buffer("k_cache", torch.zeros(1, heads, length, dim // heads), persistent=False)
        self.register_buffer("v_cache", torch.zeros(1, heads, length, dim // heads), persistent=False)

    def forward(self, x, start: int = 0):
        b, t, c = x.size()
        q, k, v = self.qkv(x).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        self.k_cache[:, :, start : start + t] = k
        self.v_cache[:, :, start : start + t] = v
        keys, values = self.k_cache[:, :, : start + t], self.v_cache[:, :, : start + t]
        att = (q @ keys.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.mask[:, :, start : start + t, : start + t] == 0, float("-inf"))
        y = F.softmax(att, dim=-1) @ values
        return self.out(y.transpose(1, 2).contiguous().view(b, t, c))


class LM(nn.Module):
    def __init__(self, vocab=11, dim=8, length=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.pos = nn.Parameter(torch.zeros(length, dim))
        self.layers = nn.ModuleList(
            [nn.ModuleDict({"ln": nn.LayerNorm(dim), "att": CachedAttention(dim, 2, length)}) for _ in range(2)]
        )
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, vocab))

    def forward(self, idx, start=0):
        x = self.emb(idx) + self.pos[start : start + idx.shape[1]]
        for layer in self.layers:
            x = x + layer["att"](layer["ln"](x), start)
        return self.head(x)


@torch.inference_mode()
def generate(model: LM, idx: torch.Tensor, steps: int):
    logits = model(idx)
    for _ in range(steps):
        _, top = logits[:, -1].topk(2)
        idx = torch.cat([idx, top[:, :1]], dim=1)
        logits = model(idx[:, -1:], start=idx.size(1) - 1)
    return idx, logits


def run():
    model = fill(LM(), phase=3.0)
    with torch.no_grad():
        model.pos.mul_(8.0)  # positions count, so the tokens differ
        model.emb.weight.data.mul_(4.0)
    model.eval()
    idx, logits = generate(model, torch.tensor([[1, 2, 3]]), 8)
    values, _ = torch.sort(logits.flatten(), descending=True)
    return idx[0].tolist() + values[:5].tolist() + [float(logits.argmax(dim=-1).item())]
