"""Reads a `tokenizer.json` and what packing has to know of it. Needs neither torch nor transformers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import hash_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"
PROBES = ("a", "the", "x", "0", "w0", "\u4e2d")
"""Texts that are encoded with and without special tokens, to see what stands around a text."""


@dataclass(frozen=True)
class TokenizerFacts:
    """What packing and the checks need to know about a tokenizer."""

    directory: Path
    sha256: str
    """Of `tokenizer.json`."""
    vocabulary: int
    """Number of ids, added tokens included."""
    eos: int
    """Ends a text."""
    pad: int
    prefix: tuple[int, ...] = ()
    """What the tokenizer's own template puts before a text, such as `[CLS]`."""
    suffix: tuple[int, ...] = ()
    """What it puts behind it, such as `[SEP]`."""


def read_tokenizer(directory: Path) -> TokenizerFacts:
    """Facts of the tokenizer in a model directory.

    The end-of-text token is the one named by `tokenizer_config.json`, else by `config.json`, else the separator (BERT
    has no other); padding falls back to it.

    Raises:
        UserError: no tokenizer there, an unreadable one, or none that says which token ends a text.
    """
    tokenizer = load_tokenizer(directory)
    eos = _special_id(directory, tokenizer, "eos")
    if eos is None:
        eos = _special_id(directory, tokenizer, "sep")
    if eos is None:
        raise UserError(f"{directory}: neither tokenizer_config.json nor config.json names the end-of-text token (eos)")
    pad = _special_id(directory, tokenizer, "pad")
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    for name, value in (("eos", eos), ("pad", pad)):
        if value is not None and not 0 <= value < vocabulary:
            raise UserError(f"{directory}: the {name} id {value} is outside the tokenizer's vocabulary of {vocabulary}")
    sha256 = hash_file(directory / FILE).sha256
    return TokenizerFacts(
        directory, sha256, vocabulary, eos, eos if pad is None else pad, *_template(tokenizer, directory)
    )


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer of a model directory, without the truncation and padding that its file may carry.

    Raises:
        UserError: the library or the file is missing, or the file is damaged.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UserError("preparing text needs the tokenizers library: pip install 'msmigrate[hf]'") from error
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"{directory}: no {FILE}; convert a slow tokenizer with transformers' save_pretrained first")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception
        raise UserError(f"{path}: not a tokenizer that can be read ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _special_id(directory: Path, tokenizer: Tokenizer, name: str) -> int | None:
    path = directory / "tokenizer_config.json"
    token = read_json(path).get(f"{name}_token") if path.is_file() else None
    if isinstance(token, dict):
        token = token.get("content")
    if token is not None:
        found = tokenizer.token_to_id(token)
        if found is None:
            raise UserError(f"{path}: {name}_token is {json.dumps(token)}, which the tokenizer does not know")
        return int(found)
    path = directory / "config.json"
    value = read_json(path).get(f"{name}_token_id") if path.is_file() else None
    if isinstance(value, list) and value:
        value = value[0]
    return value if type(value) is int else None


def _template(tokenizer: Tokenizer, directory: Path) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """What the tokenizer puts before and behind a text."""
    for text in PROBES:
        bare = tokenizer.encode(text, add_special_tokens=False).ids
        whole = tokenizer.encode(text, add_special_tokens=True).ids
        if bare == whole:
            return (), ()
        for at in range(len(whole) - len(bare) + 1):
            if bare and whole[at : at + len(bare)] == bare:
                return tuple(whole[:at]), tuple(whole[at + len(bare) :])
    raise UserError(f"{directory / FILE}: its post-processor does more than put tokens around a text")
