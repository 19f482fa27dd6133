import argparse
import json
import math
from pathlib import Path

import numpy as np
import torch
from torch import nn

from model import DomainAdversarialNet


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=Path, default=Path("out"))
    p.add_argument("--init-from", type=Path)
    p.add_argument("--save-init", type=Path)
    p.add_argument("--steps", type=int, default=10)
    return p.parse_args()


def main():
    args = parse_args()
    rng = np.random.default_rng(11)
    centers = rng.normal(size=(4, 10))
    model = DomainAdversarialNet()
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from, weights_only=True))
    label_criterion, domain_criterion = nn.CrossEntropyLoss(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    log = []
    for i in range(args.steps):
        p = i / args.steps
        lambda_ = 2.0 / (1.0 + math.exp(-10 * p)) - 1
        labels = rng.integers(0, 4, size=16)
        domains = rng.integers(0, 2, size=16)
        x = centers[labels] + 0.3 * rng.normal(size=(16, 10)) + domains[:, None]
        x = torch.from_numpy(x).float()

        label_logits, domain_logits = model(x, lambda_)
        err_label = label_criterion(label_logits, torch.from_numpy(labels))
        err_domain = domain_criterion(domain_logits, torch.from_numpy(domains))
        err = err_label + err_domain
        optimizer.zero_grad()
        err.backward()
        optimizer.step()
        log.append({"label": err_label.item(), "domain": err_domain.item()})
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "model.pt")
    (args.out / "losses.json").write_text(json.dumps(log))


if __name__ == "__main__":
    main()
