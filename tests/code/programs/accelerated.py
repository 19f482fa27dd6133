"""A loop with accelerate and a schedule of transformers: accumulation, clipping, an evaluation over an uneven rest."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from nets import fill, weights
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import get_scheduler


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x, labels=None):
        logits = self.head(torch.tanh(self.layer(x)))
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


def run():
    set_seed(3)
    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = fill(Net())
    data = TensorDataset(torch.linspace(-1, 1, 44).view(11, 4), torch.arange(11) % 3)
    loader = DataLoader(data, batch_size=2)
    evaluation = DataLoader(data, batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = get_scheduler("cosine", optimizer=optimizer, num_warmup_steps=1, num_training_steps=6)
    model, optimizer, loader, evaluation, scheduler = accelerator.prepare(
        model, optimizer, loader, evaluation, scheduler
    )
    numbers = []
    for _ in range(2):
        model.train()
        total = 0
        for batch in loader:
            with accelerator.accumulate(model):
                loss = model(batch[0], labels=batch[1])["loss"]
                total += loss.detach().float()
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    numbers.append(accelerator.clip_grad_norm_(model.parameters(), 0.2).item())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        numbers += [total.item(), scheduler.get_last_lr()[0]]
        model.eval()
        kept = []
        for batch in evaluation:
            with torch.no_grad():
                logits = model(batch[0])["logits"]
            logits, labels = accelerator.gather_for_metrics((logits, batch[1]))
            kept.append(logits.softmax(-1)[:, 0] * labels)
        together = torch.cat(kept)
        numbers += [together.shape[0], together.sum().item()]
    return numbers + weights(accelerator.unwrap_model(model))
