"""Training steps of tests/code/projects/bert_classifier, one at each `next`."""

import numpy as np
import torch
from torch.optim import AdamW

from model import BertForSequenceClassification

SIZES = {
    "small": {"batch": 4, "length": 32, "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128},
    "large": {"batch": 8, "length": 128, "hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 1024},
}
REST = {
    "num_attention_heads": 4,
    "vocab_size": 2000,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}


def steps(size):
    config = {**REST, **SIZES[size]}
    batch, length = config.pop("batch"), config.pop("length")
    model = BertForSequenceClassification(config, 3)
    optimizer = AdamW(model.parameters(), lr=1e-4)
    rng = np.random.default_rng(0)
    model.train()
    while True:
        tokens = torch.from_numpy(rng.integers(0, 2000, (batch, length)))
        labels = torch.from_numpy(rng.integers(0, 3, (batch,)))
        optimizer.zero_grad()
        loss, _ = model(tokens, labels=labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        yield loss.item()
