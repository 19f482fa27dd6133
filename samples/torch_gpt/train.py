"""Trains the model of model.py on the text of dataset.py.

python train.py                              # config.yaml as it is
python train.py train.lr=1e-3 out_dir=out2   # with overrides
python train.py --resume out/ckpt_10.pt      # go on from a checkpoint
"""

import argparse
import json
import math
import os
import time

import torch
from torch.nn.utils import clip_grad_norm_

from config import load_config
from dataset import build_loaders
from model import GPT, GPTConfig


def parse_args():
    parser = argparse.ArgumentParser(description="Train a small GPT on the Python standard library.")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides, e.g. train.lr=3e-4")
    parser.add_argument("--config", default=os.path.join(os.path.dirname(os.path.abspath(__file__)), "config.yaml"))
    parser.add_argument("--resume", default=None, metavar="CKPT", help="continue from this checkpoint")
    parser.add_argument("--init-from", default=None, metavar="FILE", help="start from the weights in this file")
    parser.add_argument("--save-init", default=None, metavar="FILE", help="write the starting weights to this file")
    args = parser.parse_intermixed_args()
    try:
        return args, load_config(args.config, args.overrides)
    except (OSError, ValueError) as e:
        parser.error(str(e))


def get_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def set_seed(seed):
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def configure_optimizer(model, cfg):
    # matrices and embeddings decay, norms and biases do not
    params = [p for p in model.parameters() if p.requires_grad]
    decay = [p for p in params if p.dim() >= 2]
    no_decay = [p for p in params if p.dim() < 2]
    groups = [
        {"params": decay, "weight_decay": cfg["weight_decay"]},
        {"params": no_decay, "weight_decay": 0.0},
    ]
    n_decay, n_no_decay = sum(p.numel() for p in decay), sum(p.numel() for p in no_decay)
    print(f"optimizer: {n_decay:,} parameters with weight decay, {n_no_decay:,} without")
    return torch.optim.AdamW(groups, lr=cfg["lr"], betas=(cfg["beta1"], cfg["beta2"]), eps=cfg["eps"])


def get_lr(step, cfg):
    """Learning rate of a step (the first is 1): linear warmup, then cosine down to min_lr."""
    if step <= cfg["warmup_steps"]:
        return cfg["lr"] * step / cfg["warmup_steps"]
    progress = (step - cfg["warmup_steps"]) / max(1, cfg["max_steps"] - cfg["warmup_steps"])
    coeff = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return cfg["min_lr"] + coeff * (cfg["lr"] - cfg["min_lr"])


@torch.no_grad()
def evaluate(model, loader, n_batches, device):
    model.eval()
    losses = []
    for i, (x, y) in enumerate(loader):
        if i == n_batches:
            break
        _, loss = model(x.to(device), y.to(device))
        losses.append(loss.item())
    model.train()
    return sum(losses) / len(losses)


def save_checkpoint(path, model, optimizer, step, cfg):
    checkpoint = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "config": cfg,
    }
    # a run killed while saving must not leave half a file under the final name
    torch.save(checkpoint, path + ".tmp")
    os.replace(path + ".tmp", path)


def start_log(path, start_step):
    """Begins a new log. A resumed run keeps the lines up to its checkpoint and drops those it is going to repeat."""
    kept = []
    if start_step > 0 and os.path.exists(path):
        with open(path) as f:
            kept = [line for line in f if json.loads(line)["step"] <= start_step]
    with open(path, "w") as f:
        f.writelines(kept)


def append_log(path, record):
    with open(path, "a") as f:
        f.write(json.dumps(record) + "\n")


def main():
    args, cfg = parse_args()
    tcfg = cfg["train"]
    device = get_device()
    set_seed(cfg["seed"])
    os.makedirs(cfg["out_dir"], exist_ok=True)

    model = GPT(GPTConfig(**cfg["model"])).to(device)
    print(f"model: {model.num_params():,} parameters on {device}")
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from, map_location=device))
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    optimizer = configure_optimizer(model, tcfg)

    start_step = 0
    if args.resume:
        checkpoint = torch.load(args.resume, map_location=device)
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        start_step = checkpoint["step"]
        print(f"resumed from {args.resume} at step {start_step}")

    samples_per_step = cfg["data"]["batch_size"] * tcfg["grad_accum"]
    train_loader, val_loader = build_loaders(
        cfg["data"], start=start_step * samples_per_step, pin_memory=device.type == "cuda"
    )
    batches = iter(train_loader)

    log_path = os.path.join(cfg["out_dir"], "losses.jsonl")
    start_log(log_path, start_step)
    model.train()
    t0 = time.time()
    for step in range(start_step + 1, tcfg["max_steps"] + 1):
        lr = get_lr(step, tcfg)
        for group in optimizer.param_groups:
            group["lr"] = lr

        # forward and backward, several times before one update
        total_loss = 0.0
        optimizer.zero_grad(set_to_none=True)
        for _ in range(tcfg["grad_accum"]):
            x, y = next(batches)
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            _, loss = model(x, y)
            loss = loss / tcfg["grad_accum"]  # the gradients add up, we want their mean
            loss.backward()
            total_loss += loss.item()

        grad_norm = clip_grad_norm_(model.parameters(), tcfg["grad_clip"])
        optimizer.step()

        append_log(log_path, {"step": step, "loss": total_loss, "lr": lr, "grad_norm": grad_norm.item()})
        if step % tcfg["log_interval"] == 0:
            dt = (time.time() - t0) / (step - start_step)
            print(f"step {step:5d} | loss {total_loss:.4f} | lr {lr:.2e} | norm {grad_norm:.3f} | {dt * 1000:.0f} ms")

        if step % tcfg["eval_interval"] == 0 or step == tcfg["max_steps"]:
            val_loss = evaluate(model, val_loader, tcfg["eval_batches"], device)
            print(f"step {step:5d} | val loss {val_loss:.4f}")

        if step % tcfg["save_interval"] == 0 or step == tcfg["max_steps"]:
            save_checkpoint(os.path.join(cfg["out_dir"], f"ckpt_{step}.pt"), model, optimizer, step, cfg)


if __name__ == "__main__":
    main()
