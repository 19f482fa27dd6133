"""One way of `data_speed.py`, in a process of its own; prints seconds and tokens as JSON."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))
VOCABULARY = 8000
DOCUMENT = 6000
"""Characters of a document."""


def corpus(home: Path, megabytes: int) -> dict[str, float]:
    """Writes corpus and tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from ms_models.data.documents import find_spans

    texts = [span.path.read_text(encoding="utf-8", errors="ignore") for span in find_spans(["stdlib"], (), 0)]
    pieces = [text[at : at + DOCUMENT] for text in texts for at in range(0, len(text), DOCUMENT)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(pieces[:800], trainer)
    tokenizer.save(str(home / "tokenizer.json"))
    (home / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    size = count = 0
    with (home / "corpus.jsonl").open("w", encoding="utf-8") as file:
        while size < megabytes << 20:
            line = json.dumps({"text": pieces[count % len(pieces)]}) + "\n"
            file.write(line)
            size += len(line)
            count += 1
    tokens = sum(len(encoding.ids) for encoding in tokenizer.encode_batch([*documents(home)]))
    (home / "tokens").write_text(str(tokens))
    return {"bytes": size, "documents": count, "tokens": tokens, "seconds": 0}


def documents(home: Path) -> Iterator[str]:
    with (home / "corpus.jsonl").open(encoding="utf-8") as file:
        yield from (json.loads(line)["text"] for line in file)


def encode(home: Path, seq_length: int) -> None:
    """One document after the other, nothing kept."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    for text in documents(home):
        tokenizer.encode(text)


def simple(home: Path, seq_length: int) -> None:
    """One document after the other, concatenated, written in batches."""
    from mindspore.mindrecord import FileWriter
    from tokenizers import Tokenizer

    out = home / "simple.mindrecord"
    for path in home.glob("simple.mindrecord*"):
        path.unlink()
    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    writer = FileWriter(str(out), shard_num=1)
    names = ("input_ids", "attention_mask", "labels")
    writer.add_schema({name: {"type": "int32", "shape": [seq_length]} for name in names}, "rows")
    rest: list[int] = []
    rows = []
    for text in documents(home):
        rest += [*tokenizer.encode(text).ids, 0]
        while len(rest) >= seq_length:
            ids, rest = np.array(rest[:seq_length], np.int32), rest[seq_length:]
            rows.append({"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids})
            if len(rows) == 512:
                writer.write_raw_data(rows)
                rows = []
    if rows:
        writer.write_raw_data(rows)
    writer.commit()


def datasets(home: Path, processes: int, seq_length: int) -> None:
    """With the datasets library."""
    import datasets as library
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(home / "tokenizer.json"))
    library.disable_progress_bars()
    cache = home / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    loaded = library.load_dataset("json", data_files=str(home / "corpus.jsonl"), cache_dir=str(cache), split="train")

    def ids(batch: dict[str, list[str]]) -> dict[str, list[list[int]]]:
        return {"input_ids": [encoding.ids for encoding in tokenizer.encode_batch(batch["text"])]}

    loaded.map(ids, batched=True, num_proc=processes, remove_columns=["text"])


def prepare(home: Path, processes: int, seq_length: int) -> None:
    """With msmigrate."""
    from ms_models.data.prepare import prepare as body
    from ms_models.data.recipe import Recipe

    shutil.rmtree(home / "data", ignore_errors=True)
    recipe = Recipe(text=(str(home / "corpus.jsonl"),), seq_length=seq_length, shard_bytes=64 << 20)
    body(recipe, home, home / "data", processes=processes)


def load(home: Path, prefetch: int, seq_length: int) -> dict[str, float]:
    """Rows of what `prepare` made; the pipeline is opened before the clock starts."""
    from ms_models.data.loader import TrainingLoader

    loader = TrainingLoader(home / "data", seed=0, micro_batch_size=8, prefetch=prefetch)
    loader.next_step()
    start, steps = time.perf_counter(), 600
    for _ in range(steps):
        loader.next_step()
    seconds = time.perf_counter() - start
    loader.close()
    return {"seconds": seconds, "tokens": steps * 8 * seq_length}


WAYS: dict[str, Callable[..., dict[str, float] | None]] = {
    "corpus": corpus, "encode": encode, "simple": simple, "datasets": datasets, "prepare": prepare, "load": load,
}  # fmt: skip

if __name__ == "__main__":
    place, way = Path(sys.argv[1]), sys.argv[2]
    begin = time.perf_counter()
    figures = WAYS[way](place, *map(int, sys.argv[3:]))
    if figures is None:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        cpu = sum(one.ru_utime + one.ru_stime for one in used)
        tokens = int((place / "tokens").read_text())
        figures = {"seconds": time.perf_counter() - begin, "cpu": cpu, "tokens": tokens}
    print(json.dumps(figures))
