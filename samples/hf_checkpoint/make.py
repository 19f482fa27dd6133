"""Makes a small Hugging Face checkpoint with everything a real one has: Qwen2 or Llama classes, tokenizer, shards.

    python samples/hf_checkpoint/make.py qwen2 OUT
    python samples/hf_checkpoint/make.py llama OUT --seed 3 --dtype bfloat16 --set num_hidden_layers=2

Nothing is downloaded: the tokenizer is trained on the source of the Python standard library, the weights are seeded
noise.
The same arguments give the same bytes under the same Python and the same library versions.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mappings.errors import UserError

DTYPES = ("float32", "bfloat16", "float16")
OWN_OPTIONS = ("seed", "corpus_bytes", "vocab_size", "max_shard_size", "dtype")
SKIP_DIRS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class Family:
    """What differs between the families: the special tokens and the defaults of `config.json`."""

    special: tuple[str, ...]  # in the order of their ids, which follow the BPE vocabulary
    bos: str | None
    eos: str
    pad: str
    config: dict[str, Any]


COMMON: dict[str, Any] = {
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "attention_dropout": 0.0,
}

FAMILIES: dict[str, Family] = {
    "qwen2": Family(
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        bos=None,
        eos="<|im_end|>",
        pad="<|endoftext|>",
        config=COMMON
        | {
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
            "use_sliding_window": False,
        },
    ),
    "llama": Family(
        special=("<|begin_of_text|>", "<|end_of_text|>", "<|finetune_right_pad_id|>"),
        bos="<|begin_of_text|>",
        eos="<|end_of_text|>",
        pad="<|finetune_right_pad_id|>",
        config=COMMON
        | {
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
            "attention_bias": False,
            "mlp_bias": False,
        },
    ),
}


def make(
    family: str,
    directory: str | Path,
    *,
    seed: int = 0,
    corpus_bytes: int = 1_000_000,
    vocab_size: int = 2048,
    max_shard_size: int | str = "1MB",
    dtype: str = "float32",
    **overrides: Any,
) -> Path:
    """Writes a checkpoint directory: config, generation config, tokenizer and sharded weights.

    Args:
        family: `qwen2` or `llama`.
        directory: A new or empty directory.
        seed: Seed of the weights. The tokenizer depends on the corpus and the vocabulary size alone.
        corpus_bytes: How much of the standard library's source the tokenizer is trained on.
        vocab_size: Rows of the embedding, and exactly the length of the tokenizer, special tokens included.
        max_shard_size: Bytes in one weight file, a number or text such as `500KB`; a larger tensor gets its own file.
        dtype: `float32`, `bfloat16` or `float16`.
        **overrides: Fields of `config.json`, such as `num_hidden_layers=2` or `tie_word_embeddings=False`.

    Returns:
        The directory.

    Raises:
        UserError: An argument cannot be used; nothing was written then.
    """
    if family not in FAMILIES:
        raise UserError(f"family {family!r} is unknown, use one of: {', '.join(FAMILIES)}")
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} is unknown, use one of: {', '.join(DTYPES)}")
    if not re.fullmatch(r"[1-9]\d*([KMG]i?B)?", str(max_shard_size)):
        raise UserError(f"max_shard_size {max_shard_size!r} is not a size, write bytes or a size such as 500KB")
    directory = Path(directory)
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UserError(f"{directory} exists and is not an empty directory, give a new one")

    tokenizer = train_tokenizer(family, read_corpus(corpus_bytes), vocab_size)
    config = build_config(family, tokenizer, dtype, overrides)
    model = build_model(family, config, seed, dtype)

    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be made: {error.strerror}, give another directory") from error
    with quiet():
        model.save_pretrained(directory, max_shard_size=max_shard_size)
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(directory)
    return directory


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps the progress bars of transformers off the terminal: a few shards take milliseconds."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def read_corpus(max_bytes: int) -> list[str]:
    """Source files of the standard library in the order of their paths, whole files only, up to `max_bytes`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    texts: list[str] = []
    size = 0
    for path in sorted(root.rglob("*.py")):
        if SKIP_DIRS & set(path.relative_to(root).parts):
            continue
        raw = path.read_bytes()
        size += len(raw)
        if size > max_bytes:
            break
        texts.append(raw.decode("utf-8"))
    if not texts:
        raise UserError(f"corpus_bytes {max_bytes} holds no file of the standard library, give 1000000")
    return texts


