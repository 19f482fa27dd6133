import argparse
import json
import os

import numpy as np
import torch
import torch.nn as nn
from lora import LoRALinear, inject_lora, lora_state_dict, mark_only_lora_as_trainable


class Net(nn.Module):
    def __init__(self, d=12, classes=5):
        super().__init__()
        self.embed = nn.Linear(d, 2 * d)
        self.q_proj = LoRALinear(2 * d, 2 * d, r=3, lora_alpha=6)
        self.v_proj = LoRALinear(2 * d, 2 * d, r=3, lora_alpha=6, bias=False)
        self.out_proj = nn.Linear(2 * d, 2 * d)
        self.classifier = nn.Linear(2 * d, classes)

    def forward(self, x):
        h = torch.tanh(self.embed(x))
        gate = torch.sigmoid(self.q_proj(h))
        h = h + self.out_proj(gate * self.v_proj(h))
        return self.classifier(h)


def load_batches(n_batches, batch_size=8, d=12, classes=5):
    rng = np.random.RandomState(5)
    teacher = rng.randn(d, classes)
    for _ in range(n_batches):
        x = rng.randn(batch_size, d).astype(np.float32)
        yield torch.from_numpy(x), torch.from_numpy((x @ teacher).argmax(-1))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--out", default="out")
    ap.add_argument("--init-from")
    ap.add_argument("--save-init")
    ap.add_argument("--steps", type=int, default=10)
    args = ap.parse_args()

    torch.manual_seed(0)
    model = Net()
    replaced = inject_lora(model, r"out_proj$")
    assert replaced == ["out_proj"]
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from, map_location="cpu"), strict=True)
    mark_only_lora_as_trainable(model, bias="lora_only")
    for p in model.classifier.parameters():
        p.requires_grad_(True)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    total = sum(p.numel() for p in model.parameters())
    print(f"trainable params: {trainable} || all params: {total} || trainable%: {100 * trainable / total:.2f}")

    frozen = model.embed.weight.detach().clone()
    optimizer = torch.optim.AdamW(filter(lambda p: p.requires_grad, model.parameters()), lr=1e-2, weight_decay=0.0)
    criterion = nn.CrossEntropyLoss()
    losses = []
    model.train()
    for x, y in load_batches(args.steps):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert torch.equal(frozen, model.embed.weight)

    os.makedirs(args.out, exist_ok=True)
    torch.save(lora_state_dict(model), os.path.join(args.out, "lora.pt"))
    torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))
    # merging the weights must not change the output
    x, _ = next(load_batches(1))
    with torch.no_grad():
        before = model(x)
        model.eval()
        after = model(x)
    drift = (before - after).abs().max().item()
    assert drift < 1e-4, drift
    with open(os.path.join(args.out, "losses.json"), "w") as f:
        json.dump({"loss": losses, "trainable": trainable, "total": total, "logits": after[0].tolist()}, f)


if __name__ == "__main__":
    main()
