"""Byte-level language modelling on the source code of the Python standard library.

Every machine that can run this has the text already, so there is nothing to download.
"""

import random
import sysconfig
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

EOT = 256  # end of text; the ids below are the bytes themselves
VOCAB_SIZE = 257
SKIP_DIRS = {"test", "tests", "idle_test", "__pycache__", "site-packages", "dist-packages"}


def encode(text):
    return list(text.encode("utf-8"))


def decode(ids):
    return bytes(i for i in ids if i != EOT).decode("utf-8", errors="replace")


def load_corpus(max_bytes):
    """Reads the standard library up to max_bytes. Returns (train, val), two arrays of token ids.

    Every 20th file goes to val, so the two never share a file.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = {"train": [], "val": []}
    n_bytes, n_files = 0, 0
    for path in sorted(root.rglob("*.py")):
        if SKIP_DIRS & set(path.relative_to(root).parts):
            continue
        raw = path.read_bytes()
        if not raw:
            continue
        if n_bytes + len(raw) > max_bytes:
            break
        n_bytes += len(raw)
        n_files += 1

        split = "val" if n_files % 20 == 0 else "train"
        parts[split].append(np.frombuffer(raw, dtype=np.uint8).astype(np.uint16))
        parts[split].append(np.array([EOT], dtype=np.uint16))
    if not parts["val"]:
        raise ValueError(f"only {n_files} files of {root} fit into {max_bytes} bytes, raise data.max_bytes")
    return np.concatenate(parts["train"]), np.concatenate(parts["val"])


class ByteDataset(Dataset):
    """Consecutive windows of block_size tokens; the targets are the same window one token later."""

    def __init__(self, tokens, block_size):
        self.tokens = tokens
        self.block_size = block_size

    def __len__(self):
        return (len(self.tokens) - 1) // self.block_size

    def __getitem__(self, i):
        start = i * self.block_size
        chunk = torch.from_numpy(self.tokens[start : start + self.block_size + 1].astype(np.int64))
        return chunk[:-1], chunk[1:]


class ResumableSampler(Sampler):
    """Endless shuffled indices, a new order every epoch.

    The order depends on the seed and the epoch only. It uses Python's own random module, not torch's
    generator, so that drawing a batch never disturbs dropout and the order can be had again anywhere.
    `start` is the number of samples already used, that is all a resumed run has to know.
    """

    def __init__(self, n_samples, seed=0, start=0):
        self.n_samples = n_samples
        self.seed = seed
        self.start = start

    def __iter__(self):
        epoch, offset = divmod(self.start, self.n_samples)
        while True:
            order = list(range(self.n_samples))
            random.Random(f"{self.seed}-{epoch}").shuffle(order)
            yield from order[offset:]
            epoch, offset = epoch + 1, 0


def build_loaders(cfg, start=0, pin_memory=False):
    """The training loader, which never ends, and the validation loader, always in the same order."""
    train_tokens, val_tokens = load_corpus(cfg["max_bytes"])
    train_set = ByteDataset(train_tokens, cfg["block_size"])
    val_set = ByteDataset(val_tokens, cfg["block_size"])

    sampler = ResumableSampler(len(train_set), seed=cfg["seed"], start=start)
    train_loader = DataLoader(
        train_set,
        batch_size=cfg["batch_size"],
        sampler=sampler,
        num_workers=cfg["num_workers"],
        pin_memory=pin_memory,
        drop_last=True,
    )
    val_loader = DataLoader(val_set, batch_size=cfg["batch_size"], shuffle=False, drop_last=True)
    return train_loader, val_loader
