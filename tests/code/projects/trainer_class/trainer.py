import copy
import logging
from pathlib import Path
from typing import Callable, Dict, List, Optional

import torch
from torch import nn
from torch.utils.data import DataLoader

logger = logging.getLogger(__name__)


class EarlyStopping:
    def __init__(self, patience: int = 5, min_delta: float = 0.0):
        self.patience = patience
        self.min_delta = min_delta
        self.best: Optional[float] = None
        self.bad_epochs = 0

    def __call__(self, value: float) -> bool:
        if self.best is None or value < self.best - self.min_delta:
            self.best = value
            self.bad_epochs = 0
        else:
            self.bad_epochs += 1
        return self.bad_epochs >= self.patience


class Trainer:
    def __init__(
        self,
        model: nn.Module,
        criterion: nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler=None,
        device: str = "cpu",
        max_grad_norm: Optional[float] = None,
        callbacks: Optional[List[Callable[[Dict], None]]] = None,
    ):
        self.model = model.to(device)
        self.criterion = criterion
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.device = torch.device(device)
        self.max_grad_norm = max_grad_norm
        self.callbacks = callbacks or []
        self.global_step = 0
        self.history: Dict[str, List[float]] = {"train_loss": [], "val_loss": [], "val_acc": [], "lr": [], "norm": []}
        self.best_state = None

    def train_epoch(self, loader: DataLoader) -> float:
        self.model.train()
        total, count = 0.0, 0
        for batch in loader:
            inputs, targets = (t.to(self.device) for t in batch)
            self.optimizer.zero_grad()
            outputs = self.model(inputs)
            loss = self.criterion(outputs, targets)
            loss.backward()
            if self.max_grad_norm is not None:
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.max_grad_norm)
                self.history["norm"].append(float(norm))
            self.optimizer.step()
            self.global_step += 1
            total += loss.item() * inputs.size(0)
            count += inputs.size(0)
            self.history["train_loss"].append(loss.item())
        return total / count

    @torch.no_grad()
    def evaluate(self, loader: DataLoader):
        self.model.eval()
        loss_sum, correct, count = 0.0, 0, 0
        for inputs, targets in loader:
            inputs, targets = inputs.to(self.device), targets.to(self.device)
            logits = self.model(inputs)
            loss_sum += self.criterion(logits, targets).item() * len(targets)
            correct += (logits.argmax(dim=1) == targets).sum().item()
            count += len(targets)
        return loss_sum / count, correct / count

    def fit(self, train_loader: DataLoader, val_loader: DataLoader, epochs: int, early_stopping=None):
        for epoch in range(epochs):
            train_loss = self.train_epoch(train_loader)
            val_loss, val_acc = self.evaluate(val_loader)
            if self.scheduler is not None:
                if isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                    self.scheduler.step(val_loss)
                else:
                    self.scheduler.step()
            self.history["val_loss"].append(val_loss)
            self.history["val_acc"].append(val_acc)
            self.history["lr"].append(self.optimizer.param_groups[0]["lr"])
            if val_loss <= min(self.history["val_loss"]):
                self.best_state = copy.deepcopy(self.model.state_dict())
            logger.info("epoch %d: train %.4f val %.4f acc %.3f", epoch, train_loss, val_loss, val_acc)
            for callback in self.callbacks:
                callback({"epoch": epoch, "train_loss": train_loss, "val_loss": val_loss})
            if early_stopping is not None and early_stopping(val_loss):
                logger.info("stopped early at epoch %d", epoch)
                break
        if self.best_state is not None:
            self.model.load_state_dict(self.best_state)
        return self.history

    def save(self, path: Path):
        torch.save(
            {
                "model_state_dict": self.model.state_dict(),
                "optimizer_state_dict": self.optimizer.state_dict(),
                "global_step": self.global_step,
                "history": self.history,
            },
            path,
        )

    def load(self, path: Path):
        checkpoint = torch.load(path, map_location=self.device)
        self.model.load_state_dict(checkpoint["model_state_dict"])
        self.optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
        self.global_step = checkpoint["global_step"]
