"""Fine-tune Tiny on a toy language, save it, and continue some prompts."""

import argparse
import json
import os

import torch
from tiny.configuration_tiny import TinyConfig
from tiny.modeling_tiny import TinyForCausalLM
from torch.utils.data import DataLoader, Dataset
from transformers import GenerationConfig


class Counting(Dataset):
    """Rows that count upwards in steps of one to three, padded to one length."""

    def __init__(self, rows, length, vocab_size, pad_token_id):
        self.rows, self.length, self.vocab_size, self.pad = rows, length, vocab_size, pad_token_id

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        used = self.length - index % 4
        start, step = 3 + 7 * index % 11, 1 + index % 3
        ids = [3 + (start + step * i) % (self.vocab_size - 3) for i in range(used)]
        ids += [self.pad] * (self.length - used)
        return torch.tensor(ids, dtype=torch.long)


def collate(rows, pad_token_id=0):
    input_ids = torch.stack(rows)
    attention_mask = (input_ids != pad_token_id).long()
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def evaluate(model, loader, device):
    model.eval()
    total, count = 0.0, 0
    with torch.no_grad():
        for batch in loader:
            batch = {k: v.to(device) for k, v in batch.items()}
            outputs = model(**batch)
            total += outputs.loss.item()
            count += 1
    model.train()
    return total / count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--save-init", default=None)
    parser.add_argument("--init-from", default=None)
    parser.add_argument("--steps", type=int, default=12)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)

    if args.init_from:
        model = TinyForCausalLM.from_pretrained(args.init_from)
    else:
        config = TinyConfig(attn_implementation="eager")
        model = TinyForCausalLM(config)
    if args.save_init:
        model.save_pretrained(args.save_init, max_shard_size="12KB")
    model = model.to(device)
    model.train()
    model.gradient_checkpointing_enable()
    model.config.use_cache = False

    train_set = Counting(96, 14, model.config.vocab_size, model.config.pad_token_id)
    loader = DataLoader(train_set, batch_size=8, shuffle=False, collate_fn=collate)
    no_decay = ["bias", "norm.weight", "layernorm.weight"]
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": 0.1,
        },
        {
            "params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)],
            "weight_decay": 0.0,
        },
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))

    losses, norms = [], []
    for step, batch in enumerate(loader):
        if step >= args.steps:
            break
        batch = {k: v.to(device) for k, v in batch.items()}
        outputs = model(**batch)
        loss = outputs.loss
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        norms.append(norm.item())
    eval_loss = evaluate(model, loader, device)

    os.makedirs(args.out, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.out, "model.pt"))
    model.gradient_checkpointing_disable()
    model.config.use_cache = True
    model.save_pretrained(os.path.join(args.out, "model"), max_shard_size="12KB")

    model.eval()
    prompts = torch.tensor([[0, 0, 5, 6, 7], [4, 6, 8, 10, 12]], device=device)
    mask = (prompts != 0).long()
    options = GenerationConfig(max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=2)
    greedy = model.generate(prompts, attention_mask=mask, generation_config=options)
    slow = model.generate(input_ids=prompts, attention_mask=mask, generation_config=options, use_cache=False)
    beams = model.generate(prompts, attention_mask=mask, max_new_tokens=8, num_beams=3)
    penalised = model.generate(
        prompts, attention_mask=mask, max_new_tokens=9, min_new_tokens=4, repetition_penalty=1.3, no_repeat_ngram_size=2
    )
    with open(os.path.join(args.out, "losses.json"), "w") as f:
        json.dump(
            {
                "loss": losses,
                "norm": norms,
                "eval": eval_loss,
                "greedy": greedy.tolist(),
                "slow": slow.tolist(),
                "penalised": penalised.tolist(),
                "beams": beams.tolist(),
            },
            f,
        )


if __name__ == "__main__":
    main()
