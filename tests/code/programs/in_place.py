"""In-place methods, a moving average of the weights, buffers, a loss that is an expression."""

import copy

import torch
import torch.nn as nn
from nets import MLP, batch, fill, weights


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = MLP(4, 8, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("offset", torch.ones(3), persistent=False)

    def forward(self, x, targets=None):
        out = self.body(x) + self.offset
        self.seen.mul_(0.5).add_(out.detach().mean(dim=0))
        if targets is None:
            return out, None, {"norm": None}
        picked = torch.log_softmax(out, dim=-1).gather(1, targets.unsqueeze(1))
        return out, -picked.squeeze(1), {"norm": out.pow(2).mean()}


def update(average, model, rate):
    with torch.no_grad():
        for a, p in zip(average.parameters(), model.parameters(), strict=True):
            a.mul_(1 - rate).add_(p, alpha=rate)


def run():
    model = Scaled()
    fill(model)
    average = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    results = []
    for step in range(3):
        x, y = batch(step)
        optimizer.zero_grad()
        out, losses, extra = model(x, targets=y)
        (losses.mean() + 0.1 * extra["norm"]).backward()
        optimizer.step()
        update(average, model, 0.3)
        scratch = torch.zeros(3)
        scratch.add_(losses.sum())
        scratch[0] = 7.0
        results += [losses.mean().item(), scratch.sum().item(), out.size(0)]
    return results + weights(model) + weights(average) + model.seen.tolist() + sorted(model.state_dict())[-1:]
