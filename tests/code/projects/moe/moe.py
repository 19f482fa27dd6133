import torch
import torch.nn as nn
import torch.nn.functional as F


class Expert(nn.Module):
    def __init__(self, hidden_size: int, intermediate_size: int):
        super().__init__()
        self.w1 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.w2 = nn.Linear(intermediate_size, hidden_size, bias=False)
        self.w3 = nn.Linear(hidden_size, intermediate_size, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, hidden_states):
        return self.w2(self.act_fn(self.w1(hidden_states)) * self.w3(hidden_states))


class SparseMoeBlock(nn.Module):
    """Top-k routing without capacity: each expert sees the tokens that chose it."""

    def __init__(self, hidden_size, intermediate_size, num_experts, top_k, jitter_noise=0.0):
        super().__init__()
        self.hidden_dim = hidden_size
        self.num_experts = num_experts
        self.top_k = top_k
        self.jitter_noise = jitter_noise
        self.gate = nn.Linear(hidden_size, num_experts, bias=False)
        self.experts = nn.ModuleList([Expert(hidden_size, intermediate_size) for _ in range(num_experts)])

    def forward(self, hidden_states: torch.Tensor):
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        if self.training and self.jitter_noise > 0:
            hidden_states *= torch.empty_like(hidden_states).uniform_(1.0 - self.jitter_noise, 1.0 + self.jitter_noise)
        hidden_states = hidden_states.view(-1, hidden_dim)
        # router_logits: (batch * sequence_length, n_experts)
        router_logits = self.gate(hidden_states)

        routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)
        routing_weights, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)
        routing_weights /= routing_weights.sum(dim=-1, keepdim=True)
        routing_weights = routing_weights.to(hidden_states.dtype)

        final_hidden_states = torch.zeros(
            (batch_size * sequence_length, hidden_dim), dtype=hidden_states.dtype, device=hidden_states.device
        )
        expert_mask = torch.nn.functional.one_hot(selected_experts, num_classes=self.num_experts).permute(2, 1, 0)
        for expert_idx in range(self.num_experts):
            expert_layer = self.experts[expert_idx]
            idx, top_x = torch.where(expert_mask[expert_idx])
            if top_x.shape[0] == 0:
                continue
            current_state = hidden_states[None, top_x].reshape(-1, hidden_dim)
            current_hidden_states = expert_layer(current_state) * routing_weights[top_x, idx, None]
            final_hidden_states.index_add_(0, top_x, current_hidden_states.to(hidden_states.dtype))
        final_hidden_states = final_hidden_states.reshape(batch_size, sequence_length, hidden_dim)
        return final_hidden_states, router_logits


def load_balancing_loss_func(gate_logits, num_experts: int, top_k=2) -> torch.Tensor:
    """Auxiliary loss of the Switch Transformer over all layers."""
    if gate_logits is None or not isinstance(gate_logits, tuple):
        return 0
    concatenated_gate_logits = torch.cat([layer_gate for layer_gate in gate_logits], dim=0)
    routing_weights = torch.nn.functional.softmax(concatenated_gate_logits, dim=-1)
    _, selected_experts = torch.topk(routing_weights, top_k, dim=-1)
    expert_mask = torch.nn.functional.one_hot(selected_experts, num_experts)
    tokens_per_expert = torch.mean(expert_mask.float(), dim=0)
    router_prob_per_expert = torch.mean(routing_weights, dim=0)
    overall_loss = torch.sum(tokens_per_expert * router_prob_per_expert.unsqueeze(0))
    return overall_loss * num_experts


class MoeLayer(nn.Module):
    def __init__(self, hidden_size, intermediate_size, num_experts, top_k):
        super().__init__()
        self.norm = nn.LayerNorm(hidden_size, elementwise_affine=True)
        self.mix = nn.Conv1d(hidden_size, hidden_size, 3, groups=hidden_size)
        self.moe = SparseMoeBlock(hidden_size, intermediate_size, num_experts, top_k)

    def forward(self, x):
        # causal depthwise convolution in place of attention
        x = x + self.mix(F.pad(x.transpose(1, 2), (2, 0))).transpose(1, 2)
        out, logits = self.moe(self.norm(x))
        return x + out, logits


class MoeLM(nn.Module):
    def __init__(self, vocab_size=43, hidden_size=16, intermediate_size=20, num_layers=2, num_experts=4, top_k=2):
        super().__init__()
        self.num_experts, self.top_k = num_experts, top_k
        self.embed = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.layers = nn.ModuleList(
            [MoeLayer(hidden_size, intermediate_size, num_experts, top_k) for _ in range(num_layers)]
        )
        self.head = nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids, labels=None, router_aux_loss_coef=0.02):
        x = self.embed(input_ids)
        all_router_logits = ()
        for layer in self.layers:
            x, router_logits = layer(x)
            all_router_logits += (router_logits,)
        logits = self.head(x)
        loss, aux_loss = None, load_balancing_loss_func(all_router_logits, self.num_experts, self.top_k)
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
            loss = loss + router_aux_loss_coef * aux_loss
        return {"loss": loss, "aux_loss": aux_loss, "logits": logits}
