import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class Rotary(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.dim = dim
        self.base = base

    def forward(self, x):
        places = torch.arange(x.size(-2)).float()
        angles = torch.outer(places, 1.0 / self.base ** (torch.arange(0, self.dim, 2).float() / self.dim))
        cos, sin = torch.cat((angles, angles), dim=-1).cos(), torch.cat((angles, angles), dim=-1).sin()
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, dim, heads, kv_heads, window):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim, self.window = heads, kv_heads, dim // heads, window
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, kv_heads * self.head_dim)
        self.v = nn.Linear(dim, kv_heads * self.head_dim)
        self.o = nn.Linear(dim, dim, bias=False)
        self.rotary = Rotary(self.head_dim)

    def forward(self, x, keep):
        rows, length, dim = x.shape
        q = self.q(x).view(rows, length, self.heads, self.head_dim).transpose(1, 2)
        k = self.k(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        v = self.v(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        q, k = self.rotary(q), self.rotary(k)
        k = k.repeat_interleave(self.heads // self.kv_heads, dim=1)
        v = v.repeat_interleave(self.heads // self.kv_heads, dim=1)
        places = torch.arange(length)
        back = places[:, None] - places[None, :]
        visible = (back >= 0) & (back < self.window)
        visible = visible & (keep[:, None, None, :] | (back == 0))
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(self.head_dim)
        scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        y = torch.matmul(torch.softmax(scores, dim=-1), v)
        return self.o(y.transpose(1, 2).reshape(rows, length, dim))


class Feed(nn.Module):
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.dropout = dropout
        self.up = nn.Linear(dim, 3 * dim)
        self.down = nn.Linear(3 * dim, dim)

    def forward(self, x):
        x = F.gelu(self.up(x), approximate="tanh")
        x = F.dropout(x, p=self.dropout, training=self.training)
        return self.down(x)


class Experts(nn.Module):
    def __init__(self, dim, experts, chosen):
        super().__init__()
        self.chosen = chosen
        self.router = nn.Linear(dim, experts, bias=False)
        self.weight = nn.Parameter(torch.randn(experts, dim, dim) * 0.1)
        self.shared = nn.Linear(dim, dim)
        self.gate = nn.Linear(dim, 1)

    def forward(self, x):
        shares = torch.softmax(self.router(x), dim=-1)
        top, places = shares.topk(self.chosen, dim=-1)
        top = top / top.sum(dim=-1, keepdim=True)
        every = torch.einsum("btd,edf->btef", x, self.weight)
        picked = torch.gather(every, 2, places[..., None].expand(-1, -1, -1, x.size(-1)))
        shared = torch.sigmoid(self.gate(x)) * self.shared(x)
        return (picked * top[..., None]).sum(dim=2) + shared


class Block(nn.Module):
    def __init__(self, dim, heads, kv_heads, window):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim)
        self.attn = Attention(dim, heads, kv_heads, window)
        self.norm2 = nn.LayerNorm(dim)
        self.feed = Feed(dim)

    def forward(self, x, keep):
        x = x + self.attn(self.norm1(x), keep)
        return x + self.feed(self.norm2(x))


class Places(nn.Module):
    def __init__(self, length, dim):
        super().__init__()
        self.offset = 2
        self.table = nn.Embedding(length + self.offset, dim)

    def forward(self, ids):
        return self.table(torch.arange(ids.size(1)) + self.offset)


class Decoder(nn.Module):
    def __init__(self, vocab, dim=24, depth=2, accumulation=4):
        super().__init__()
        self.accumulation = accumulation
        self.scale = math.sqrt(dim)
        self.embed = nn.Embedding(vocab, dim)
        self.places = Places(16, dim)
        self.blocks = nn.ModuleList([Block(dim, 4, 2, 5) for _ in range(depth)])
        self.experts = Experts(dim, 5, 2)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)
        nn.init.normal_(self.places.table.weight, std=0.02)

    def forward(self, ids, keep, labels):
        x = self.embed(ids) * self.scale + self.places(ids)
        for block in self.blocks:
            x = block(x, keep)
        x = self.norm(x + self.experts(x))
        logits = self.head(x)
        labels = labels.masked_fill(~keep, -100)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
        return {"logits": logits, "loss": loss / self.accumulation}


class Updates:
    def __init__(self, model, accumulation=2, warmup=4):
        self.model, self.accumulation, self.warmup, self.steps = model, accumulation, warmup, 0
        decayed = [p for p in model.parameters() if p.dim() > 1]
        others = [p for p in model.parameters() if p.dim() < 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-5)

    def step(self):
        self.steps += 1
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad / self.accumulation
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = 1e-2 * min(1.0, self.steps / self.warmup)
        self.optimizer.step()


class PlainUpdates:
    def __init__(self, model, accumulation=2):
        self.model, self.accumulation = model, accumulation
        self.optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)

    def step(self):
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad / self.accumulation
        self.optimizer.step()
