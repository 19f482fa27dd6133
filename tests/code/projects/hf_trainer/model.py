"""A causal language model of one block that returns a ModelOutput, as the models of transformers do."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F
from transformers.modeling_outputs import CausalLMOutput


class Block(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden)
        self.norm2 = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(nn.Linear(hidden, 2 * hidden), nn.GELU(), nn.Linear(2 * hidden, hidden))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(self.norm(x)).chunk(3, dim=-1)
        q = q.view(B, T, self.heads, -1).transpose(1, 2)
        k = k.view(B, T, self.heads, -1).transpose(1, 2)
        v = v.view(B, T, self.heads, -1).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
        return x + self.mlp(self.norm2(x))


class TinyLM(nn.Module):
    """`num_items_in_batch` comes from the trainer: the number of labels of all batches of an update."""

    def __init__(self, vocab_size=17, hidden=16, heads=2, length=16):
        super().__init__()
        self.config = SimpleNamespace(vocab_size=vocab_size, hidden_size=hidden)  # the trainer asks it for settings
        self.embed = nn.Embedding(vocab_size, hidden)
        self.position = nn.Embedding(length, hidden)
        self.block = Block(hidden, heads)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, attention_mask=None, labels=None, **kwargs):
        B, T = input_ids.shape
        x = self.embed(input_ids) + self.position(torch.arange(T, device=input_ids.device))
        causal = torch.ones(T, T, dtype=torch.bool, device=input_ids.device).tril()
        mask = causal[None, None]
        if attention_mask is not None:
            mask = mask & attention_mask[:, None, None, :].bool()
        logits = self.head(self.norm(self.block(x, mask)))
        loss = None
        if labels is not None:
            flat = logits[:, :-1].reshape(-1, logits.size(-1))
            target = labels[:, 1:].reshape(-1)
            count = kwargs.get("num_items_in_batch")
            if count is None:
                loss = F.cross_entropy(flat, target, ignore_index=-100)
            else:
                loss = F.cross_entropy(flat, target, ignore_index=-100, reduction="sum") / count
        return CausalLMOutput(loss=loss, logits=logits)
