import argparse
import json
import os

import numpy as np
import torch
import torch.nn.functional as F

from model import ModelArgs, Transformer


@torch.inference_mode()
def generate(model, prompts, max_gen_len):
    """Greedy continuation of prompts of different lengths, with the cache."""
    bsz = len(prompts)
    min_prompt_len = min(len(t) for t in prompts)
    max_prompt_len = max(len(t) for t in prompts)
    total_len = min(model.params.max_seq_len, max_gen_len + max_prompt_len)
    pad_id = -1
    tokens = torch.full((bsz, total_len), pad_id, dtype=torch.long)
    for k, t in enumerate(prompts):
        tokens[k, : len(t)] = torch.tensor(t, dtype=torch.long)
    prev_pos = 0
    eos_reached = torch.tensor([False] * bsz)
    input_text_mask = tokens != pad_id
    for cur_pos in range(min_prompt_len, total_len):
        logits = model(tokens[:, prev_pos:cur_pos], prev_pos)
        next_token = torch.argmax(logits[:, -1], dim=-1)
        next_token = next_token.reshape(-1)
        # only replace token if prompt has already been generated
        next_token = torch.where(input_text_mask[:, cur_pos], tokens[:, cur_pos], next_token)
        tokens[:, cur_pos] = next_token
        eos_reached |= (~input_text_mask[:, cur_pos]) & (next_token == 0)
        prev_pos = cur_pos
        if all(eos_reached):
            break
    return tokens.tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--init-from")
    parser.add_argument("--save-init")
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)

    torch.manual_seed(1)
    model = Transformer(ModelArgs())
    if args.save_init:
        torch.save({"model": model.state_dict()}, args.save_init)
    if args.init_from:
        checkpoint = torch.load(args.init_from, map_location="cpu")
        missing, unexpected = model.load_state_dict(checkpoint["model"], strict=False)
        assert not missing and not unexpected

    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    rng = np.random.default_rng(7)
    log = []
    model.train()
    for step in range(args.steps):
        tokens = torch.as_tensor(rng.integers(0, model.vocab_size, (4, 13)))
        tokens = tokens.sort(dim=-1).values
        logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, model.vocab_size), tokens[:, 1:].reshape(-1))
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        log.append(loss.item())
        print(f"{step=} loss={loss.item():.4f} norm={grad_norm:.3f} lr={scheduler.get_last_lr()[0]:.2e}")

    torch.save({"model": model.state_dict()}, os.path.join(args.out, "consolidated.00.pth"))
    model.eval()
    out = generate(model, [[1, 2, 3], [5, 6, 7, 8, 9]], max_gen_len=6)
    with open(os.path.join(args.out, "losses.json"), "w") as f:
        json.dump({"loss": log, "generated": out}, f)


if __name__ == "__main__":
    main()
