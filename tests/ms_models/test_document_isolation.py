"""Documents that share a row, numbered in the attention mask: as if each were alone, by the answers of transformers."""

from __future__ import annotations

from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
import tiny_deepseek
import tiny_gpts
import tiny_models
import torch

import ms_models
from ms_models.data.fitting import BestFit
from ms_models.data.packing import Concatenation
from ms_models.families.causal_lm import CausalLM
from ms_models.layers.attention import causal_bias, document_positions

ms.runtime.launch_blocking()
LENGTHS = (3, 7, 4, 9, 2, 6)
ROW = 17
NEAR = 2e-5
"""Relative, in fp32: the same sums in another order, and rotations by other angles with the same differences."""
FAMILIES = {"llama": tiny_models, "mistral": tiny_models, "gemma2": tiny_models, "gpt2": tiny_gpts}
kept: list[CausalLM] = []  # a compiled graph is found by the number of its model, which must not be given again


def documents(vocabulary: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.integers(10, vocabulary, length).astype(np.int32) for length in LENGTHS]


def loss_and_gradients(
    model: CausalLM, rows: np.ndarray, *, jit: bool = False
) -> tuple[float, float, dict[str, np.ndarray]]:
    """Sum, count and gradients for rows `[R, 3, S]`."""
    ids, mask, labels = (ms.Tensor(np.ascontiguousarray(rows[:, part])) for part in range(3))
    parameters = list(model.trainable_params())

    def loss(ids: ms.Tensor, labels: ms.Tensor, mask: ms.Tensor) -> tuple[ms.Tensor, ms.Tensor]:
        return model.loss(ids, labels, mask)

    step = ms.value_and_grad(loss, None, parameters, has_aux=True)
    (total, count), gradients = (ms.jit(step) if jit else step)(ids, labels, mask)
    by_name = {p.name: g.asnumpy().copy() for p, g in zip(parameters, gradients, strict=True)}
    return float(total.asnumpy()), float(count.asnumpy()), by_name


def packed(made: list[np.ndarray], kind: type[Concatenation] | type[BestFit], **options: bool) -> np.ndarray:
    packer = kind(ROW, 5, **options)
    return np.concatenate([packer.add(made), packer.flush()])


@pytest.mark.parametrize(
    ("name", "jit"),
    [*((name, False) for name in FAMILIES), ("gpt2", True), pytest.param("llama", True, marks=pytest.mark.slow)],
)
def test_loss_and_gradients_are_those_of_separate_documents(name: str, jit: bool, tmp_path: Path) -> None:
    reference = tiny_models.build(FAMILIES[name].CONFIGS[name], tmp_path)
    made = documents(reference.config.vocab_size)
    expected = torch.zeros(())
    for document in made:
        ids = torch.tensor(document[None], dtype=torch.long)
        logits = reference(ids).logits
        expected = expected + torch.nn.functional.cross_entropy(logits[0, :-1], ids[0, 1:], reduction="sum")
    expected.backward()
    theirs = {key: parameter.grad.numpy() for key, parameter in reference.named_parameters()}
    model = ms_models.AutoModelForCausalLM.from_pretrained(tmp_path)
    kept.append(model)
    rows = packed(made, BestFit)
    assert len(rows) == 2 and rows[:, 1].max() == 4, "several documents share a row"
    total, count, ours = loss_and_gradients(model, rows, jit=jit)
    assert count == sum(LENGTHS) - len(LENGTHS)
    assert total == pytest.approx(expected.item(), rel=NEAR)
    assert max(tiny_models.relative(ours[key], theirs[key]) for key in theirs) < NEAR
    if not jit:
        again = rows.copy()
        again[:, 0] = np.where(rows[:, 1] == 0, 17, rows[:, 0])  # what stands at padding counts for nothing
        assert (again != rows).any()
        padded, _, _ = loss_and_gradients(model, again)
        assert padded == total
        # without numbers the same rows give another answer, by far
        rows[:, 1] = rows[:, 1] > 0
        _, _, mixed = loss_and_gradients(model, rows)
        assert max(tiny_models.relative(mixed[key], theirs[key]) for key in theirs) > 1000 * NEAR


@pytest.mark.slow
def test_further_tokens_are_not_guessed_across_documents(tmp_path: Path) -> None:
    config = next(iter(tiny_deepseek.CONFIGS.values()))
    tiny_deepseek.make_further_case(config, tmp_path)
    model = ms_models.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert len(model.body.further) > 0
    made = documents(101)
    alone = [Concatenation(len(document), 5, isolate=True).add([document]) for document in made]
    parts = [loss_and_gradients(model, rows) for rows in alone]
    rows = packed(made, BestFit)
    total, count, ours = loss_and_gradients(model, rows)
    assert count == sum(part[1] for part in parts)
    assert total == pytest.approx(sum(part[0] for part in parts), rel=NEAR)
    for name in ours:
        assert tiny_models.relative(ours[name], sum(part[2][name] for part in parts)) < NEAR, name


def test_a_piece_of_a_document_begins_a_row_as_a_document(tmp_path: Path) -> None:
    """Where a row border divides a document, its second piece is what it would be as a document of its own."""
    tiny_models.build("llama", tmp_path)
    model = ms_models.AutoModelForCausalLM.from_pretrained(tmp_path)
    made = documents(101)
    rows = packed(made, Concatenation, isolate=True)
    assert rows[:, 1].tolist()[0] == [1] * 3 + [2] * 7 + [3] * 4 + [4] * 3
    pieces = [made[0], made[1], made[2], made[3][:3], made[3][3:], made[4], made[5]]
    alone = [loss_and_gradients(model, Concatenation(len(piece), 5, isolate=True).add([piece])) for piece in pieces]
    total, count, _ = loss_and_gradients(model, rows)
    assert count == sum(part[1] for part in alone)
    assert total == pytest.approx(sum(part[0] for part in alone), rel=NEAR)


def test_masks_for_a_part_of_the_queries_and_positions_that_begin_anew() -> None:
    mask = np.array([[1, 1, 1, 2, 2, 3, 0, 0], [0, 0, 1, 1, 1, 1, 1, 1], [1, 2, 3, 4, 5, 6, 7, 8]], np.int32)
    whole = causal_bias(8, 8, ms.Tensor(mask)).asnumpy()
    query, key = np.ogrid[:8, :8]
    expected = (key <= query) & (mask[:, None] != 0) & ((mask[:, :, None] == mask[:, None]) | (mask[:, :, None] == 0))
    assert np.array_equal(whole[:, 0] == 0, expected)
    plain = (mask > 0).astype(np.int32)
    as_bool, as_int = (causal_bias(8, 8, ms.Tensor(kind)).asnumpy() for kind in (plain > 0, plain))
    assert np.array_equal(as_bool, as_int)
    # a context-parallel rank has some of the queries, a cached continuation the last ones
    some = np.array([0, 3, 5, 7])
    assert np.array_equal(causal_bias(4, 8, ms.Tensor(mask), ms.Tensor(some)).asnumpy(), whole[:, :, some])
    assert np.array_equal(causal_bias(3, 8, ms.Tensor(mask)).asnumpy(), whole[:, :, 5:])
    positions = document_positions(ms.Tensor(mask)).asnumpy()
    assert positions.tolist() == [[0, 1, 2, 0, 1, 0, 1, 2], [*range(8)], [0] * 8]
