"""Which tokens are hidden, by what, and that it repeats itself; words against the tokenizers' own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mappings.errors import UserError
from ms_models.data.chinese_words import ChineseWords
from ms_models.data.masking import TokenMasking
from ms_models.data.masking_vocabulary import MaskingVocabulary
from ms_models.data.packing import IGNORED
from ms_models.data.records import VALIDATION

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, CLS, SEP, MASK = 0, 2, 3, 4
WORDS = ["play", "##ing", "##ed", "un", "##kind", "##ly", "the", "dog", ",", "中", "国", "人", "民", "很", "好"]
SENTENCE = "the dog playing unkindly , playing"
ROWS, LENGTH = 400, 60


def wordpiece() -> Tokenizer:
    made = Tokenizer(models.WordPiece({t: i for i, t in enumerate(SPECIAL + WORDS)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return made


def byte_level() -> Tokenizer:
    letters = sorted({*pre_tokenizers.ByteLevel.alphabet()})
    merges = [("d", "o"), ("do", "g"), ("Ġ", "p"), ("Ġp", "l"), ("Ġ", "do")]
    vocab = {token: i for i, token in enumerate([*SPECIAL, *letters, *("".join(pair) for pair in merges)])}
    made = Tokenizer(models.BPE(vocab, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def unigram() -> Tokenizer:
    pieces = ["▁the", "▁dog", "▁play", "ing", "▁un", "kind", "ly", "▁", "▁,", *"abcdefghijklmnopqrstuvwxyz"]
    made = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(SPECIAL + pieces)], unk_id=1))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    return made


KINDS: dict[str, Callable[[], Tokenizer]] = {"wordpiece": wordpiece, "byte level": byte_level, "unigram": unigram}


def save(made: Tokenizer, directory: Path) -> transformers.PreTrainedTokenizerFast:
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)
    wrapped.save_pretrained(directory)
    return wrapped


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wordpiece")
    save(wordpiece(), path)
    return path


@pytest.fixture(scope="module")
def vocabulary(directory: Path) -> MaskingVocabulary:
    return MaskingVocabulary.read(directory)


def make_batch() -> dict[str, np.ndarray]:
    """Rows of words between special tokens, some padded, one without labels."""
    rng = np.random.default_rng(0)
    ids = rng.integers(len(SPECIAL), len(SPECIAL) + len(WORDS), (ROWS, LENGTH)).astype(np.int32)
    ids[:, 0], ids[:, 30], ids[:, -1] = CLS, SEP, SEP
    mask = np.ones_like(ids)
    mask[: ROWS // 4, 45:] = 0
    ids[mask == 0] = PAD
    labels = np.where(mask == 1, ids, IGNORED).astype(np.int32)
    labels[-1] = IGNORED
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


BATCH = make_batch()
POSITIONS = np.arange(ROWS) + 7000


def share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(part[whole].mean())


@pytest.mark.parametrize("whole_words", [False, True])
def test_shares_are_those_asked_for(vocabulary: MaskingVocabulary, whole_words: bool) -> None:
    before = {name: array.copy() for name, array in BATCH.items()}
    found = TokenMasking(vocabulary, seed=3, whole_words=whole_words)(BATCH, POSITIONS)
    assert all(np.array_equal(BATCH[name], before[name]) for name in before)
    assert all(found[name].dtype == np.int32 and found[name].shape == (ROWS, LENGTH) for name in before)
    ids, masked, labels = BATCH["input_ids"], found["input_ids"], found["labels"]
    may = (BATCH["labels"] != IGNORED) & (ids >= len(SPECIAL))
    chosen = labels != IGNORED
    assert not chosen[~may].any()
    assert np.array_equal(labels[chosen], ids[chosen])
    assert np.array_equal(masked[~chosen], ids[~chosen])
    assert np.array_equal(found["attention_mask"], BATCH["attention_mask"])
    # 17,000 tokens and 2,600 chosen ones: a standard deviation is 0.003 and 0.008, of whole words somewhat more
    assert share(chosen, may) == pytest.approx(0.15, abs=0.02)
    assert share(masked == MASK, chosen) == pytest.approx(0.8, abs=0.04)
    replaced = chosen & (masked != MASK) & (masked != ids)
    # of the replacements, one of 15 ordinary tokens happens to be the token itself
    assert share(replaced, chosen) == pytest.approx(0.1 * 14 / 15, abs=0.03)
    assert set(masked[replaced].tolist()) == set(range(len(SPECIAL), vocabulary.size))


def test_a_row_depends_on_seed_and_position_alone(vocabulary: MaskingVocabulary) -> None:
    masking = TokenMasking(vocabulary, seed=3)
    whole = masking(BATCH, POSITIONS)
    some = np.array([17, 5, 300])
    part = masking({name: array[some] for name, array in BATCH.items()}, POSITIONS[some])
    assert all(np.array_equal(part[name], whole[name][some]) for name in whole)

    def hidden(made: TokenMasking, positions: np.ndarray = POSITIONS, **options: Any) -> np.ndarray:
        return made(BATCH, positions, **options)["labels"] != IGNORED

    right = hidden(masking)
    for other in (
        hidden(replace(masking, seed=4)),
        hidden(masking, POSITIONS + ROWS),  # the next epoch
        hidden(masking, split=VALIDATION),
    ):
        both = (right & other).sum() / right.sum()
        assert both == pytest.approx(0.15, abs=0.03)  # as many as by chance


def test_rows_of_a_batch_are_hidden_independently(vocabulary: MaskingVocabulary) -> None:
    row = {name: np.repeat(array[-2:-1], ROWS, 0) for name, array in BATCH.items()}
    labels = TokenMasking(vocabulary, seed=3)(row, POSITIONS)["labels"]
    assert len({tuple(line) for line in labels.tolist()}) == ROWS


def test_words_are_hidden_whole(vocabulary: MaskingVocabulary) -> None:
    first = vocabulary.first_of_word(BATCH["input_ids"])
    found = TokenMasking(vocabulary, seed=3, whole_words=True)(BATCH, POSITIONS)
    chosen = found["labels"] != IGNORED
    same = chosen == np.take_along_axis(chosen, first, 1)
    labelled = BATCH["labels"] != IGNORED
    assert same[labelled].all()
    longer = labelled & (first != np.arange(LENGTH))
    assert (chosen & longer).sum() > 300
    alone = TokenMasking(vocabulary, seed=3)(BATCH, POSITIONS)["labels"] != IGNORED
    assert (alone != np.take_along_axis(alone, first, 1))[labelled].sum() > 300  # without it, words are split


@pytest.mark.parametrize("kind", KINDS)
def test_words_are_those_of_the_tokenizer(kind: str, tmp_path: Path) -> None:
    made = save(KINDS[kind](), tmp_path)
    vocabulary = MaskingVocabulary.read(tmp_path)
    assert vocabulary.size == len(made) and vocabulary.mask_id == made.mask_token_id
    assert vocabulary.special == set(made.all_special_ids)
    encoded = made(SENTENCE, add_special_tokens=False)
    ids = np.array([[CLS, *encoded["input_ids"], SEP, encoded["input_ids"][0]]])
    words = [None, *encoded.word_ids(), None, "next"]
    expected = [words.index(word) if word is not None else at for at, word in enumerate(words)]
    assert vocabulary.first_of_word(ids)[0].tolist() == expected
    assert len(set(expected)) < len(expected)  # some words have several tokens


def test_chinese_characters_are_words_of_their_own_without_a_list(vocabulary: MaskingVocabulary) -> None:
    ids = np.array([[SPECIAL.index("[CLS]"), *(len(SPECIAL) + WORDS.index(c) for c in "中国人很好")]])
    assert vocabulary.first_of_word(ids)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_chinese_words_come_from_a_list(directory: Path, tmp_path: Path) -> None:
    lexicon = tmp_path / "words.txt"
    lexicon.write_text("中国 500 ns\n中国人\n人民\t3\ndog\n好\n", encoding="utf-8")
    vocabulary = MaskingVocabulary.read(directory, lexicon)
    tokens = [*"中国人民", "the", *"国人", "[SEP]", *"中国", "play", "##ing", *"很好"]
    every = SPECIAL + WORDS
    ids = np.array([[every.index(token) for token in tokens]])
    # the longest match takes three characters, so that the fourth is left alone; nothing is matched over other tokens
    expected = [0, 0, 0, 3, 4, 5, 6, 7, 8, 8, 10, 10, 12, 13]
    assert vocabulary.first_of_word(ids)[0].tolist() == expected
    assert ChineseWords(frozenset({"人民"})).goes_on([*"中人民", "", "民"]).tolist() == [
        False,
        False,
        True,
        False,
        False,
    ]


def test_what_cannot_be_masked_is_refused(vocabulary: MaskingVocabulary, directory: Path, tmp_path: Path) -> None:
    wrongs: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rate": 0.0}, "rate must be above 0 and at most 1, found 0.0"),
        ({"mask_share": 1.5}, "mask_share must be between 0 and 1, found 1.5"),
        ({"random_share": 0.3}, "must add up to at most 1"),
    )
    for wrong, message in wrongs:
        with pytest.raises(UserError, match=message):
            TokenMasking(vocabulary, seed=0, **wrong)
    assert TokenMasking(vocabulary, seed=0, mask_share=0.9).rate == 0.15
    with pytest.raises(UserError, match="whole_words needs a tokenizer that marks words"):
        TokenMasking(replace(vocabulary, word_mark=""), seed=0, whole_words=True)
    outside = {**BATCH, "input_ids": BATCH["input_ids"] + 100}
    with pytest.raises(UserError, match="outside of the tokenizer's vocabulary of 20"):
        TokenMasking(vocabulary, seed=0)(outside, POSITIONS)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((directory / name).read_bytes())
    settings = json.loads((directory / "tokenizer_config.json").read_text())
    for token, message in ((None, "names no mask_token"), ("<m>", "mask_token is '<m>', which tokenizer.json")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({**settings, "mask_token": token}))
        with pytest.raises(UserError, match=message):
            MaskingVocabulary.read(tmp_path)
    (tmp_path / "empty.txt").write_text("dog\n好\n", encoding="utf-8")
    with pytest.raises(UserError, match="no Chinese word of two characters"):
        ChineseWords.read(tmp_path / "empty.txt")
    with pytest.raises(UserError, match="not a list of words"):
        ChineseWords.read(tmp_path / "none.txt")
