"""Encodes documents with a `tokenizer.json`, in one process or several. Needs neither torch nor transformers."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mappings.errors import UserError
from mappings.formats.hf_directory import read_json
from mappings.formats.manifest import hash_file
from ms_models.data.documents import Span, read_documents

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FILE = "tokenizer.json"


@dataclass(frozen=True)
class TokenizerFacts:
    """What packing and the checks need to know about a tokenizer."""

    directory: Path
    sha256: str
    """Of `tokenizer.json`."""
    vocabulary: int
    """Number of ids, added tokens included."""
    eos: int
    pad: int


@dataclass(frozen=True)
class Encoded:
    """One document as int32 tokens."""

    key: str
    tokens: np.ndarray
    decodable: bool = True
    """False when it was no UTF-8; it has no tokens then."""


def read_tokenizer(directory: Path) -> TokenizerFacts:
    """Facts of the tokenizer in a model directory.

    The end-of-text token is the one named by `tokenizer_config.json`, else by `config.json`; padding falls back to it.

    Raises:
        UserError: no tokenizer there, an unreadable one, or none that says which token ends a text.
    """
    tokenizer = _load(directory)
    eos = _special_id(directory, tokenizer, "eos")
    if eos is None:
        raise UserError(f"{directory}: neither tokenizer_config.json nor config.json names the end-of-text token (eos)")
    pad = _special_id(directory, tokenizer, "pad")
    vocabulary = tokenizer.get_vocab_size(with_added_tokens=True)
    for name, value in (("eos", eos), ("pad", pad)):
        if value is not None and not 0 <= value < vocabulary:
            raise UserError(f"{directory}: the {name} id {value} is outside the tokenizer's vocabulary of {vocabulary}")
    return TokenizerFacts(directory, hash_file(directory / FILE).sha256, vocabulary, eos, eos if pad is None else pad)


def encode(spans: Sequence[Span], tokenizer: Path, field: str, processes: int) -> Iterator[tuple[Span, list[Encoded]]]:
    """Encodes every document, in the order of `spans` whatever the number of processes.

    Raises:
        UserError: as `read_documents` and `read_tokenizer`.
    """
    if processes == 1:
        _start(tokenizer, field)
        for span in spans:
            yield span, _encode_span(span)
        return
    # spawn: MindSpore and the tokenizer's own thread pool do not survive a fork.
    with multiprocessing.get_context("spawn").Pool(processes, _start_process, (tokenizer, field)) as pool:
        yield from zip(spans, pool.imap(_encode_span, spans, chunksize=4), strict=True)


_worker: dict[str, Any] = {}


def _start_process(tokenizer: Path, field: str) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which ends the pool
    _start(tokenizer, field)


def _start(tokenizer: Path, field: str) -> None:
    _worker.update(tokenizer=_load(tokenizer), field=field)


def _encode_span(span: Span) -> list[Encoded]:
    documents = list(read_documents(span, _worker["field"]))
    texts = [document.text for document in documents if document.text is not None]
    encodings = iter(_worker["tokenizer"].encode_batch(texts, add_special_tokens=False))
    return [
        Encoded(
            document.key,
            np.array([] if document.text is None else next(encodings).ids, np.int32),
            document.text is not None,
        )
        for document in documents
    ]


def _load(directory: Path) -> Tokenizer:
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
