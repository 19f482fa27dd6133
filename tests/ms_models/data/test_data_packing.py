"""What stands in rows: kinds of packing, long and short documents, special tokens, labels of padding and borders."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers

from mappings.errors import UserError
from ms_models.data.fitting import BestFit
from ms_models.data.packing import Concatenation
from ms_models.data.pieces import Cutter
from ms_models.data.prepare import prepare
from ms_models.data.recipe import Recipe
from ms_models.data.rows import IGNORED
from ms_models.data.tokenization import TokenizerFacts, read_tokenizer
from tests.ms_models.data.data_helpers import random_texts, rows, words
from tests.ms_models.data.test_masking import save, wordpiece
from tests.ms_models.train.run_helpers import EOS, PAD, write_tokenizer

FACTS = TokenizerFacts(Path(), "", 50, eos=9, pad=7, prefix=(2,), suffix=(3,))


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    directory = tmp_path / "tokenizer"
    directory.mkdir()
    write_tokenizer(directory)
    return directory


def made(tmp_path: Path, tokenizer: Path, texts: list[str], **settings: Any) -> tuple[dict[str, Any], Path]:
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    recipe = Recipe(text=(str(path),), validation_fraction=0, **settings)
    out = tmp_path / "out"
    return prepare(recipe, tokenizer, out), out


def documents_of(row: dict[str, np.ndarray]) -> list[tuple[int, ...]]:
    """By the numbers in the attention mask."""
    mask, ids = row["attention_mask"], row["input_ids"]
    assert mask[mask > 0].tolist() == sorted(mask[mask > 0].tolist())
    return [tuple(ids[mask == number].tolist()) for number in range(1, int(mask.max()) + 1)]


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word[1:]) for word in text.split())


def test_documents_are_numbered_and_their_first_tokens_are_not_learned() -> None:
    packer = Concatenation(5, 7, isolate=True)
    (first,) = packer.add([np.array([1, 2, 9]), np.array([3, 9])])
    assert first.tolist() == [[1, 2, 9, 3, 9], [1, 1, 1, 2, 2], [1, 2, 9, IGNORED, 9]]
    (second,) = packer.add([np.array([4, 5, 6, 7, 8, 9])])
    assert second.tolist()[1] == [1] * 5
    assert not len(packer.add([np.array([1, 1, 9])]))
    (last,) = packer.flush()
    # what is left of the divided document is number 1 here, and its first token, which follows nothing, keeps its label
    assert last.tolist() == [[9, 1, 1, 9, 7], [1, 2, 2, 2, 0], [9, IGNORED, 1, 9, IGNORED]]
    plain = Concatenation(5, 7, boundary_loss=False).add([np.array([1, 2, 9]), np.array([3, 9])])
    assert plain[0].tolist() == [[1, 2, 9, 3, 9], [1] * 5, [1, 2, 9, IGNORED, 9]]


def test_best_fit_by_hand() -> None:
    packer = BestFit(8, 7, open_rows=2)
    five, three, two, four, six = (np.full(length, length) for length in (5, 3, 2, 4, 6))
    assert not len(packer.add([five]))
    (full,) = packer.add([three])  # fills the open row
    assert full.tolist() == [[5] * 5 + [3] * 3, [1] * 5 + [2] * 3, [5] * 5 + [IGNORED] + [3] * 2]
    assert not len(packer.add([four, five]))
    (full,) = packer.add([three])  # fits the row of five better than the older row of four
    assert full[0].tolist() == [5] * 5 + [3] * 3
    assert not len(packer.add([six]))
    (given_out,) = packer.add([five])  # three rows would be open: the one with the least room goes
    assert given_out[0].tolist() == [6] * 6 + [7] * 2
    assert given_out[2].tolist() == [6] * 6 + [IGNORED] * 2
    left = packer.flush()
    assert [row[0].tolist() for row in left] == [[4] * 4 + [7] * 4, [5] * 5 + [7] * 3]
    assert not len(packer.flush()) and two is not None


@pytest.mark.parametrize("kind", ["document", "fit"])
def test_a_packer_goes_on_from_the_state_of_another(kind: str) -> None:
    rng = np.random.default_rng(0)
    made = [np.append(rng.integers(10, 50, rng.integers(1, 15)), 9).astype(np.int32) for _ in range(400)]

    def fresh() -> Any:
        return BestFit(16, 7, open_rows=9) if kind == "fit" else Concatenation(16, 7, isolate=True)

    whole = fresh()
    expected = np.concatenate([whole.add(made), whole.flush()])
    parts, packer = [], fresh()
    for start in range(0, 400, 37):
        other = fresh()
        other.restore({name: array.copy() for name, array in packer.state().items()})
        packer = other
        parts.append(packer.add(made[start : start + 37]))
    assert np.array_equal(np.concatenate([*parts, packer.flush()]), expected)
    assert len(expected) > 100


def test_fit_keeps_documents_whole_and_wastes_little(tokenizer: Path, tmp_path: Path) -> None:
    texts = random_texts(400, longest=31)
    summary, out = made(tmp_path, tokenizer, texts, seq_length=32, packing="fit")
    found = rows(out, "train")
    assert Counter(d for row in found for d in documents_of(row)) == Counter((*numbers(t), EOS) for t in texts)
    padding = sum(int((row["attention_mask"] == 0).sum()) for row in found) / (len(found) * 32)
    assert summary["train_padding_share"] == pytest.approx(padding, abs=1e-4)
    assert 0 < padding < 0.06, "one document a row would waste half"
    for row in found:
        assert (
            (row["labels"] == IGNORED)
            == ((row["attention_mask"] == 0) | (np.diff(row["attention_mask"], prepend=1) > 0))
        ).all()
    described = json.loads((out / "data.json").read_text())
    assert (described["packing"], described["isolates"]) == ("fit", True)


def test_rows_of_one_document_have_the_tokenizers_own_template(tmp_path: Path) -> None:
    directory = tmp_path / "bert"
    made_tokenizer = wordpiece()
    from tokenizers.processors import TemplateProcessing

    made_tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    theirs: transformers.PreTrainedTokenizerFast = save(made_tokenizer, directory)
    assert read_tokenizer(directory).prefix == (2,) and read_tokenizer(directory).suffix == (3,)
    texts = ["the dog playing", "dog", "unkindly , playing the dog"]
    summary, out = made(tmp_path, directory, texts, seq_length=12, packing="pad")
    expected = theirs(texts, padding="max_length", max_length=12)
    found = rows(out, "train")
    assert [row["input_ids"].tolist() for row in found] == expected["input_ids"]
    assert [row["attention_mask"].tolist() for row in found] == expected["attention_mask"]
    for row in found:
        assert np.array_equal(row["labels"], np.where(row["attention_mask"] == 1, row["input_ids"], IGNORED))
    assert summary["train_padding_share"] == pytest.approx(1 - sum(map(sum, expected["attention_mask"])) / 36, abs=1e-4)


@pytest.mark.parametrize("packing", ["concatenate", "document", "fit", "pad"])
@pytest.mark.parametrize("policy", ["split", "truncate", "drop"])
def test_long_documents_are_split_truncated_or_dropped_and_counted(
    packing: str, policy: str, tokenizer: Path, tmp_path: Path
) -> None:
    texts = [words(1, 2, 3), words(*range(20)), words(4, 5), words(*range(10, 17)), words(6)]
    summary, out = made(tmp_path, tokenizer, texts, seq_length=8, packing=packing, over_long=policy, min_length=2)
    found = rows(out, "train")
    tokens = Counter(int(t) for row in found for t in row["input_ids"][row["attention_mask"] > 0])
    whole = Counter(numbers(" ".join(texts[:4])))
    assert summary["documents_too_short"] == 1
    assert summary["documents_longer_than_a_sequence"] == 1
    cut = {"split": 0, "truncate": 13, "drop": 20}[policy]
    assert summary["documents_tokens_cut_off"] == cut
    assert summary["documents_dropped_over_long"] == (policy == "drop")
    assert sum(count for token, count in tokens.items() if token != EOS) == sum(whole.values()) - cut
    if policy == "split":
        assert {t: n for t, n in tokens.items() if t != EOS} == whole
    ends = {("pad", "split"): 6, ("concatenate", "drop"): 3}.get((packing, policy), 4 - (policy == "drop"))
    assert tokens[EOS] == ends  # with `pad`, every piece is a text of its own: 20 are pieces of 7, 7 and 6
    source = json.loads((out / "data.json").read_text())["sources"][0]
    assert source["tokens"]["train"] == summary["train_tokens"] == sum(tokens.values())
    assert source["documents"]["train"] == 4 - (policy == "drop")


def test_pieces_of_a_long_document_always_have_a_target() -> None:
    cutter = Cutter(Recipe(text=("x",), seq_length=5, packing="fit"), FACTS)
    for length in range(1, 40):
        cut = cutter.cut(np.arange(10, 10 + length))
        assert np.concatenate(cut.pieces).tolist() == [*range(10, 10 + length), 9]
        assert all(2 <= len(piece) <= 5 for piece in cut.pieces)
    padded = Cutter(Recipe(text=("x",), seq_length=6, packing="pad"), FACTS)
    assert [piece.tolist() for piece in padded.cut(np.arange(10, 14)).pieces] == [
        [2, 10, 11, 12, 3, 9],
        [2, 13, 3, 9],
    ]


def test_tokens_are_counted_by_source_and_split(tokenizer: Path, tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 2), ("held", 3)):
        (tmp_path / name).mkdir()
        for number, text in enumerate(random_texts(20, seed=seed)):
            (tmp_path / name / f"{number}.txt").write_text(text)
    recipe = Recipe(
        text=(str(tmp_path / "a"), str(tmp_path / "b")), validation_text=(str(tmp_path / "held"),), seq_length=8
    )
    summary = prepare(recipe, tokenizer, tmp_path / "out")
    sources = json.loads((tmp_path / "out" / "data.json").read_text())["sources"]
    for source, name in zip(sources, ("a", "b", "held"), strict=True):
        expected = sum(len(path.read_text().split()) + 1 for path in (tmp_path / name).iterdir())
        split = "validation" if name == "held" else "train"
        assert source["tokens"][split] == expected
        assert sum(source["tokens"].values()) == expected
        assert source["documents"][split] == 20
    assert summary["train_tokens"] == sources[0]["tokens"]["train"] + sources[1]["tokens"]["train"]
    assert summary["validation_tokens"] == sources[2]["tokens"]["validation"]


def test_max_tokens_ends_with_the_document_that_reaches_it(tokenizer: Path, tmp_path: Path) -> None:
    texts = random_texts(200)
    summary, _ = made(tmp_path, tokenizer, texts, seq_length=8, max_tokens=500)
    taken = summary["documents_train"]
    lengths = [len(text.split()) + 1 for text in texts]
    assert sum(lengths[: taken - 1]) < 500 <= sum(lengths[:taken])
    assert summary["train_tokens"] in (sum(lengths[:taken]), sum(lengths[:taken]) - 1)


def test_lengths_and_the_longest_documents_are_kept(tokenizer: Path, tmp_path: Path) -> None:
    texts = random_texts(100)
    _, out = made(tmp_path, tokenizer, texts, seq_length=8)
    lengths = json.loads((out / "data.json").read_text())["documents"]["lengths"]
    real = sorted((len(text.split()) for text in texts), reverse=True)
    assert [length for length, _ in lengths["longest"]] == real[:10]
    assert lengths["longest"][0][1].startswith("0/corpus.jsonl@")
    assert sum(lengths["bins"].values()) == lengths["documents"] == 100
    assert lengths["tokens"] == sum(real)
    edges = sorted(map(int, lengths["bins"]))
    for edge, following in zip(edges, [*edges[1:], 1 << 40], strict=True):
        assert lengths["bins"][str(edge)] == sum(edge <= length < following for length in real)


def test_recipes_that_cannot_be_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    for settings, message in (
        ({"packing": "fitt"}, "packing must be one of concatenate, document, fit, pad, found 'fitt'"),
        ({"over_long": "cut"}, "over_long must be one of"),
        ({"min_length": 0}, "min_length must be at least 1"),
        ({"max_tokens": 0}, "max_tokens must be at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            Recipe(text=("x",), seq_length=8, **settings)
    with pytest.raises(UserError, match="no room for text beside the special tokens"):
        narrow = Recipe(text=("stdlib",), seq_length=3, packing="pad", max_bytes=9999)
        prepare(narrow, _with_template(tokenizer), tmp_path / "out")


def _with_template(directory: Path) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.processors import TemplateProcessing

    loaded = Tokenizer.from_file(str(directory / "tokenizer.json"))
    loaded.post_processor = TemplateProcessing(
        single="<pad> $A <eos> <pad>", special_tokens=[("<pad>", PAD), ("<eos>", EOS)]
    )
    loaded.save(str(directory / "tokenizer.json"))
    return directory


def test_recipes_are_compared_with_what_data_was_made_with() -> None:
    recipe = Recipe(text=("a", "b"), seq_length=8, packing="fit")
    assert recipe.differences(recipe.to_dict()) == []
    assert (
        replace(recipe, shard_bytes=5, suffixes=(".x",), validation_fraction=0.02).differences(recipe.to_dict()) == []
    )
    changed = replace(recipe, text=("a",), over_long="drop", validation_fraction=0.1)
    assert changed.differences(recipe.to_dict()) == [
        "text was ['a', 'b'], now it is ['a']",
        "over_long was split, now it is drop",
        "validation_fraction was 0.02, now it is 0.1",
    ]
    first_format = {"text": ["a", "b"], "seq_length": 8, "validation_fraction": 0.02, "seed": 0, "field": "text"}
    assert recipe.differences(first_format) == ["packing was concatenate, now it is fit"]
