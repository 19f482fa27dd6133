"""Networks and data that the programs share; weights come from a formula, so both frameworks start alike."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self, d_in, d_hidden, d_out):
        super().__init__()
        self.fc1 = nn.Linear(d_in, d_hidden)
        self.norm = nn.LayerNorm(d_hidden)
        self.fc2 = nn.Linear(d_hidden, d_out, bias=False)

    def forward(self, x):
        return self.fc2(F.gelu(self.norm(self.fc1(x))))


def fill(model, phase=0.0):
    """Weights that are the same everywhere and not symmetric."""
    with torch.no_grad():
        for i, p in enumerate(model.parameters()):
            values = torch.sin(torch.arange(p.numel(), dtype=torch.float32) * 0.7 + i + phase)
            p.copy_(0.3 * values.view(p.shape))
    return model


def batch(step, rows=6, columns=4, classes=3):
    x = torch.cos(torch.arange(rows * columns, dtype=torch.float32) * (0.3 + 0.1 * step)).view(rows, columns)
    y = (torch.arange(rows) + step) % classes
    return x, y


def weights(model):
    """Sum and sum of squares of each parameter: enough to see any difference."""
    found = []
    for _, p in sorted(model.named_parameters()):
        found.append(p.sum().item())
        found.append(p.pow(2).sum().item())
    return found
