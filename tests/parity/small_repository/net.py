import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Norm(nn.Module):
    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class Mixer(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = Norm(dim)
        self.mix = nn.Parameter(torch.randn(dim, dim))

    def forward(self, x):
        return torch.matmul(self.norm(x), self.mix)


class Stack(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = nn.ModuleList([Mixer(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 5)

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x):
        gate = torch.sigmoid(self.inner(x))
        return x * gate


class Table(nn.Module):
    def __init__(self, length=9):
        super().__init__()
        angles = torch.arange(length).float()[:, None] / 100.0 ** (torch.arange(6).float() / 6)
        self.register_buffer("table", torch.sin(angles))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 4)

    def forward(self, x, labels):
        logits = self.head(x)
        loss = F.cross_entropy(logits, labels)
        return {"logits": logits, "loss": loss}


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.score = nn.Linear(6, 3)

    def forward(self, x, keep):
        scores = self.score(x).masked_fill(~keep, -math.inf)
        return scores, torch.softmax(scores, dim=-1)


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-6)


def clip(model):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
