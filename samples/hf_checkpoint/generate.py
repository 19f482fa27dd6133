"""Lets transformers load Hugging Face directories and continue a prompt, and compares what they say.

    python samples/hf_checkpoint/generate.py DIRECTORY [DIRECTORY ...] [--prompt TEXT] [--tokens N]

Exit code 1 when two directories give different tokens.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def generate(directory: Path, prompt: str, tokens: int) -> tuple[list[int], str]:
    """Greedy continuation: new token ids and the text of all."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0]
    return output[inputs["input_ids"].shape[1] :].tolist(), tokenizer.decode(output)


def main() -> int:
    """Command line; 0 when all directories agree."""
    parser = argparse.ArgumentParser(description="Generate with transformers from Hugging Face directories.")
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--prompt", default="def main(")
    parser.add_argument("--tokens", type=int, default=16)
    args = parser.parse_args()
    for directory in args.directories:
        if not (directory / "config.json").is_file():
            parser.error(f"{directory}: no config.json, this is no Hugging Face directory")
    results = [generate(directory, args.prompt, args.tokens) for directory in args.directories]
    for directory, (ids, text) in zip(args.directories, results, strict=True):
        print(f"{directory}: {len(ids)} new tokens {ids}\n  {text!r}")
    if any(ids != results[0][0] for ids, _ in results):
        print("the directories give different tokens")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
