"""The collators of ms_models/compat against those of transformers, with a real tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from mindspore import Tensor
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from ms_models.compat import collators, language_model_collators

SPECIAL = {"pad_token": "[PAD]", "mask_token": "[MASK]", "unk_token": "[UNK]", "cls_token": "[CLS]"}


def tokenizer(side: str = "right") -> Any:
    words = [*SPECIAL.values(), *(f"w{n}" for n in range(60))]
    model = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=model, padding_side=side, **SPECIAL)


def samples(*names: str) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    made = []
    for length in (5, 3, 7):
        ids = rng.integers(4, 60, length).tolist()
        sample = {"input_ids": ids, "attention_mask": [1] * length}
        extra = {"label": length % 3, "labels": ids[::-1], "short": ids[:2], "weight": 0.5 * length}
        made.append({**sample, **{name: extra[name] for name in names}})
    return made


def equal(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for name, value in theirs.items():
        found = ours[name].asnumpy() if isinstance(ours[name], Tensor) else ours[name]
        expected = value.numpy() if isinstance(value, torch.Tensor) else value
        assert np.asarray(found).dtype == np.asarray(expected).dtype, name
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize(
    ("name", "settings", "columns"),
    [
        ("DataCollatorWithPadding", {}, ["label"]),
        ("DataCollatorWithPadding", {"pad_to_multiple_of": 4}, ["label"]),
        ("DataCollatorWithPadding", {"padding": "max_length", "max_length": 9, "return_tensors": "np"}, []),
        ("DataCollatorForTokenClassification", {}, ["labels"]),
        ("DataCollatorForTokenClassification", {"label_pad_token_id": -1, "pad_to_multiple_of": 8}, ["labels"]),
        ("DataCollatorForSeq2Seq", {}, ["labels"]),
        ("DataCollatorForSeq2Seq", {"pad_to_multiple_of": 5}, ["labels"]),
        ("DataCollatorForLanguageModeling", {"mlm": False}, []),
        ("DataCollatorForLanguageModeling", {"mlm": False, "pad_to_multiple_of": 4, "return_tensors": "np"}, []),
        ("DataCollatorWithFlattening", {}, ["labels"]),
        ("DataCollatorWithFlattening", {"return_seq_idx": True, "return_flash_attn_kwargs": True}, []),
    ],
    ids=str,
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_batches(name: str, settings: dict[str, Any], columns: list[str], side: str) -> None:
    ours = getattr(collators, name, None) or getattr(language_model_collators, name)
    given = {} if name == "DataCollatorWithFlattening" else {"tokenizer": tokenizer(side)}
    theirs = getattr(transformers, name)(**given, **settings)
    equal(ours(**given, **settings)(samples(*columns)), theirs(samples(*columns)))


@pytest.mark.parametrize("columns", [{"label": 1}, {"label": 0.5}, {"label_ids": [1, 2]}, {"x": 1.5, "s": "text"}])
def test_default_collator(columns: dict[str, Any]) -> None:
    rows = [{"input_ids": [1, 2], **columns, "none": None}] * 2
    equal(collators.default_data_collator(rows), transformers.default_data_collator(rows))
    arrays = [{"input_ids": np.array([1, 2]), "pixels": np.ones((2, 2), np.float32)}] * 2
    equal(collators.default_data_collator(arrays), transformers.default_data_collator(arrays))
    tensors = collators.default_data_collator([{"x": Tensor([1.0, 2.0])}, {"x": Tensor([3.0, 4.0])}])
    assert tensors["x"].asnumpy().tolist() == [[1, 2], [3, 4]]


def test_rows_without_names_are_padded_by_the_pad_token() -> None:
    rows = [[5, 6, 7], [8]]
    theirs = transformers.DataCollatorForLanguageModeling(tokenizer(), mlm=False)
    equal(language_model_collators.DataCollatorForLanguageModeling(tokenizer(), mlm=False)(rows), theirs(rows))


def test_hidden_tokens_have_the_distribution_of_transformers() -> None:
    """15 % of the tokens are chosen; of those 80 % are hidden, 10 % become another token; special ones never are."""
    rows = [{"input_ids": [3, *np.random.default_rng(1).integers(4, 60, 400).tolist()]} for _ in range(40)]
    shares = {}
    for side, library in (("torch", transformers), ("mindspore", language_model_collators)):
        torch.manual_seed(0)
        collate = library.DataCollatorForLanguageModeling(tokenizer(), seed=3)
        batch = {name: np.asarray(value) for name, value in collate(rows).items()}
        chosen = batch["labels"] != -100
        assert not chosen[:, 0].any()
        original = np.array([row["input_ids"] for row in rows])
        assert (batch["labels"][chosen] == original[chosen]).all()
        assert (batch["input_ids"][~chosen] == original[~chosen]).all()
        hidden = batch["input_ids"][chosen] == 1
        kept = batch["input_ids"][chosen] == original[chosen]
        shares[side] = [chosen[:, 1:].mean(), hidden.mean(), kept.mean()]
    # 16000 draws for the first, 2400 for the others: four standard deviations of a share
    assert np.abs(np.subtract(*shares.values())).max() < 4 * np.sqrt(2 * 0.25 / 2400)
    np.testing.assert_allclose(shares["mindspore"], [0.15, 0.8, 0.1], atol=0.03)


def test_the_same_seed_hides_the_same_tokens() -> None:
    made = [language_model_collators.DataCollatorForLanguageModeling(tokenizer(), seed=s) for s in (1, 1, 2)]
    first, again, other = (collate(samples())["labels"].asnumpy() for collate in made)
    assert (first == again).all()
    assert (first != other).any()


def test_what_is_not_converted_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="whole_word_mask"):
        language_model_collators.DataCollatorForLanguageModeling(tokenizer(), whole_word_mask=True)
    plain = tokenizer()
    plain.mask_token = None
    with pytest.raises(ValueError, match="mask token"):
        language_model_collators.DataCollatorForLanguageModeling(plain)
