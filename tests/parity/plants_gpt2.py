"""Faults planted into a GPT-2: learned positions, fused projections, layer norms, dropout; see `plants`."""

from __future__ import annotations

from typing import Any

from plants import THE_MODEL, Plant, Replacement

MODEL: tuple[str, dict[str, Any]] = ("gpt2", {})
HEADS, WIDTH, FUSED = 6, 42, 3 * 42  # see `parity_models`
BLOCK = "transformer.h.0"
NORM, OUT = f"{BLOCK}.ln_1", f"{BLOCK}.attn.c_proj"
ATTENTION, NORMS = f"{BLOCK}.attn", (NORM, f"{BLOCK}.ln_2", "transformer.ln_f")
PLANTS = {
    "bias of the norm dropped": Plant("F", NORM, "an RMS norm in its place, or `bias=False`", NORMS),
    "unbiased variance": Plant("F", NORM, "`var` divides by n - 1 in PyTorch", NORMS),
    "eps": Plant("F", NORM, "1e-6 for 1e-5", NORMS[:2]),
    "eps outside of the root": Plant("F", NORM, "added to the deviation", NORMS[:2]),
    "gelu by erf": Plant("F", f"{BLOCK}.mlp.c_proj", "`gelu` for `gelu_new`", f"{BLOCK}.mlp"),
    "Conv1D not transposed": Plant("F", OUT, "[in, out] multiplied as [out, in]; square, so that it fits"),
    "order of q, k, v": Plant("F", OUT, "k, q, v", ATTENTION),
    "q, k, v head by head": Plant("F", OUT, "as GPT-NeoX has them", ATTENTION),
    "scale left out": Plant("F", OUT, "scores not divided by the root", ATTENTION),
    "bias of q, k, v dropped": Plant("F", f"{BLOCK}.attn.c_attn", "`bias=False` by default"),
    "positions count tokens": Plant("F", "transformer.wpe", "positions from the mask, under left padding"),
    "positions behind an offset": Plant("F", "transformer.wpe", "two rows in front, as OPT has them"),
    "positions added twice": Plant("F", NORM, "in the embedding and in the model", THE_MODEL),
    "norm behind the branch": Plant("F", NORM, "post-norm for pre-norm", BLOCK),
    "residual from the norm": Plant("F", f"{BLOCK}.ln_2", "the sum takes the normed input", BLOCK),
    "final norm left out": Plant("F", "transformer.ln_f", "the last norm left out"),
    "dropout of the embedding left on": Plant("F", NORM, "training mode while evaluating", THE_MODEL),
    "dropout of the attention left on": Plant("F", OUT, "its rate passed whatever the mode", ATTENTION),
    "head not tied": Plant("F", "logits", "a head of its own, never loaded"),
    "tied head detached": Plant("G", "transformer.wte.weight", "a copy of the table at loading", "logits"),
    "halved gradient of the table": Plant(
        "G", "transformer.wte.weight", "tied gradients averaged", ("logits", "transformer.wte")
    ),
    "positions not trained": Plant("G", "transformer.wpe.weight", "a buffer instead of a parameter", "transformer.wpe"),
}
BENIGN = ("nothing", "mask of -10000", "q, k and v one by one", "loss in chunks", "layer norm in two passes")


