"""Faults planted into a BERT: segments, padding, dropout, order of norms, its head; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("bert", {})
EMBEDDINGS, LAYER = "bert.embeddings", "bert.encoder.layer.0"
SELF = f"{LAYER}.attention.self"
HEAD = "cls.predictions.transform"
PLANTS = {
    "segments overlooked": Plant("F", f"{EMBEDDINGS}.token_type_embeddings", "token_type_ids not passed on"),
    "segments left out": Plant("F", f"{EMBEDDINGS}.LayerNorm", "a RoBERTa's embeddings", EMBEDDINGS),
    "padding not masked": Plant("F", SELF, "the mask lost on the way"),
    "mask polarity": Plant("F", SELF, "1 taken for padding"),
    "causal": Plant("F", SELF, "a decoder's mask"),
    "dropout left on": Plant(
        "F",
        EMBEDDINGS,
        "training mode while evaluating",
        (EMBEDDINGS, SELF, f"{LAYER}.attention.output", f"{LAYER}.output"),
    ),
    "eps": Plant("F", f"{EMBEDDINGS}.LayerNorm", "1e-5 for 1e-12", (f"{EMBEDDINGS}.LayerNorm", f"{HEAD}.LayerNorm")),
    "norm in front": Plant(
        "F",
        f"{LAYER}.attention.output.LayerNorm",
        "pre-norm for post-norm",
        (f"{LAYER}.attention.output", f"{LAYER}.output"),
    ),
    "gelu by tanh": Plant("F", f"{LAYER}.intermediate", "`gelu_new` for `gelu`"),
    "norm of the head left out": Plant("F", f"{HEAD}.LayerNorm", "one layer for three"),
    "bias of the decoder dropped": Plant("F", "logits", "cls.predictions.bias not added"),
    "labels shifted": Plant("L", "loss", "a decoder's loss"),
    "all positions counted": Plant("L", "loss", "mean over the batch"),
    "tied head detached": Plant(
        "G", f"{EMBEDDINGS}.word_embeddings.weight", "a copy of the table at loading", "logits"
    ),
}
BENIGN = ("nothing", "mask of -10000", "sum in another order", "queries in blocks")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    from mindspore import ops

    from ms_models.families.bert import model as bert
    from ms_models.families.masked_lm import MaskedLM
    from ms_models.layers.dropout import Dropout
    from ms_models.layers.layer_norm import LayerNorm

    embeddings, attention, bias = bert.BertEmbeddings.construct, bert.encoder_attention, bert.padding_bias
    loss = MaskedLM.loss

    def embedded(change: Any) -> Replacement:
        def construct(self: Any, ids: Any, segments: Any, positions: Any, seeds: Any) -> Any:
            words = self.word_embeddings(ids)
            of_segment = bert.look_up(self.token_type_embeddings, segments, self.segments)
            places = self.position_rows(self.count(ids))
            return self.dropout(self.LayerNorm(change(words, of_segment, places)), seeds)

        return bert.BertEmbeddings, "construct", construct

    def attend(bias_of: Any) -> Replacement:
        return bert, "padding_bias", bias_of

    def causal(mask: Any) -> Any:
        places = ops.arange(mask.shape[1])
        later = (places > places.expand_dims(-1)).astype(ms.float32) * -1e30
        return ops.maximum(bias(mask) + later, -1e30)

    def left_on(self: Any, x: Any, seeds: Any) -> Any:
        return x * (self.keep(x.shape, seeds).astype(x.dtype) * self.scale)

    def larger_eps(self: Any, x: Any) -> Any:
        centred = x - x.mean(-1, keep_dims=True)
        return centred * ops.rsqrt((centred * centred).mean(-1, keep_dims=True) + 1e-5) * self.weight + self.bias

    def norm_in_front(self: Any, y: Any, x: Any, seeds: Any) -> Any:
        return self.LayerNorm(self.dropout(self.dense(y), seeds)) + x

    def by_tanh(self: Any, x: Any) -> Any:
        return ops.gelu(self.dense(self.enter(x)), "tanh")

    def head_without_norm(self: Any, x: Any) -> Any:
        return self.activation(self.dense(x))

    def predicted(weight_of: Any, bias_of: Any) -> Replacement:
        return (
            bert.BertPredictions,
            "construct",
            lambda self, x, table: ops.dense(self.transform(x), weight_of(table), bias_of(self.bias)),
        )

    def shifted(self: Any, ids: Any, labels: Any, *rest: Any) -> Any:
        return loss(self, ids, ops.concat((labels[:, 1:], labels[:, :1]), 1), *rest)

    def all_counted(self: Any, ids: Any, labels: Any, *rest: Any) -> Any:
        total, _ = loss(self, ids, labels, *rest)
        return total, ops.ones((), ms.float32) * labels.size

    def in_blocks(q: Any, k: Any, v: Any, mask: Any, dropout: Any, seeds: Any) -> Any:
        cuts = range(0, q.shape[1], 16)
        return ops.concat([attention(q[:, cut : cut + 16], k, v, mask, dropout, seeds) for cut in cuts], 1)

    return {
        "nothing": (bert.BertEmbeddings, "construct", embeddings),
        "mask of -10000": attend(lambda mask: ops.maximum(bias(mask), -1e4)),
        "sum in another order": embedded(lambda words, segments, places: places + segments + words),
        "queries in blocks": (bert, "encoder_attention", in_blocks),
        "segments overlooked": (
            bert.BertEmbeddings,
            "construct",
            lambda self, ids, segments, *rest: embeddings(self, ids, None, *rest),
        ),
        "segments left out": embedded(lambda words, segments, places: words + places),
        "padding not masked": attend(lambda mask: bias(ops.ones_like(mask))),
        "mask polarity": attend(lambda mask: bias(1 - mask)),
        "causal": attend(causal),
        "dropout left on": (Dropout, "construct", left_on),
        "eps": (LayerNorm, "construct", larger_eps),
        "norm in front": (bert.BertOutput, "construct", norm_in_front),
        "gelu by tanh": (bert.BertIntermediate, "construct", by_tanh),
        "norm of the head left out": (bert.BertTransform, "construct", head_without_norm),
        "bias of the decoder dropped": predicted(lambda table: table, lambda row: row * 0.0),
        "labels shifted": (MaskedLM, "loss", shifted),
        "all positions counted": (MaskedLM, "loss", all_counted),
        "tied head detached": predicted(ops.stop_gradient, lambda row: row),
    }
