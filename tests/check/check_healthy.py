"""Makes small healthy model directories with transformers and tokenizers, as their users would save them."""

from __future__ import annotations

from pathlib import Path

import torch
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