def train_tokenizer(family: str, texts: list[str], vocab_size: int) -> Any:
    """A byte-level BPE tokenizer of exactly `vocab_size` tokens; the special tokens take the last ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer

    spec = FAMILIES[family]
    smallest = 256 + len(spec.special)
    if vocab_size < smallest:
        raise UserError(f"vocab_size {vocab_size} is too small, the bytes and special tokens alone are {smallest}")

    tokenizer = Tokenizer(models.BPE())
    if family == "qwen2":
        # AutoTokenizer gives these files to Qwen2Tokenizer, which brings its own steps before BPE whatever
        # tokenizer.json says: train with the same, or the two readings of the files would differ.
        own = Qwen2Tokenizer().backend_tokenizer
        tokenizer.normalizer, tokenizer.pre_tokenizer = own.normalizer, own.pre_tokenizer
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(spec.special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(spec.special))
    if tokenizer.get_vocab_size() != vocab_size:
        raise UserError(
            f"the corpus gives a vocabulary of {tokenizer.get_vocab_size()} tokens, not {vocab_size}: "
            "raise corpus_bytes or lower vocab_size"
        )

    if spec.bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{spec.bos} $A",
            pair=f"{spec.bos} $A {spec.bos} $B",
            special_tokens=[(spec.bos, tokenizer.token_to_id(spec.bos))],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=spec.bos,
        eos_token=spec.eos,
        pad_token=spec.pad,
        clean_up_tokenization_spaces=False,
    )


@contextmanager
def refusals(family: str) -> Iterator[None]:
    """Turns what transformers says about a configuration into one line for the user."""
    from huggingface_hub.errors import StrictDataclassError

    try:
        yield
    except (StrictDataclassError, TypeError, ValueError, KeyError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"transformers refuses this {family} configuration: {type(error).__name__}: {reason}; change the overrides"
        ) from error


def build_config(family: str, tokenizer: Any, dtype: str, overrides: dict[str, Any]) -> Any:
    """The model's configuration, with the special ids of the tokenizer.

    Raises:
        UserError: A field is unknown to the family, is set elsewhere, or the head counts do not fit.
    """
    from transformers import LlamaConfig, Qwen2Config

    cls = {"qwen2": Qwen2Config, "llama": LlamaConfig}[family]
    derived = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
        "dtype": dtype,
    }
    # the attention of both families obeys head_dim, though the Qwen2 configuration does not list it
    known = set(cls().to_dict()) - set(derived) | {"head_dim"}
    for name in overrides:
        if name not in known:
            close = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f", did you mean {close[0]!r}?" if close else ""
            raise UserError(f"{name!r} is not a field of the {family} configuration that can be set{hint}")

    fields = FAMILIES[family].config | overrides
    for name, default in COMMON.items():
        if type(default) is int and not (type(fields[name]) is int and fields[name] > 0):
            raise UserError(f"{name} {fields[name]!r} is not a positive whole number")
    hidden, heads, kv_heads = fields["hidden_size"], fields["num_attention_heads"], fields["num_key_value_heads"]
    if fields.get("head_dim") is None and hidden % heads:
        raise UserError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if heads % kv_heads:
        raise UserError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if family == "qwen2":
        fields.setdefault("max_window_layers", fields["num_hidden_layers"])
    with refusals(family):
        return cls(**fields, **derived)


def build_model(family: str, config: Any, seed: int, dtype: str) -> Any:
    """The model with noise in every parameter: a norm of exactly one or a bias of zero would hide a swapped tensor."""
    import torch
    from transformers import GenerationConfig, LlamaForCausalLM, Qwen2ForCausalLM

    with refusals(family):
        model = {"qwen2": Qwen2ForCausalLM, "llama": LlamaForCausalLM}[family](config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if name.endswith("norm.weight"):
                parameter.copy_(1.0 + 0.1 * noise)
            elif name.endswith(".bias"):
                parameter.copy_(0.1 * noise)
            else:
                parameter.copy_(config.initializer_range * noise)
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=False,
        max_new_tokens=32,
    )
    return model.to(getattr(torch, dtype))


def parse_overrides(texts: list[str]) -> dict[str, Any]:
    """`name=value` pairs of the command line; a value is read as YAML, so numbers, true, null and {...} work."""
    overrides: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise UserError(f"--set {text!r} is not of the form name=value")
        if name in OWN_OPTIONS:
            raise UserError(f"--set {name}: use --{name.replace('_', '-')} instead")
        try:
            overrides[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {name}: {value!r} is not a value that YAML can read") from error
    return overrides


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Make a small Hugging Face checkpoint for demos and tests.")
    parser.add_argument("family", help=f"one of: {', '.join(FAMILIES)}")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus-bytes", type=int, default=1_000_000)
    parser.add_argument("--vocab-size", type=int, default=2048)
    parser.add_argument("--max-shard-size", default="1MB")
    parser.add_argument("--dtype", default="float32", help=f"one of: {', '.join(DTYPES)}")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args(arguments)
    try:
        directory = make(
            options.family,
            options.directory,
            seed=options.seed,
            corpus_bytes=options.corpus_bytes,
            vocab_size=options.vocab_size,
            max_shard_size=options.max_shard_size,
            dtype=options.dtype,
            **parse_overrides(options.overrides),
        )
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    sizes = [path.stat().st_size for path in directory.glob("*.safetensors")]
    sys.stdout.write(f"{directory}: {options.family}, {len(sizes)} weight files, {sum(sizes):,} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
