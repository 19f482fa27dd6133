import argparse
import json
import pathlib

import numpy as np
import torch
from moe import MoeLM
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

parser = argparse.ArgumentParser(description="Mixture of experts language model")
parser.add_argument("--out", type=pathlib.Path, default="out")
parser.add_argument("--init-from", type=pathlib.Path)
parser.add_argument("--save-init", type=pathlib.Path)
parser.add_argument("--steps", type=int, default=10)


def data(steps, vocab=43, batch=3, length=11):
    rng = np.random.default_rng(3)
    for _ in range(steps):
        ids = rng.integers(1, vocab, size=(batch, length))
        ids[:, 1::2] = (ids[:, ::2][:, : ids[:, 1::2].shape[1]] * 2) % vocab
        labels = ids.copy()
        ids[0, -2:], labels[0, -2:] = 0, -100  # padding
        yield {"input_ids": torch.LongTensor(ids), "labels": torch.LongTensor(labels)}


def run(args):
    args.out.mkdir(exist_ok=True, parents=True)
    torch.manual_seed(0)
    model = MoeLM()
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from))
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scheduler = OneCycleLR(optimizer, max_lr=5e-3, total_steps=args.steps)
    model.train()
    history = []
    for batch in data(args.steps):
        outputs = model(**batch)
        loss = outputs["loss"]
        loss.backward()
        optimizer.step()
        scheduler.step()
        model.zero_grad()
        history.append((loss.item(), outputs["aux_loss"].item()))
    torch.save(model.state_dict(), args.out / "moe.pt")
    (args.out / "losses.json").write_text(json.dumps(history))


if __name__ == "__main__":
    run(parser.parse_args())
