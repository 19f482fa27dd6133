import torch
from functions import FakeQuantize, RoundSTE, grad_reverse, swiglu
from torch import nn


class QuantLinear(nn.Linear):
    """Weights fake-quantised with a learned step size, activations rounded to a grid."""

    def __init__(self, in_features, out_features, bits=4, bias=True):
        super().__init__(in_features, out_features, bias)
        self.q_max = 2 ** (bits - 1) - 1
        self.q_min = -(2 ** (bits - 1))
        self.step = nn.Parameter(self.weight.detach().abs().mean() * 2 / self.q_max**0.5 * torch.ones(1))

    def forward(self, x):
        weight = FakeQuantize.apply(self.weight, self.step, self.q_min, self.q_max)
        return nn.functional.linear(x, weight, self.bias)


class GatedMLP(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_up = nn.Linear(dim, 2 * hidden, bias=False)
        self.down = QuantLinear(hidden, dim)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(swiglu(gate, up))


class DomainAdversarialNet(nn.Module):
    def __init__(self, dim=10, hidden=14, classes=4, domains=2):
        super().__init__()
        self.features = nn.Sequential(QuantLinear(dim, dim, bits=6), GatedMLP(dim, hidden))
        self.label_head = nn.Linear(dim, classes)
        self.domain_head = nn.Sequential(nn.Linear(dim, dim), nn.LeakyReLU(0.2), nn.Linear(dim, domains))

    def forward(self, x, lambda_=0.5):
        h = self.features(RoundSTE.apply(x * 8) / 8)
        return self.label_head(h), self.domain_head(grad_reverse(h, lambda_))
