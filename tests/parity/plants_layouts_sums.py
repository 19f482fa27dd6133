"""Faults of several ranks in sums that are not taken, taken twice, or taken over the wrong ranks: `plants_layouts`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

DENSE, TIED, SPARSE, ONE_HEAD, BIASED = "llama", "qwen2", "qwen3_moe", "llama with one key head", "gpt2"
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"
EXPERTS = "model.layers.0.mlp.experts.down_proj"
PLANTS: dict[str, tuple[str, str, str, str]] = {
    "tied head summed at the last stage only": (TIED, "pp=2", "G", EMBEDDING),
    "tied head summed at the first stage only": (TIED, "pp=2", "G", EMBEDDING),
    "tied head summed twice over pp": (TIED, "pp=2", "G", EMBEDDING),
    "gradients not summed over cp": (DENSE, "cp=2", "G", HEAD),
    "mask of the first positions on every rank": (DENSE, "cp=2", "F", "model.layers.0.self_attn.o_proj"),
    "input of column-parallel layers without its sum": (DENSE, "tp=2", "G", NORM),
    "gradient of a sum over tp summed again": (DENSE, "tp=2", "G", HEAD),
    "copies of a key head not summed": (ONE_HEAD, "tp=2", "G", "model.layers.1.self_attn.v_proj.weight"),
    "row-parallel bias added on every rank": (BIASED, "tp=2", "F", "transformer.h.0.attn.c_proj"),
    "padded rows in the softmax": (DENSE, "tp=2", "L", "loss"),
    "gradients of experts averaged over ep": (SPARSE, "dp=2,ep=2", "G", EXPERTS),
    "gradients of experts summed over all of dp": (SPARSE, "dp=2,ep=2", "G", EXPERTS),
    "norm of this rank's rows": (DENSE, "dp=2,zero=2", "U", "gradient norm of step 1"),
    "gradients of layers not handed to their owners": (
        DENSE, "dp=2,zero=3", "G", "model.layers.1.mlp.down_proj.weight",
    ),
    "rows of the other replica gathered": (DENSE, "dp=2,zero=3", "F", "model.embed_tokens"),
    "only the last micro-batch kept": (DENSE, "dp=2", "G", HEAD),
    "replicas start from other weights": (DENSE, "dp=2", "W", NORM),
}  # fmt: skip


def replacements() -> dict[str, tuple[Any, str, Any]]:
    """(where, attribute, replacement) of every fault."""
    import mindspore as ms
    from mindspore import Tensor, ops

    from migrate.parity.layouts import rank
    from ms_models.families import decoder
    from ms_models.parallel import optimizer_sharding
    from ms_models.parallel.collectives import CopyToGroup, ReduceFromGroup
    from ms_models.parallel.linear import RowParallelLinear, SharedLinear, affine
    from ms_models.parallel.optimizer_sharding import Bucket
    from ms_models.parallel.parameter_sharding import ParameterSharding, _Passes
    from ms_models.parallel.vocabulary import VocabParallelCrossEntropy
    from ms_models.train.gradients import GradientBuffers

    finish, together, causal_bias, adder, load = (
        Bucket.finish, optimizer_sharding._together, decoder.causal_bias, GradientBuffers.adder, rank.load,
    )  # fmt: skip

    def at_stage(stage: int) -> Any:
        def summed(self: Any, kept: Tensor) -> Tensor:
            total = finish(self, kept)
            return total if self.sum_ends is None or self.together.ends.index == stage else self.sum_copies(kept)

        return summed

    def twice(self: Any, kept: Tensor) -> Tensor:
        total = finish(self, kept)
        return total if self.sum_ends is None else self.sum_ends(total)

    def first_positions(queries: int, total: int, mask: Any, positions: Any) -> Any:
        return causal_bias(queries, total, mask, ops.arange(queries))

    def bias_first(self: Any, x: Tensor) -> Tensor:
        y = self.multiply(x)
        return self.leave(y if self.bias is None else y + self.bias)

    def averaged(self: Any, kept: Tensor) -> Tensor:
        total = finish(self, kept)
        return total / 2 if ".experts." in self.names[0] else total

    def like_others(held: Any, *rest: Any) -> Any:
        return together(replace(held, is_expert=False), *rest)

    def own_norm(self: Any, reduced: Any) -> float:
        return float(sum(float(ops.square(kept).sum().asnumpy()) for kept in reduced) ** 0.5)

    def not_added(self: Any, x: Tensor, out: Tensor, dout: Tensor) -> tuple[Tensor]:
        self.home.take(self.parameters_)
        _, (dx, _) = self.differentiate(x, dout)
        self.home.release(self.parameters_)
        return (dx,)

    def other_rows(self: Any, parameters: Any) -> None:
        by_name = {parameter.name: parameter for parameter in parameters}
        for bucket, kept in zip(self.sharding.buckets, self.kept, strict=True):
            if bucket.names[0] in by_name:
                rows = ops.flip(bucket.gather(kept), (0,))
                for name, value in zip(bucket.names, bucket.split(rows), strict=True):
                    by_name[name].set_data(value.copy(), slice_shape=True)

    def overwriting(self: Any, parameters: Any) -> Any:
        add = adder(self, parameters)

        def cleared(gradients: Any) -> None:
            self.zero()
            add(gradients)

        return cleared

    def moved(job: Any, mesh: Any, options: Any) -> Any:
        model = load(job, mesh, options)
        norm = next(one for one in model.get_parameters() if one.name == NORM)
        norm.set_data(norm + 1e-3 * mesh.rank)
        return model

    return {
        "tied head summed at the last stage only": (Bucket, "finish", at_stage(1)),
        "tied head summed at the first stage only": (Bucket, "finish", at_stage(0)),
        "tied head summed twice over pp": (Bucket, "finish", twice),
        "gradients not summed over cp": (Bucket, "finish", lambda self, kept: kept),
        "mask of the first positions on every rank": (decoder, "causal_bias", first_positions),
        "input of column-parallel layers without its sum": (CopyToGroup, "bprop", lambda self, x, out, dout: (dout,)),
        "gradient of a sum over tp summed again": (
            ReduceFromGroup, "bprop", lambda self, x, out, dout: (self.all_reduce(dout),),
        ),
        "copies of a key head not summed": (
            SharedLinear, "construct", lambda self, x: affine(x, self.weight, self.bias),
        ),
        "row-parallel bias added on every rank": (RowParallelLinear, "construct", bias_first),
        "padded rows in the softmax": (
            VocabParallelCrossEntropy, "without_padding", lambda self, logits: logits.astype(ms.float32),
        ),
        "gradients of experts averaged over ep": (Bucket, "finish", averaged),
        "gradients of experts summed over all of dp": (optimizer_sharding, "_together", like_others),
        "norm of this rank's rows": (GradientBuffers, "norm", own_norm),
        "gradients of layers not handed to their owners": (_Passes, "bprop", not_added),
        "rows of the other replica gathered": (ParameterSharding, "take", other_rows),
        "only the last micro-batch kept": (GradientBuffers, "adder", overwriting),
        "replicas start from other weights": (rank, "load", moved),
    }  # fmt: skip
