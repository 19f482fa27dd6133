"""einops in modules and functions, and functions that take tensors, arrays and objects of their own alike."""

import einops
import numpy as np
import torch
import torch.nn as nn
from einops import rearrange, reduce, repeat
from einops.layers.torch import EinMix, Rearrange, Reduce
from nets import fill

try:
    from flash_attn import flash_attn_func
except ImportError:
    flash_attn_func = None


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, dim * 3, bias=False)
        self.out = nn.Sequential(Rearrange("b h n d -> b n (h d)"), nn.Linear(dim, dim))
        self.mix = EinMix("b (n k) d -> b n e", weight_shape="k d e", bias_shape="e", k=2, d=dim, e=3)
        self.pool = Reduce("b n d -> b d", "mean")
        self.start = nn.Parameter(torch.zeros(dim))

    def forward(self, x, mask=None):
        first = repeat(self.start, "d -> b 1 d", b=x.shape[0])
        x, shapes = einops.pack([first, x], "b * d")
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)
        scores = einops.einsum(q, k, "b h i d, b h j d -> b h i j") * q.size(-1) ** -0.5
        y = self.out(einops.einsum(scores.softmax(dim=-1), v, "b h i j, b h j d -> b h i d"))
        _, y = einops.unpack(y, shapes, "b * d")
        return self.pool(self.mix(y)), reduce(y, "b (n m) d -> b n", "max", m=2)


class Table:
    """Has methods of tensors that mean something else."""

    def __init__(self, rows):
        self.rows = rows

    def size(self, dim):
        return 10 * len(self.rows) + dim

    def argmax(self, dim):
        return self.rows[dim]

    def mean(self, dim=None):
        return self

    def transpose(self, first, second):
        return self


def described(things):
    """Numbers from objects of any kind."""
    results = []
    for thing in things:
        last = thing.argmax(1)
        results.append(float(last.sum() if hasattr(last, "sum") else last))
        turned = thing.transpose(1, 0)
        results.append(float(turned.size(0) if hasattr(turned, "size") and callable(turned.size) else turned.shape[0]))
        results.append(float(thing.mean(0).argmax(0)))
    return results


def run():
    model = Attention(8, 2)
    fill(model)
    x = torch.arange(2 * 6 * 8, dtype=torch.float32).reshape(2, 6, 8).sin()
    pooled, largest = model(x)
    (pooled.sum() + largest.pow(2).sum()).backward()
    results = [value.item() for value in rearrange(pooled, "b e -> (b e)")]
    results += [value.item() for value in largest.flatten()]
    results += [parameter.grad.norm().item() for parameter in model.parameters()]
    results += [einops.parse_shape(x, "b n _")["n"], len(model.state_dict())]
    array = np.asarray([[1.0, 5.0, 2.0], [4.0, 0.0, 9.0]])
    things = [torch.tensor(array), array, Table([7, 8, 9])]
    results += described(things)
    try:
        rearrange(x, "b n -> n b")
    except einops.EinopsError:
        results.append("wrong pattern")
    return results
