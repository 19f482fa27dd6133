"""Tiny DeepSeek-V3 models with odd sizes, and their further-token layers, computed by transformers' own modules."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tiny_models
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 48,  # of the three pairs of dimensions, one is kept and two are scaled
    "mscale": 1.0,
    "mscale_all_dim": 0.7,
}
# No two sizes that meet in one tensor are equal; one dense layer before those with experts, in four groups of three.
SIZES: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 76,
    "moe_intermediate_size": 22,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 6,
    "kv_lora_rank": 14,
    "qk_nope_head_dim": 5,
    "qk_rope_head_dim": 6,
    "v_head_dim": 9,
    "n_routed_experts": 12,
    "n_group": 4,
    "topk_group": 2,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 192,
}
CONFIGS = {
    "latent queries, yarn, interleaved, biases": transformers.DeepseekV3Config(
        **{**SIZES, "num_hidden_layers": 2},  # further-token layers follow
        q_lora_rank=20,
        attention_bias=True,
        rope_parameters=YARN,
        pad_token_id=5,
    ),
    "plain queries and positions, halves, tied, weights as they are, one group": transformers.DeepseekV3Config(
        **{**SIZES, "n_group": 1, "topk_group": 1},
        q_lora_rank=None,
        rope_interleave=False,
        norm_topk_prob=False,
        tie_word_embeddings=True,
    ),
}


def make_case(config: transformers.DeepseekV3Config, directory: Path) -> tiny_models.Case:
    """See `tiny_models.make_case`; the routers' corrections are off zero, too."""
    model = tiny_models.build(config, directory)
    model.set_experts_implementation("eager")  # torch's grouped product refuses widths that are no multiple of 4
    with torch.no_grad():
        for buffer in (b for name, b in model.named_buffers() if name.endswith("e_score_correction_bias")):
            buffer.add_(torch.randn(buffer.shape) * 0.1)
    model.save_pretrained(directory)
    (directory / "model.safetensors.index.json").unlink()  # left over from saving in parts
    return tiny_models.answers_of(model, directory)


@dataclass(frozen=True)
class FurtherCase:
    """A case whose directory also holds further-token layers."""

    case: tiny_models.Case
    """Its loss and gradients are of `WEIGHT` times the further tokens' mean loss, beside the next token's."""
    next_loss: float
    """Of the next token alone."""


WEIGHT, LAYERS = 0.4, 2  # of the further-token layers, and how many


def make_further_case(config: transformers.DeepseekV3Config, directory: Path) -> FurtherCase:
    """Adds further-token layers of transformers' `MtpLayer` to a model, and computes their loss with them."""
    case = make_case(config, directory)
    model = case.reference
    model.zero_grad()
    torch.manual_seed(1)
    further = MtpModel(model, LAYERS).eval()
    with torch.no_grad():
        for name, tensor in (*further.layers.named_parameters(), *further.layers.named_buffers()):
            tensor.copy_(torch.randn(tensor.shape) * 0.1 + (1 if "norm" in name else 0))
    first = model.config.num_hidden_layers
    _add_tensors(directory, {_stored_name(name, first): value for name, value in further.layers.state_dict().items()})

    ids, labels, mask = (torch.tensor(a, dtype=torch.long) for a in (case.input_ids, case.labels, case.attention_mask))
    outputs = model(ids, attention_mask=mask, output_hidden_states=True)
    hidden = outputs.hidden_states[-1]
    next_loss = loss = _loss(outputs.logits, labels, 1)
    for steps, layer in enumerate(further.layers, 1):
        embedded = model.get_input_embeddings()(torch.nn.functional.pad(ids[:, steps:], (0, steps)))
        positions = torch.arange(ids.shape[1]).unsqueeze(0)
        bias = transformers.masking_utils.create_causal_mask(
            config=model.config, inputs_embeds=embedded, attention_mask=mask, cache=None, position_ids=positions
        )
        rotary = model.get_decoder().rotary_emb(embedded, positions)
        hidden = layer(embedded, hidden, rotary, bias, positions, None)
        loss = loss + _loss(model.lm_head(hidden), labels, steps + 1) * (WEIGHT / LAYERS)
    loss.backward()
    gradients: dict[str, Any] = {name: parameter.grad for name, parameter in model.named_parameters()}
    gradients |= {_stored_name(name, first): parameter.grad for name, parameter in further.layers.named_parameters()}
    gradients = {name: gradient.numpy() for name, gradient in gradients.items()}
    return FurtherCase(replace(case, loss=loss.item(), gradients=gradients), next_loss.item())


def _loss(logits: torch.Tensor, labels: torch.Tensor, steps: int) -> torch.Tensor:
    targets = labels[:, steps:].reshape(-1)
    return torch.nn.functional.cross_entropy(logits[:, :-steps].flatten(0, 1), targets, reduction="sum")


def _stored_name(name: str, first: int) -> str:
    """What published checkpoints call a parameter of `MtpModel.layers`."""
    layer, rest = name.split(".", 1)
    rest = rest.removeprefix("mtp_block.").replace("post_norm", "shared_head.norm")
    return f"model.layers.{first + int(layer)}.{rest}"


def _add_tensors(directory: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Puts further tensors into a saved model, experts one by one as transformers saves them."""
    single: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for expert, both in enumerate(value):
                gate, up = both.chunk(2)
                prefix = f"{name.removesuffix('gate_up_proj')}{expert}"
                single[f"{prefix}.gate_proj.weight"], single[f"{prefix}.up_proj.weight"] = gate.clone(), up.clone()
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(value):
                single[f"{name.removesuffix('down_proj')}{expert}.down_proj.weight"] = down.clone()
        else:
            single[name] = value
    path = directory / "model.safetensors"
    save_file({**load_file(path), **single}, path, {"format": "pt"})
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": LAYERS}))
