"""
Trains a small GPT, on one process:
$ python train.py --out-dir out
or with DDP:
$ torchrun --standalone --nproc_per_node=2 train.py --out-dir out
"""

import argparse
import json
import math
import os
from contextlib import nullcontext

import numpy as np
import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP

from model import GPT, GPTConfig

parser = argparse.ArgumentParser()
parser.add_argument("--out-dir", default="out")
parser.add_argument("--init-from", default="")
parser.add_argument("--save-init", default="")
parser.add_argument("--max-iters", type=int, default=10)
parser.add_argument("--batch-size", type=int, default=4)
parser.add_argument("--gradient-accumulation-steps", type=int, default=4)
parser.add_argument("--grad-clip", type=float, default=1.0)
parser.add_argument("--learning-rate", type=float, default=1e-3)
parser.add_argument("--dtype", default="float32")
args = parser.parse_args()

warmup_iters, min_lr = 3, 1e-4
gradient_accumulation_steps = args.gradient_accumulation_steps
device = "cuda" if torch.cuda.is_available() else "cpu"
device_type = "cuda" if "cuda" in device else "cpu"
backend = "nccl" if device_type == "cuda" else "gloo"

ddp = int(os.environ.get("RANK", -1)) != -1  # is this a ddp run?
if ddp:
    init_process_group(backend=backend)
    ddp_rank = int(os.environ["RANK"])
    ddp_local_rank = int(os.environ["LOCAL_RANK"])
    ddp_world_size = int(os.environ["WORLD_SIZE"])
    if device_type == "cuda":
        device = f"cuda:{ddp_local_rank}"
        torch.cuda.set_device(device)
    master_process = ddp_rank == 0
    assert gradient_accumulation_steps % ddp_world_size == 0
    gradient_accumulation_steps //= ddp_world_size
else:
    master_process = True
    ddp_rank, ddp_world_size = 0, 1

if master_process:
    os.makedirs(args.out_dir, exist_ok=True)
torch.manual_seed(1337 + ddp_rank)
torch.backends.cuda.matmul.allow_tf32 = True
torch.backends.cudnn.allow_tf32 = True
ptdtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[args.dtype]
ctx = nullcontext() if device_type == "cpu" else torch.amp.autocast(device_type=device_type, dtype=ptdtype)

# a deterministic "corpus"
config = GPTConfig()
data = (np.cumsum(np.random.RandomState(0).randint(0, 5, 4096)) % config.vocab_size).astype(np.uint16)
offsets = np.random.RandomState(1)


def get_batch():
    ix = offsets.randint(0, len(data) - config.block_size - 1, args.batch_size)
    x = torch.stack([torch.from_numpy((data[i : i + config.block_size]).astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy((data[i + 1 : i + 1 + config.block_size]).astype(np.int64)) for i in ix])
    if device_type == "cuda":
        x, y = x.pin_memory().to(device, non_blocking=True), y.pin_memory().to(device, non_blocking=True)
    else:
        x, y = x.to(device), y.to(device)
    return x, y


def get_lr(it):
    if it < warmup_iters:
        return args.learning_rate * (it + 1) / warmup_iters
    ratio = min(1.0, (it - warmup_iters) / max(1, args.max_iters - warmup_iters))
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (args.learning_rate - min_lr)


model = GPT(config)
if args.init_from:
    model.load_state_dict(torch.load(args.init_from, map_location="cpu"))
if args.save_init:
    torch.save(model.state_dict(), args.save_init)
model.to(device)

scaler = torch.amp.GradScaler(device_type, enabled=(args.dtype == "float16"))
optimizer = model.configure_optimizers(0.1, args.learning_rate, (0.9, 0.95), device_type)
if ddp:
    model = DDP(model, device_ids=[ddp_local_rank] if device_type == "cuda" else None)
raw_model = model.module if ddp else model

losses = []
X, Y = get_batch()
for iter_num in range(args.max_iters):
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    for micro_step in range(gradient_accumulation_steps):
        if ddp:
            # only sync gradients at the last micro step
            model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        # prefetch the next batch while the model is busy
        X, Y = get_batch()
        scaler.scale(loss).backward()
    if args.grad_clip != 0.0:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    lossf = loss.item() * gradient_accumulation_steps
    losses.append(lossf)
    if master_process:
        print(f"iter {iter_num}: loss {lossf:.4f}, lr {lr:.2e}")

if master_process:
    checkpoint = {
        "model": raw_model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "iter_num": args.max_iters,
        "config": vars(args),
    }
    torch.save(checkpoint, os.path.join(args.out_dir, "ckpt.pt"))
    with open(os.path.join(args.out_dir, "losses.json"), "w") as f:
        json.dump(losses, f)
if ddp:
    destroy_process_group()
