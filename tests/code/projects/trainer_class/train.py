import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.optim as optim
from torch.utils.data import DataLoader, TensorDataset
from trainer import EarlyStopping, Trainer

from model import SeriesClassifier


def make_data(n, seed, n_features=5, length=14, n_classes=3):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    t = np.linspace(0, 1, length)
    phase = rng.uniform(0, 1, (n, 1, n_features))
    x = np.sin(2 * np.pi * ((y[:, None, None] + 1) * t[None, :, None] + phase)) + 0.1 * rng.normal(
        size=(n, length, n_features)
    )
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(y, dtype=torch.long))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--init-from", type=Path)
    parser.add_argument("--save-init", type=Path)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--resume", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = SeriesClassifier(n_features=5, n_classes=3)
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from, map_location="cpu", weights_only=True))
    print(f"{sum(p.numel() for p in model.parameters() if p.requires_grad):,} parameters")

    train_loader = DataLoader(make_data(24, 1), batch_size=12, shuffle=False)
    val_loader = DataLoader(make_data(10, 2), batch_size=8)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    scheduler = optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, scheduler, device, max_grad_norm=1.0)
    if args.resume:
        trainer.load(args.resume)
    history = trainer.fit(train_loader, val_loader, args.epochs, EarlyStopping(patience=5))
    trainer.save(args.out / "checkpoint.pt")
    (args.out / "losses.json").write_text(json.dumps(history))


if __name__ == "__main__":
    main()
