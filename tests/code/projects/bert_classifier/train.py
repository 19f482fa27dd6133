"""Fine-tune a BERT classifier."""

import argparse
import json
import os
import random

import numpy as np
import torch
from data import VOCAB, ReviewDataset, collate_fn, make_reviews
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, SequentialSampler

from model import BertForSequenceClassification


def set_seed(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed)


def get_linear_schedule_with_warmup(optimizer, num_warmup_steps, num_training_steps, last_epoch=-1):
    def lr_lambda(current_step):
        if current_step < num_warmup_steps:
            return float(current_step) / float(max(1, num_warmup_steps))
        return max(0.0, float(num_training_steps - current_step) / float(max(1, num_training_steps - num_warmup_steps)))

    return LambdaLR(optimizer, lr_lambda, last_epoch)


def evaluate(args, model, dataset):
    dataloader = DataLoader(dataset, sampler=SequentialSampler(dataset), batch_size=5, collate_fn=collate_fn)
    eval_loss, preds, labels = 0.0, None, None
    model.eval()
    for batch in dataloader:
        batch = {k: v.to(args.device) for k, v in batch.items()}
        with torch.no_grad():
            tmp_eval_loss, logits = model(**batch)
            eval_loss += tmp_eval_loss.mean().item()
        if preds is None:
            preds = logits.detach().cpu().numpy()
            labels = batch["labels"].detach().cpu().numpy()
        else:
            preds = np.append(preds, logits.detach().cpu().numpy(), axis=0)
            labels = np.append(labels, batch["labels"].detach().cpu().numpy(), axis=0)
    model.train()
    return {"eval_loss": eval_loss / len(dataloader), "acc": float((preds.argmax(axis=1) == labels).mean())}


def train(args, model, train_dataset, eval_dataset):
    loader = DataLoader(train_dataset, batch_size=args.batch_size, shuffle=False, collate_fn=collate_fn, drop_last=True)
    t_total = len(loader) // args.gradient_accumulation_steps * args.epochs
    no_decay = ["bias", "LayerNorm.weight", "norm.weight"]
    optimizer_grouped_parameters = [
        {
            "params": [p for n, p in model.named_parameters() if not any(nd in n for nd in no_decay)],
            "weight_decay": 0.01,
        },
        {"params": [p for n, p in model.named_parameters() if any(nd in n for nd in no_decay)], "weight_decay": 0.0},
    ]
    optimizer = AdamW(optimizer_grouped_parameters, lr=args.learning_rate, eps=1e-8)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, t_total)
    global_step, tr_loss, history = 0, 0.0, []
    model.zero_grad()
    for epoch in range(args.epochs):
        for step, batch in enumerate(loader):
            model.train()
            batch = {k: v.to(args.device) for k, v in batch.items()}
            outputs = model(**batch)
            loss = outputs[0]
            if args.gradient_accumulation_steps > 1:
                loss = loss / args.gradient_accumulation_steps
            loss.backward()
            tr_loss += loss.item()
            if (step + 1) % args.gradient_accumulation_steps == 0:
                torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_grad_norm)
                optimizer.step()
                scheduler.step()  # Update learning rate schedule
                model.zero_grad()
                global_step += 1
                history.append({"loss": tr_loss, "lr": scheduler.get_last_lr()[0]})
                tr_loss = 0.0
        history[-1].update(evaluate(args, model, eval_dataset))
    return global_step, history


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--output_dir", default="out", type=str)
    parser.add_argument("--init_from", default=None, type=str)
    parser.add_argument("--save_init", default=None, type=str)
    parser.add_argument("--batch_size", default=4, type=int)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=2)
    parser.add_argument("--learning_rate", default=2e-3, type=float)
    parser.add_argument("--max_grad_norm", default=1.0, type=float)
    parser.add_argument("--epochs", default=2, type=int)
    args = parser.parse_args()
    args.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    set_seed(42)

    config = dict(
        vocab_size=len(VOCAB), hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=16, type_vocab_size=2, layer_norm_eps=1e-12,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(config, num_labels=3)
    if args.save_init:
        torch.save(model.state_dict(), args.save_init)
    if args.init_from:
        model.load_state_dict(torch.load(args.init_from, map_location=args.device))
    model.to(args.device)
    train_dataset, eval_dataset = ReviewDataset(make_reviews(41, 0)), ReviewDataset(make_reviews(9, 1))
    global_step, history = train(args, model, train_dataset, eval_dataset)
    print(f" global_step = {global_step}, {history[-1]}")

    os.makedirs(args.output_dir, exist_ok=True)
    torch.save(model.state_dict(), os.path.join(args.output_dir, "pytorch_model.bin"))
    with open(os.path.join(args.output_dir, "losses.json"), "w") as f:
        json.dump(history, f)


if __name__ == "__main__":
    main()
