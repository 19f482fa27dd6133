"""Hooks, compiled functions, recomputed blocks, gradients switched on and off, precision, shared and frozen weights."""

import contextlib
from functools import partial, wraps

import torch
import torch.nn as nn
from nets import MLP, batch, fill, weights
from torch.utils.checkpoint import checkpoint


def counted(function):
    """A decorator of the program's own."""

    @wraps(function)
    def inner(*args, **kwargs):
        inner.calls += 1
        return function(*args, **kwargs)

    inner.calls = 0
    return inner


@counted
@torch.no_grad()
def mean_of(model, x):
    return model(x).mean().item()


@torch.compile(dynamic=True)
def squared(x):
    return x * x


class Tower(nn.Module):
    """Blocks that are recomputed in training; the first weight is also the last."""

    def __init__(self, depth):
        super().__init__()
        self.blocks = nn.ModuleList([MLP(4, 6, 4) for _ in range(depth)])
        self.out = nn.Linear(4, 6)
        self.out.weight = self.blocks[0].fc1.weight
        self.act = {"relu": torch.relu, "tanh": partial(nn.functional.leaky_relu, negative_slope=0.2)}["tanh"]

    def forward(self, x):
        for block in self.blocks:
            x = x + (checkpoint(block, x, use_reentrant=False) if self.training else block(x))
        return self.act(self.out(x))


def hooked(model, x):
    seen = []

    def note(module, inputs, output):
        seen.append(round(inputs[0].abs().sum().item(), 4))
        return output * 2

    handles = [block.register_forward_hook(note) for block in model.blocks]
    twice = model(x)
    for handle in handles:
        handle.remove()
    return seen, twice, model(x)


def run():
    model, (x, y) = fill(Tower(2)), batch(3)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" not in name)
    results = [len(list(model.parameters())), sum(p.requires_grad for p in model.parameters()), mean_of(model, x)]

    amp = torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)
    with amp, contextlib.nullcontext():
        loss = nn.functional.cross_entropy(squared(model(x)), y)
    loss.backward()
    results += [loss.item(), mean_of.calls]
    results += [0.0 if p.grad is None else p.grad.pow(2).sum().item() for p in model.parameters()]

    with torch.set_grad_enabled(False):
        frozen = model(x)
    with torch.inference_mode():
        seen, twice, once = hooked(model.eval(), x)
    results += [frozen.sum().item(), *seen, twice.sum().item(), once.sum().item()]

    with torch.no_grad():
        total = model.blocks[0].fc1.weight.norm() + model.out.weight.norm()
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            parameter.data.clamp_(-0.2, 0.2)
    return results + [total.item(), int(model.out.weight is model.blocks[0].fc1.weight)] + weights(model)
