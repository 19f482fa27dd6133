"""Direct preference optimisation: a policy against a frozen copy of itself."""

import argparse
import copy
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from model import TinyLM


@dataclass
class DPOConfig:
    beta: float = 0.3
    label_smoothing: float = 0.05
    lr: float = 5e-4
    steps: int = 10
    batch_size: int = 3
    sft_weight: float = 0.1


def get_batch_logps(logits: torch.FloatTensor, labels: torch.LongTensor, average_log_prob: bool = False):
    """Log probability of the labels, summed over those that are not -100."""
    assert logits.shape[:-1] == labels.shape
    labels = labels[:, 1:].clone()
    logits = logits[:, :-1, :]
    loss_mask = labels != -100
    # dummy token; we'll ignore the losses on these tokens later
    labels[labels == -100] = 0
    per_token_logps = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    if average_log_prob:
        return (per_token_logps * loss_mask).sum(-1) / loss_mask.sum(-1)
    return (per_token_logps * loss_mask).sum(-1)


def preference_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta, label_smoothing):
    pi_logratios = policy_chosen - policy_rejected
    ref_logratios = ref_chosen - ref_rejected
    logits = pi_logratios - ref_logratios
    losses = -F.logsigmoid(beta * logits) * (1 - label_smoothing) - F.logsigmoid(-beta * logits) * label_smoothing
    chosen_rewards = beta * (policy_chosen - ref_chosen).detach()
    rejected_rewards = beta * (policy_rejected - ref_rejected).detach()
    return losses, chosen_rewards, rejected_rewards


class DPOTrainer:
    def __init__(self, policy, reference, config: DPOConfig):
        self.policy, self.config = policy, config
        self.reference = reference.eval()
        for p in self.reference.parameters():
            p.requires_grad_(False)
        self.optimizer = torch.optim.RMSprop(self.policy.parameters(), lr=config.lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: min(1.0, (step + 1) / 4))

    def concatenated_forward(self, model, batch):
        ids = torch.cat([batch["chosen"], batch["rejected"]], dim=0)
        labels = torch.cat([batch["chosen_labels"], batch["rejected_labels"]], dim=0)
        all_logits = model(ids).to(torch.float32)
        all_logps = get_batch_logps(all_logits, labels)
        n = batch["chosen"].shape[0]
        return all_logps[:n], all_logps[n:]

    def get_batch_metrics(self, batch):
        policy_chosen, policy_rejected = self.concatenated_forward(self.policy, batch)
        with torch.no_grad():
            ref_chosen, ref_rejected = self.concatenated_forward(self.reference, batch)
        losses, chosen_rewards, rejected_rewards = preference_loss(
            policy_chosen, policy_rejected, ref_chosen, ref_rejected, self.config.beta, self.config.label_smoothing
        )
        reward_accuracies = (chosen_rewards > rejected_rewards).float()
        metrics = {
            "rewards/chosen": chosen_rewards.cpu().numpy().tolist(),
            "rewards/rejected": rejected_rewards.cpu().numpy().tolist(),
            "rewards/accuracies": reward_accuracies.mean().item(),
            "logps/chosen": policy_chosen.detach().cpu().numpy().tolist(),
        }
        loss = losses.mean() - self.config.sft_weight * policy_chosen.mean()
        metrics["loss"] = loss.item()
        return loss, metrics

    def train(self, batches):
        history = []
        self.policy.train()
        for batch in batches:
            loss, metrics = self.get_batch_metrics(batch)
            loss.backward()
            grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 10.0).item()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            metrics["grad_norm"] = grad_norm
            history.append(metrics)
        return history


def make_batches(config, vocab=37, prompt=4, answer=6):
    rng = np.random.default_rng(17)
    for _ in range(config.steps):
        prompts = rng.integers(0, vocab, (config.batch_size, prompt))
        chosen = np.concatenate([prompts, np.sort(rng.integers(0, vocab, (config.batch_size, answer)))], axis=1)
        rejected = np.concatenate([prompts, rng.integers(0, vocab, (config.batch_size, answer))], axis=1)
        batch = {}
        for name, ids in (("chosen", chosen), ("rejected", rejected)):
            labels = ids.copy()
            labels[:, :prompt] = -100
            labels[0, -1] = -100
            batch[name] = torch.from_numpy(ids)
            batch[f"{name}_labels"] = torch.from_numpy(labels)
        yield batch


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--init-from")
    parser.add_argument("--save-init")
    args = parser.parse_args()
    config = DPOConfig()
    policy = TinyLM()
    if args.save_init:
        torch.save({"state": policy.state_dict(), "step_idx": 0}, args.save_init)
    if args.init_from:
        policy.load_state_dict(torch.load(args.init_from, map_location="cpu")["state"])
    reference = copy.deepcopy(policy)
    history = DPOTrainer(policy, reference, config).train(make_batches(config))
    args.out.mkdir(parents=True, exist_ok=True)
    torch.save({"state": policy.state_dict(), "step_idx": config.steps}, args.out / "policy.pt")
    with open(args.out / "losses.json", "w") as f:
        json.dump(history, f)
