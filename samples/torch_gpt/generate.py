"""Generates text from a checkpoint of train.py.

python generate.py out/ckpt_20.pt --prompt "def main(" --temperature 0.8 --top-k 50
"""

import argparse

import torch
import torch.nn.functional as F

from dataset import EOT, decode, encode
from model import GPT, GPTConfig, KVCache


def load_model(path, device):
    checkpoint = torch.load(path, map_location=device)
    model = GPT(GPTConfig(**checkpoint["config"]["model"]))
    model.load_state_dict(checkpoint["model"])
    return model.to(device).eval()


def sample(logits, temperature, top_k):
    """logits: (B, vocab). Returns the next token of each row, (B, 1). Temperature 0 is greedy."""
    if temperature == 0:
        return torch.argmax(logits, dim=-1, keepdim=True)

    logits = logits / temperature
    if top_k is not None:
        kth = torch.topk(logits, min(top_k, logits.size(-1))).values[:, [-1]]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    probs = F.softmax(logits, dim=-1)
    return torch.multinomial(probs, num_samples=1)


@torch.inference_mode()
def generate(model, idx, max_new_tokens, temperature=1.0, top_k=None, use_cache=True):
    """Appends max_new_tokens to idx, (B, T). Stops early if every row has reached the end of its text."""
    cache = KVCache(model.config.n_layer) if use_cache else None
    done = torch.zeros(idx.size(0), 1, dtype=torch.bool, device=idx.device)

    for _ in range(max_new_tokens):
        # with a cache the model has seen everything but the newest token
        new = idx[:, -1:] if use_cache and len(cache) > 0 else idx
        logits, _ = model(new, cache=cache)
        next_id = sample(logits[:, -1, :], temperature, top_k)

        next_id = torch.where(done, torch.full_like(next_id, EOT), next_id)
        done = done | (next_id == EOT)
        idx = torch.cat((idx, next_id), dim=1)
        if done.all():
            break
    return idx


def main():
    parser = argparse.ArgumentParser(description="Generate text from a checkpoint.")
    parser.add_argument("checkpoint")
    parser.add_argument("--prompt", default="import ")
    parser.add_argument("--max-new-tokens", type=int, default=100)
    parser.add_argument("--temperature", type=float, default=0.8, help="0 means greedy")
    parser.add_argument("--top-k", type=int, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-cache", action="store_true", help="recompute the whole sequence for every token")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = load_model(args.checkpoint, device)

    idx = torch.tensor([encode(args.prompt)], dtype=torch.long, device=device)
    out = generate(
        model,
        idx,
        args.max_new_tokens,
        temperature=args.temperature,
        top_k=args.top_k,
        use_cache=not args.no_cache,
    )
    print(decode(out[0].tolist()))


if __name__ == "__main__":
    main()
