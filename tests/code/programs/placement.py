"""Devices and data types on their way through functions, contexts and objects of unknown type; masks; seeds."""

from dataclasses import dataclass

import torch
import torch.nn as nn
from nets import MLP, batch, fill


@dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor
    name: str = "batch"

    def to(self, device, dtype=None):
        """A method of the program's own."""
        return Batch(self.x.to(device, dtype or self.x.dtype), self.y.to(device), self.name + "!")


def moved(things, where):
    """Tensors, modules, containers and objects of their own alike."""
    if isinstance(things, dict):
        return {key: moved(value, where) for key, value in things.items()}
    if isinstance(things, list | tuple):
        return type(things)(moved(value, where) for value in things)
    return things.to(where) if hasattr(things, "to") else things


def made(n, device=None, dtype=torch.float32, **options):
    with torch.device(device or "cpu"):
        rows = torch.arange(n, dtype=dtype, device=device) / n
    return rows.to(device=device, dtype=dtype, **options)


def causal(n, device):
    mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=device), diagonal=1)
    banded = mask | torch.tril(torch.ones_like(mask), diagonal=-3)
    scores = made(n * n, device=device).view(n, n).masked_fill(banded, float("-inf"))
    return scores.softmax(dim=-1), (~banded).sum(dim=1), torch.where(mask, 0.0, scores.clamp(min=-1))


class Masked(nn.Module):
    def __init__(self, n, device=None, dtype=None):
        super().__init__()
        options = {"device": device, "dtype": dtype}
        self.register_buffer("bias", torch.full((n,), 0.5, **options))
        self.scale = nn.Parameter(torch.ones(n, device=device, dtype=dtype))

    def forward(self, x, mask: torch.Tensor | None = None):
        x = x.type_as(self.scale) * self.scale + self.bias.to(x)
        if mask is not None:
            x = x.masked_fill(~mask[:, None].expand_as(x), torch.finfo(x.dtype).min).max(dim=-1, keepdim=True)[0]
        return x


def run():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x, y = batch(2)
    given = Batch(x, y).to(device).to("cpu", torch.float64)
    kinds = [
        str(t.dtype).lower().split(".")[-1] for t in (given.x, given.y, given.x.half(), made(2, dtype=torch.int32))
    ]
    results = [given.name, *kinds, given.x.sum().item(), made(5, device, non_blocking=True).sum().item()]

    everything = moved({"x": x, "nested": [y, (fill(MLP(4, 8, 3)), "text", 3)]}, device)
    model = everything["nested"][1][0]
    results += [everything["nested"][1][1], model(everything["x"]).sum().item(), everything["nested"][0].sum().item()]

    weights, seen, rest = causal(5, device)
    results += [*weights.flatten().tolist(), *seen.tolist(), rest.sum().item()]
    net = Masked(4, device=device, dtype=torch.float32)
    out = net(x.double(), torch.tensor([True, False, True, True, False, True]))
    results += [
        *out.flatten()[[0, 2]].tolist(),
        str(out.dtype).lower().split(".")[-1],
        int(net.bias.device == x.device),
    ]

    torch.manual_seed(3)
    first = torch.rand(4)
    torch.manual_seed(3)
    second = torch.rand(4)
    generator = torch.Generator().manual_seed(5)
    drawn = torch.randperm(6, generator=generator), torch.randint(0, 9, (3,), generator=generator)
    return results + [int(torch.equal(first, second)), sorted(drawn[0].tolist()) == list(range(6)), len(drawn[1])]
