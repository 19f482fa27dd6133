"""Tensors with several holders: `x += y`, rows, elements written through other names, gradients through all of it."""

import torch
import torch as t
from nets import MLP, batch, fill, weights
from torch import nn as layers
from torch.nn.functional import softmax as normalised


class Doubles(layers.Module):
    """Changes what the caller gave it."""

    def forward(self, x):
        x *= 2
        return x + 1


class Residual(layers.Module):
    def __init__(self):
        super().__init__()
        self.fc = layers.Linear(4, 4)
        self.twice = Doubles()

    def forward(self, x):
        y = self.fc(x)
        z = self.twice(y)
        h = z
        h += y  # y is twice the output of fc by now, z changes with h
        return normalised(z + h, dim=-1)


def descend(model, steps):
    """Gradient descent by hand: the parameters themselves are changed."""
    history = []
    for step in range(steps):
        x, y = batch(step)
        loss = t.nn.functional.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.1 * p.grad
        history.append(loss.item())
    return history


def written(x: torch.Tensor):
    """Rows and slices of one tensor; what is picked by a mask is a copy."""
    y = x * 1
    row = y[0]
    row += x[1]
    for i in range(2):
        r = y[i]
        r *= 2
    y[1].mul_(0.5)
    y[0].add_(y[1])
    left = y[:, :2]
    left -= 1
    picked = y[y > -2]
    picked[0] = 100
    held = [y]
    y += 1
    return held[0], picked


def scaled(values):
    for value in values:
        value /= 2


def run():
    model = fill(MLP(4, 8, 3))
    results = descend(model, 3) + weights(model)
    x, _ = batch(1)
    net = fill(Residual())
    out = net(x)
    out.pow(2).sum().backward()
    results += out.flatten()[:6].tolist() + [p.grad.abs().sum().item() for p in net.parameters()]
    net.fc.weight.grad = None
    y, picked = written(net.fc(x))
    y.pow(2).sum().backward()
    results += y.flatten().tolist() + picked.tolist() + net.fc.weight.grad.flatten().tolist()
    first, second = torch.ones(2), torch.ones(3)
    scaled([first, second])
    half = torch.ones(2, dtype=torch.float16)
    kept = half
    half += torch.tensor([0.5, 0.25])
    return results + first.tolist() + second.tolist() + kept.tolist() + [str(half.dtype).lower().split(".")[-1]]
