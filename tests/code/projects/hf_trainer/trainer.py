"""A trainer with a loss of its own, and a callback that looks at what happens."""

import torch
import torch.nn.functional as F
from transformers import Trainer, TrainerCallback


class FocalTrainer(Trainer):
    """Tokens that are predicted well already count less, and large logits cost a little."""

    def __init__(self, *args, gamma=2.0, z_weight=1e-3, **kwargs):
        super().__init__(*args, **kwargs)
        self.gamma = gamma
        self.z_weight = z_weight

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        logits = outputs.logits[:, :-1]
        target = labels[:, 1:]
        keep = target.ne(-100)
        log_probs = F.log_softmax(logits, dim=-1)
        picked = log_probs.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        focal = -((1 - picked.exp()) ** self.gamma) * picked
        z_loss = torch.logsumexp(logits, dim=-1).pow(2)
        loss = ((focal + self.z_weight * z_loss) * keep).sum() / keep.sum()
        return (loss, outputs) if return_outputs else loss


class Watcher(TrainerCallback):
    def __init__(self):
        self.events = []

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.events.append(["epoch", state.global_step])

    def on_step_end(self, args, state, control, **kwargs):
        self.events.append(["step", state.global_step])

    def on_substep_end(self, args, state, control, **kwargs):
        self.events.append(["substep", state.global_step])

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        self.events.append(["evaluate", state.global_step])

    def on_save(self, args, state, control, **kwargs):
        self.events.append(["save", state.global_step])
