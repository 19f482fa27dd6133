"""Train for a few steps without the cache, then generate greedily with it."""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from generate import generate
from model import ModelArgs, Transformer


def batches(vocab_size, batch_size, length, seed=0):
    rng = np.random.RandomState(seed)
    while True:
        start = rng.randint(0, vocab_size, (batch_size, 1))
        stride = rng.randint(1, 4, (batch_size, 1))
        tokens = torch.from_numpy((start + stride * np.arange(length + 1)) % vocab_size)
        yield tokens[:, :-1], tokens[:, 1:]


def main(args):
    config = ModelArgs()
    model = Transformer(config)
    if args.init_from is not None:
        checkpoint = torch.load(str(args.init_from), mmap=True, weights_only=True)
        model.load_state_dict(checkpoint, assign=True)
    if args.save_init is not None:
        torch.save(model.state_dict(), args.save_init)
    model.setup_caches(args.batch_size, 16, use_cache=False)

    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    losses = []
    data = batches(config.vocab_size, args.batch_size, 16)
    for step in range(args.steps):
        inputs, targets = next(data)
        logits = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    args.out.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.out / "model.pth")
    model.eval()
    tokens = generate(model, torch.tensor([3, 5, 7, 9]), 10, temperature=0.0, top_k=5)
    print(tokens.tolist())
    (args.out / "losses.json").write_text(json.dumps({"loss": losses, "generated": tokens.tolist()}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--init-from", type=Path, default=None)
    parser.add_argument("--save-init", type=Path, default=None)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--lr", type=float, default=3e-3)
    main(parser.parse_args())
