"""The run that `run.py` compares with, in PyTorch: the same checkpoint, batches, schedule and optimizer settings.

    python tests/curves/torch_run.py CONFIG.yaml OUT.jsonl

Written as a PyTorch user writes it: transformers' model, torch.optim.AdamW, clip_grad_norm_, one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM

from ms_models.data.loader import TrainingLoader
from ms_models.train.config import load
from ms_models.train.schedule import learning_rate


def main(config_path: Path, out: Path) -> None:
    """Trains, and writes loss and gradient norm of each step."""
    config = load(config_path)
    assert config.model.path is not None
    model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32, attn_implementation="eager")
    model.train()
    named = [parameter for parameter in model.parameters() if parameter.requires_grad]
    settings = config.optimizer
    groups = [
        {"params": [p for p in named if p.dim() >= 2], "weight_decay": settings.weight_decay},
        {"params": [p for p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, eps=settings.eps)
    loader = TrainingLoader(
        config.data_directory,
        seed=config.train.seed,
        micro_batch_size=config.train.micro_batch_size,
        accumulation=config.train.accumulation,
    )
    with out.open("w", encoding="utf-8") as file:
        for step in range(1, config.train.steps + 1):
            lr = learning_rate(step, config.train.steps, settings, config.schedule)
            for group in optimizer.param_groups:
                group["lr"] = lr
            batches = [{name: torch.from_numpy(value).long() for name, value in b.items()} for b in loader.next_step()]
            tokens = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
            optimizer.zero_grad()
            total = 0.0
            for batch in batches:
                logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
                loss = cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), reduction="sum")
                (loss / tokens).backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            file.write(json.dumps({"step": step, "loss": total / tokens, "grad_norm": norm.item(), "lr": lr}) + "\n")
            file.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
