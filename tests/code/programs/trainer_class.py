"""A Trainer class: the loss in a method, a schedule, state saved and loaded."""

import io

import torch
from nets import MLP, batch, fill, weights
from torch import nn, optim
from torch.optim.lr_scheduler import LambdaLR


class Trainer:
    def __init__(self, model: nn.Module, lr=0.1):
        self.model = model
        self.optimizer = optim.AdamW(self.model.parameters(), lr=lr)
        self.scheduler = LambdaLR(self.optimizer, lambda step: 0.5**step)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.history = []

    def compute_loss(self, x, y):
        return self.criterion(self.model(x), y)

    def train_step(self, step):
        x, y = batch(step)
        loss = self.compute_loss(x, y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.history.append(loss.item())
        self.history.append(self.scheduler.get_last_lr()[0])

    def fit(self, first, last):
        for step in range(first, last):
            self.train_step(step)
        return self


def run():
    trainer = Trainer(fill(MLP(4, 8, 3))).fit(0, 3)
    # through a file and back
    buffer = io.BytesIO()
    torch.save({"model": trainer.model.state_dict(), "optimizer": trainer.optimizer.state_dict()}, buffer)
    buffer.seek(0)
    state = torch.load(buffer, map_location="cpu")
    again = Trainer(MLP(4, 8, 3))
    again.model.load_state_dict(state["model"])
    again.optimizer.load_state_dict(state["optimizer"])
    again.fit(3, 5)
    return trainer.history + again.history + weights(again.model)
