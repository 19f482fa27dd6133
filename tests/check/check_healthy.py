"""Makes small healthy model directories with transformers and tokenizers, as their users would save them."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
)

CORPUS = [
    "def add(a, b):\n    return a + b\n",
    "class Model:\n    pass\n",
    "the model and the data, the data and the model",
]
VOCAB = 300
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 56,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
CONFIGS = {"llama": LlamaConfig, "qwen2": Qwen2Config}


def tokenizer(vocab: int = VOCAB) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with bos, eos and pad; its length is `vocab`."""
    special = ["<s>", "</s>", "<pad>"]
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    raw.train_from_iterator(CORPUS, trainer)
    missing = vocab - raw.get_vocab_size()
    raw.add_tokens([f"<extra_{index}>" for index in range(missing)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def make(
    family: str, directory: Path, *, shard: str = "20KB", dtype: torch.dtype = torch.float32, **overrides: object
) -> Path:
    """Saves a random model, its tokenizer and its generation config into `directory`."""
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config: PreTrainedConfig = CONFIGS[family](**{**SIZES, **ids, **overrides})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).to(dtype)
    with torch.no_grad():  # away from the constants of the initialisation, so that nothing is 0 or 1 by habit
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    model.generation_config = GenerationConfig(**ids)
    model.save_pretrained(directory, max_shard_size=shard)
    tokenizer(config.vocab_size).save_pretrained(directory)
    return directory


BASE: dict[str, object] = {
    "vocab_size": VOCAB, "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
}  # fmt: skip
GROUPED = {**BASE, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
LATENT = {
    "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "n_group": 2, "topk_group": 1,
    "first_k_dense_replace": 1, "q_lora_rank": 6, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
    "v_head_dim": 4,
}  # fmt: skip
LONG = {"max_position_embeddings": 131072}  # the default YaRN extends 4096 positions
SMALL_GPT = {"vocab_size": VOCAB, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
FAMILIES: dict[str, tuple[str, dict[str, object]]] = {
    "mistral": ("MistralForCausalLM", GROUPED),
    "gemma2": ("Gemma2ForCausalLM", {**GROUPED, "head_dim": 4}),
    "gemma3_text": ("Gemma3ForCausalLM", {**GROUPED, "head_dim": 4}),
    "phi3": ("Phi3ForCausalLM", GROUPED),
    "glm4": ("Glm4ForCausalLM", {**GROUPED, "head_dim": 4}),
    "qwen3": ("Qwen3ForCausalLM", {**GROUPED, "head_dim": 6}),
    "gpt2": ("GPT2LMHeadModel", {**SMALL_GPT, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "gpt_neox": ("GPTNeoXForCausalLM", {**BASE, "rotary_pct": 0.5}),
    "mixtral": ("MixtralForCausalLM", {**GROUPED, "num_local_experts": 4}),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {**GROUPED, **EXPERTS}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**GROUPED, **EXPERTS, "head_dim": 4}),
    "deepseek_v2": ("DeepseekV2ForCausalLM", {**BASE, **LATENT}),
    "deepseek_v3": ("DeepseekV3ForCausalLM", {**BASE, **LATENT, "num_key_value_heads": 4}),
    "glm4_moe": ("Glm4MoeForCausalLM", {**GROUPED, "n_routed_experts": 4, "num_experts_per_tok": 2, "head_dim": 4}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 4, **LONG},
    ),
    "bert": ("BertForMaskedLM", BASE),
    "roberta": ("RobertaForMaskedLM", BASE),
    "xlm_roberta": ("XLMRobertaForMaskedLM", BASE),
    "olmo2": ("Olmo2ForCausalLM", GROUPED),
    "starcoder2": ("Starcoder2ForCausalLM", GROUPED),
    "falcon": ("FalconForCausalLM", BASE),
    "bloom": ("BloomForCausalLM", {**SMALL_GPT, "hidden_size": 16, "n_layer": 2, "n_head": 4}),
    "opt": ("OPTForCausalLM", {**BASE, "ffn_dim": 20, "word_embed_proj_dim": 16}),
    "cohere2": ("Cohere2ForCausalLM", GROUPED),
    "granite": ("GraniteForCausalLM", GROUPED),
    "nemotron": ("NemotronForCausalLM", GROUPED),
    "ernie4_5": ("Ernie4_5ForCausalLM", {**GROUPED, "head_dim": 4}),
}


def make_all(folder: Path) -> dict[str, Path]:
    """A healthy directory of each family that faults are made in."""
    made = {family: make(family, folder / family) for family in CONFIGS}
    return made | {family: make_family(family, folder / family) for family in ("gpt2", "gpt_neox", "bert", "mixtral")}


def make_family(name: str, directory: Path) -> Path:
    """Saves a random model of another family, and a tokenizer of its size."""
    kind, fields = FAMILIES[name]
    cls = getattr(transformers, kind)
    torch.manual_seed(0)
    model = cls(cls.config_class(**fields))
    model.save_pretrained(directory, max_shard_size="20KB")
    tokenizer().save_pretrained(directory)
    return directory
