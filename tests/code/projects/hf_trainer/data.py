"""Sequences that a small language model can learn: each token follows from the two before it."""

import math

import numpy as np
import torch
from torch.utils.data import Dataset

PAD = 0


class Sequences(Dataset):
    def __init__(self, count, vocab_size, seed):
        rng = np.random.default_rng(seed)
        self.rows = []
        for _ in range(count):
            row = rng.integers(1, vocab_size, 2).tolist()
            for _ in range(int(rng.integers(3, 9))):
                row.append(1 + (row[-1] + 2 * row[-2]) % (vocab_size - 1))
            self.rows.append(row)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        row = self.rows[index]
        # "text" is no argument of the model: the trainer drops it
        return {"input_ids": row, "labels": row, "text": " ".join(map(str, row))}


def collate(samples):
    """Pad to the longest sequence of the batch, and on to 5 or 10."""
    width = 5 * math.ceil(max(len(s["input_ids"]) for s in samples) / 5)
    input_ids = torch.full((len(samples), width), PAD, dtype=torch.long)
    labels = torch.full((len(samples), width), -100, dtype=torch.long)
    mask = torch.zeros(len(samples), width, dtype=torch.long)
    for i, sample in enumerate(samples):
        n = len(sample["input_ids"])
        input_ids[i, :n] = torch.tensor(sample["input_ids"])
        labels[i, :n] = torch.tensor(sample["labels"])
        mask[i, :n] = 1
    return {"input_ids": input_ids, "attention_mask": mask, "labels": labels}
