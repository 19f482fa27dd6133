import argparse
import json
import os
from timeit import default_timer as timer

import numpy as np
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

from model import BOS_IDX, EOS_IDX, PAD_IDX, Seq2SeqTransformer, create_mask, generate_square_subsequent_mask

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
VOCAB_SIZE = 29
BATCH_SIZE = 6


class NoamOpt:
    """Optim wrapper that implements rate."""

    def __init__(self, model_size, factor, warmup, optimizer):
        self.optimizer = optimizer
        self._step = 0
        self.warmup = warmup
        self.factor = factor
        self.model_size = model_size
        self._rate = 0

    def step(self):
        "Update parameters and rate"
        self._step += 1
        rate = self.rate()
        for p in self.optimizer.param_groups:
            p["lr"] = rate
        self._rate = rate
        self.optimizer.step()

    def rate(self, step=None):
        if step is None:
            step = self._step
        return self.factor * (self.model_size ** (-0.5) * min(step ** (-0.5), step * self.warmup ** (-1.5)))


class ReverseTask(torch.utils.data.IterableDataset):
    """The target is the source backwards."""

    def __init__(self, n, seed):
        self.n, self.seed = n, seed

    def __iter__(self):
        rng = np.random.RandomState(self.seed)
        for _ in range(self.n):
            tokens = rng.randint(3, VOCAB_SIZE, rng.randint(3, 8)).tolist()
            yield tokens, tokens[::-1]


def tensor_transform(token_ids):
    return torch.cat((torch.tensor([BOS_IDX]), torch.tensor(token_ids), torch.tensor([EOS_IDX])))


def collate_fn(batch):
    src_batch, tgt_batch = [], []
    for src_sample, tgt_sample in batch:
        src_batch.append(tensor_transform(src_sample))
        tgt_batch.append(tensor_transform(tgt_sample))
    src_batch = pad_sequence(src_batch, padding_value=PAD_IDX)
    tgt_batch = pad_sequence(tgt_batch, padding_value=PAD_IDX)
    return src_batch, tgt_batch


def train_epoch(model, optimizer, loss_fn):
    model.train()
    losses = []
    for src, tgt in DataLoader(ReverseTask(60, 0), batch_size=BATCH_SIZE, collate_fn=collate_fn):
        src = src.to(DEVICE)
        tgt = tgt.to(DEVICE)
        tgt_input = tgt[:-1, :]
        src_mask, tgt_mask, src_padding_mask, tgt_padding_mask = create_mask(src, tgt_input)
        logits = model(src, tgt_input, src_mask, tgt_mask, src_padding_mask, tgt_padding_mask, src_padding_mask)

        optimizer.optimizer.zero_grad()
        tgt_out = tgt[1:, :]
        loss = loss_fn(logits.reshape(-1, logits.shape[-1]), tgt_out.reshape(-1))
        loss.backward()

        optimizer.step()
        losses.append(loss.item())
    return losses


def greedy_decode(model, src, src_mask, max_len, start_symbol):
    src = src.to(DEVICE)
    src_mask = src_mask.to(DEVICE)
    memory = model.encode(src, src_mask)
    ys = torch.ones(1, 1).fill_(start_symbol).type(torch.long).to(DEVICE)
    for i in range(max_len - 1):
        memory = memory.to(DEVICE)
        tgt_mask = (generate_square_subsequent_mask(ys.size(0)).type(torch.bool)).to(DEVICE)
        out = model.decode(ys, memory, ~tgt_mask if tgt_mask[0, 0] else tgt_mask)
        out = out.transpose(0, 1)
        prob = model.generator(out[:, -1])
        _, next_word = torch.max(prob, dim=1)
        next_word = next_word.item()
        ys = torch.cat([ys, torch.ones(1, 1).type_as(src.data).fill_(next_word)], dim=0)
        if next_word == EOS_IDX:
            break
    return ys


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="out")
    parser.add_argument("--init-from")
    parser.add_argument("--save-init")
    args = parser.parse_args()
    torch.manual_seed(0)

    transformer = Seq2SeqTransformer(2, 2, 16, 2, VOCAB_SIZE, VOCAB_SIZE, 24, dropout=0.0)
    for p in transformer.parameters():
        if p.dim() > 1:
            nn.init.xavier_uniform_(p)
    if args.save_init:
        torch.save(transformer.state_dict(), args.save_init)
    if args.init_from:
        transformer.load_state_dict(torch.load(args.init_from, map_location=DEVICE))
    transformer = transformer.to(DEVICE)

    loss_fn = torch.nn.CrossEntropyLoss(ignore_index=PAD_IDX, label_smoothing=0.1)
    optimizer = NoamOpt(16, 0.4, 20, torch.optim.Adam(transformer.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9))
    start_time = timer()
    train_losses = train_epoch(transformer, optimizer, loss_fn)
    print(f"train loss: {train_losses[-1]:.3f}, time = {(timer() - start_time):.3f}s")

    os.makedirs(args.out, exist_ok=True)
    torch.save(transformer.state_dict(), os.path.join(args.out, "transformer.pt"))
    transformer.eval()
    src = tensor_transform([5, 9, 4, 7]).view(-1, 1)
    src_mask = torch.zeros(6, 6).type(torch.bool)
    tgt_tokens = greedy_decode(transformer, src, src_mask, max_len=9, start_symbol=BOS_IDX).flatten()
    with open(os.path.join(args.out, "losses.json"), "w") as f:
        json.dump({"loss": train_losses, "decoded": tgt_tokens.tolist()}, f)
