"""Accumulation, clipping with its norm, groups, learning rate by step, evaluation."""

import torch
import torch.nn.functional as F
from nets import MLP, batch, fill, weights


def lr_at(step):
    return 0.05 / (1 + step)


@torch.no_grad()
def evaluate(model):
    model.eval()
    total = 0.0
    for step in range(2):
        x, y = batch(step + 10)
        total += F.cross_entropy(model(x), y).item()
    model.train()
    return total / 2


def run():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = fill(MLP(4, 8, 3)).to(device)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=0.1, betas=(0.9, 0.95)
    )
    results = []
    for step in range(4):
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step)
        optimizer.zero_grad(set_to_none=True)
        loss_sum = 0.0
        for micro in range(3):
            x, y = batch(step * 3 + micro)
            x, y = x.to(device), y.to(device)
            logits = model(x)
            loss = F.cross_entropy(logits, y) / 3
            loss.backward()
            loss_sum += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        results += [loss_sum, norm.item(), logits.max().item(), evaluate(model)]
    return results + weights(model)
