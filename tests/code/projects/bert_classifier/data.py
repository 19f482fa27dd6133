from typing import Dict, List

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

WORDS = [
    "good",
    "bad",
    "fine",
    "awful",
    "great",
    "poor",
    "nice",
    "dull",
    "very",
    "not",
    "the",
    "film",
    "plot",
    "was",
    "a",
]
VOCAB = {word: i for i, word in enumerate(["[PAD]", "[CLS]", "[SEP]", *WORDS])}


def make_reviews(n, seed):
    rng = np.random.RandomState(seed)
    reviews = []
    for _ in range(n):
        words = [WORDS[i] for i in rng.randint(0, len(WORDS), rng.randint(3, 10))]
        score = sum((w in WORDS[0:8:2]) - (w in WORDS[1:8:2]) for w in words)
        reviews.append((" ".join(words), int(np.sign(score)) + 1))
    return reviews


class ReviewDataset(Dataset):
    def __init__(self, reviews):
        self.reviews = reviews

    def __len__(self):
        return len(self.reviews)

    def __getitem__(self, idx):
        text, label = self.reviews[idx]
        ids = [VOCAB["[CLS]"]] + [VOCAB[w] for w in text.split()] + [VOCAB["[SEP]"]]
        return {"input_ids": torch.tensor(ids, dtype=torch.long), "label": label}


def collate_fn(features: List[Dict]) -> Dict[str, torch.Tensor]:
    input_ids = pad_sequence([f["input_ids"] for f in features], batch_first=True, padding_value=VOCAB["[PAD]"])
    return {
        "input_ids": input_ids,
        "attention_mask": (input_ids != VOCAB["[PAD]"]).long(),
        "labels": torch.tensor([f["label"] for f in features]),
    }