def replacements() -> dict[str, Replacement | list[Replacement]]:
    """How each is planted."""
    import mindspore as ms
    import numpy as np
    from mindspore import ops

    from ms_models.families import decoder
    from ms_models.families.gpt2 import model as gpt2
    from ms_models.layers import attention as scores
    from ms_models.layers import core
    from ms_models.layers.layer_norm import LayerNorm
    from ms_models.parallel.conv1d import ColumnParallelConv1D, RowParallelConv1D
    from ms_models.parallel.tables import SharedTable
    from ms_models.parallel.vocabulary import VocabParallelCrossEntropy

    norm, attention, bias, model = LayerNorm.construct, core.grouped_attention, decoder.causal_bias, gpt2.GPT2Model
    through, embed = model.through, model.embed
    first_in, table = ColumnParallelConv1D.construct, SharedTable.construct
    losses, positions = VocabParallelCrossEntropy.construct, gpt2.document_positions

    def normed(change: Any) -> Replacement:
        def construct(self: Any, x: Any) -> Any:
            centred = x - x.mean(-1, keep_dims=True)
            return change(centred, (centred * centred).mean(-1, keep_dims=True)) * self.weight + self.bias

        return LayerNorm, "construct", construct

    def transposed(self: Any, x: Any) -> Any:
        weight = self.weight.T if self.weight.shape[0] == self.weight.shape[1] else self.weight
        return ops.matmul(x, weight)

    def attend(cut: Any) -> Replacement:
        def construct(self: Any, x: Any, bias: Any, past: Any = None) -> Any:
            q, k, v = (part.reshape(*x.shape[:2], HEADS, -1) for part in cut(self.c_attn(x)))
            return self.c_proj(self.core(q, k, v, bias)), (k, v)

        return gpt2.GPT2Attention, "construct", construct

    def k_first(y: Any) -> Any:
        k, q, v = ops.split(y, WIDTH, -1)
        return q, k, v

    def by_heads(y: Any) -> Any:
        return ops.split(y.reshape(*y.shape[:2], HEADS, -1), WIDTH // HEADS, -1)

    def one_by_one(self: Any, x: Any) -> Any:
        parts = [slice(start, start + WIDTH) for start in range(0, self.weight.shape[1], WIDTH)]
        return ops.concat([ops.matmul(x, self.weight[:, part]) + self.bias[part] for part in parts], -1)

    def no_bias(self: Any, x: Any) -> Any:
        return ops.matmul(x, self.weight) if self.weight.shape[1] == FUSED else first_in(self, x)

    def counted(mask: Any) -> Any:
        return ops.maximum(ops.cumsum(mask, 1) - 1, 0).astype(ms.int32)

    def through_changed(change: Any) -> Replacement:
        def run(self: Any, x: Any, chunk: int, length: int, mask: Any = None, ids: Any = None, past: Any = None) -> Any:
            return through(self, change(self, x), chunk, length, mask, ids, past)

        return model, "through", run

    def again(self: Any, x: Any) -> Any:
        return x + table(self.position_table, ops.arange(x.shape[1]).expand_dims(0))

    def dropped(x: Any) -> Any:
        return x * ms.Tensor((np.random.default_rng(0).random(x.shape) > 0.1) / 0.9, ms.float32)

    def post_norm(self: Any, x: Any, rotary: Any, mask: Any, past: Any = None) -> Any:
        y, present = self.attn(x, mask, past)
        x = self.ln_1(x + y)
        return self.ln_2(x + self.mlp(x)), present

    def from_norm(self: Any, x: Any, rotary: Any, mask: Any, past: Any = None) -> Any:
        x = self.ln_1(x)
        y, present = self.attn(x, mask, past)
        x = x + y
        return x + self.mlp(self.ln_2(x)), present

    def own_head(self: Any, x: Any) -> Any:
        rows = np.random.default_rng(0).standard_normal((131, WIDTH)) * 0.02
        return ops.matmul(x, ms.Tensor(rows.T, ms.float32))

    def half(weight: Any) -> Any:
        return weight * 0.5 + ops.stop_gradient(weight) * 0.5

    def in_chunks(self: Any, logits: Any, labels: Any) -> Any:
        cuts = range(0, logits.shape[0], 17)
        return ops.concat([losses(self, logits[cut : cut + 17], labels[cut : cut + 17]) for cut in cuts])

    def with_table(change: Any) -> Replacement:
        return (
            gpt2.GPT2LMHeadModel,
            "head",
            lambda self, x: ops.dense(x, change(self.body.embed_tokens.weight)),
        )

    softmax = scores.softmax
    return {
        "nothing": (model, "through", through),
        "mask of -10000": (decoder, "causal_bias", lambda q, k, m, p=None: ops.maximum(bias(q, k, m), -1e4)),
        "q, k and v one by one": (ColumnParallelConv1D, "construct", one_by_one),
        "loss in chunks": (VocabParallelCrossEntropy, "construct", in_chunks),
        "layer norm in two passes": normed(lambda x, v: x * ops.rsqrt(v + 1e-5)),
        "bias of the norm dropped": (LayerNorm, "construct", lambda self, x: norm(self, x) - self.bias),
        "unbiased variance": normed(lambda x, v: x * ops.rsqrt(v * (WIDTH / (WIDTH - 1)) + 1e-5)),
        "eps": normed(lambda x, v: x * ops.rsqrt(v + 1e-6)),
        "eps outside of the root": normed(lambda x, v: x / (ops.sqrt(v) + 1e-5)),
        "gelu by erf": (gpt2.GPT2MLP, "construct", lambda self, x: self.c_proj(ops.gelu(self.c_fc(x), "none"))),
        "Conv1D not transposed": (RowParallelConv1D, "multiply", transposed),
        "order of q, k, v": attend(k_first),
        "q, k, v head by head": attend(by_heads),
        "scale left out": (core, "grouped_attention", lambda q, k, v, b, *rest: attention(q, k, v, b, 1.0)),
        "bias of q, k, v dropped": (ColumnParallelConv1D, "construct", no_bias),
        "positions count tokens": (gpt2, "document_positions", counted),
        "positions behind an offset": (gpt2, "document_positions", lambda mask: positions(mask) + 2),
        "positions added twice": through_changed(again),
        "norm behind the branch": (gpt2.GPT2Block, "construct", post_norm),
        "residual from the norm": (gpt2.GPT2Block, "construct", from_norm),
        "final norm left out": (model, "finish", lambda self, x: x),
        "dropout of the embedding left on": through_changed(lambda self, x: dropped(x)),
        "dropout of the attention left on": (scores, "softmax", lambda x: dropped(softmax(x))),
        "head not tied": (gpt2.GPT2LMHeadModel, "head", own_head),
        "tied head detached": with_table(ops.stop_gradient),
        "halved gradient of the table": [
            with_table(half),
            (model, "embed", lambda self, ids: half(embed(self, ids))),
        ],
        "positions not trained": (
            SharedTable,
            "construct",
            lambda self, ids: ops.stop_gradient(table(self, ids)),
        ),
    }
