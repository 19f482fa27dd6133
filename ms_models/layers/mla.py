"""Multi-head latent attention (DeepSeek-V2, 2024): keys and values of all heads come from one narrow latent vector.

Shape suffixes: B batch, S query positions, T key positions, H this rank's heads, M model width, Q width of the query
latent, C width of the key/value latent, N and R width of a head's parts without and with rotary position, E width of a
head's value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from mindspore import Tensor, nn, ops

from ms_models.layers.rotary import rotate

LATENT_EPS = 1e-6  # of the latents' norms, whatever rms_norm_eps says: DeepSeek's models leave it at the default


@dataclass(frozen=True)
class MLAConfig:
    """Sizes and settings of latent attention."""

    hidden: int
    heads: int
    """Of all ranks."""
    q_rank: int
    """Width of the query latent; 0: queries come from the hidden state directly."""
    kv_rank: int
    nope: int
    """Width of a head's query and key without position."""
    rope: int
    """Width of a head's query and key with rotary position; even."""
    value: int
    scale: float
    """Of the scores."""
    interleaved: bool
    """Whether neighbouring dimensions are the rotated pairs, instead of dimensions half the width apart."""
    bias: bool
    """Of the projections into the latents and of the output projection."""

    @property
    def key(self) -> int:
        """Width of a head's query and key."""
        return self.nope + self.rope


class MLASharding(Protocol):
    """What latent attention asks of a family's sharding."""

    def local(self, heads: int) -> int: ...
    def enter(self) -> nn.Cell: ...
    def norm(self, width: int, eps: float) -> nn.Cell: ...
    def replicated(self, inputs: int, outputs: int, *, bias: bool) -> nn.Cell: ...
    def attention_in(self, hidden: int, outputs: int, *, bias: bool) -> nn.Cell: ...
    def attention_out(self, inputs: int, hidden: int, *, bias: bool) -> nn.Cell: ...
    def core(self, scale: float | None) -> nn.Cell: ...


class LatentAttention(nn.Cell):
    """Self-attention through latents.

    Tensor parallelism cuts the heads. What is before them (projections into the latents, their norms, and the rotary
    part of the key, which all heads share) every rank has; it enters the heads through `enter`, so that its gradient is
    that of all ranks' heads.
    """

    def __init__(self, config: MLAConfig, sharding: MLASharding) -> None:
        super().__init__()
        self.config = config
        self.heads = sharding.local(config.heads)
        self.enter = sharding.enter()
        self.q_proj: Any = None
        self.q_a_proj: Any = None
        if config.q_rank:
            self.q_a_proj = sharding.replicated(config.hidden, config.q_rank, bias=config.bias)
            self.q_a_layernorm = sharding.norm(config.q_rank, LATENT_EPS)
            self.q_b_proj = sharding.attention_in(config.q_rank, config.heads * config.key, bias=False)
        else:
            self.q_proj = sharding.attention_in(config.hidden, config.heads * config.key, bias=False)
        self.kv_a_proj_with_mqa = sharding.replicated(config.hidden, config.kv_rank + config.rope, bias=config.bias)
        self.kv_a_layernorm = sharding.norm(config.kv_rank, LATENT_EPS)
        self.kv_b_proj = sharding.attention_in(config.kv_rank, config.heads * (config.nope + config.value), bias=False)
        self.o_proj = sharding.attention_out(config.heads * config.value, config.hidden, bias=config.bias)
        self.core = sharding.core(config.scale)

    def construct(
        self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor], bias: Tensor, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q_BSHD = self.queries(x_BSM, rotary)
        k_BTHD, v_BTHE = self.keys_and_values(x_BSM, rotary)
        if past is not None:
            k_BTHD = ops.concat((past[0], k_BTHD), 1)
            v_BTHE = ops.concat((past[1], v_BTHE), 1)
        return self.o_proj(self.core(q_BSHD, k_BTHD, v_BTHE, bias)), (k_BTHD, v_BTHE)

    def queries(self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """`[B, S, H, N + R]`."""
        config = self.config
        if self.q_a_proj is None:
            q = self.q_proj(self.enter(x_BSM))
        else:
            q = self.q_b_proj(self.enter(self.q_a_layernorm(self.q_a_proj(x_BSM))))
        q_BSHD = q.reshape(q.shape[0], q.shape[1], self.heads, config.key)
        q_BSHN, q_BSHR = ops.split(q_BSHD, (config.nope, config.rope), -1)
        return ops.concat((q_BSHN, self.turned(q_BSHR, rotary)), -1)

    def keys_and_values(self, x_BSM: Tensor, rotary: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """`[B, S, H, N + R]` and `[B, S, H, E]` of the new positions."""
        config = self.config
        c_BSC, k_BSR = ops.split(self.kv_a_proj_with_mqa(x_BSM), (config.kv_rank, config.rope), -1)
        # Side by side, so that latent and shared key enter with one collective.
        entered = self.enter(ops.concat((self.kv_a_layernorm(c_BSC), k_BSR), -1))
        c_BSC, k_BSR = ops.split(entered, (config.kv_rank, config.rope), -1)
        batch, length = c_BSC.shape[0], c_BSC.shape[1]
        kv = self.kv_b_proj(c_BSC).reshape(batch, length, self.heads, config.nope + config.value)
        k_BSHN, v_BSHE = ops.split(kv, (config.nope, config.value), -1)
        k_BS1R = self.turned(k_BSR.expand_dims(2), rotary)
        k_BSHR = ops.broadcast_to(k_BS1R, (batch, length, self.heads, config.rope))
        return ops.concat((k_BSHN, k_BSHR), -1), v_BSHE

    def turned(self, x_BSHR: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
        """Rotated by position. Pairs that were neighbours come out half the width apart, in queries and keys alike."""
        if self.config.interleaved:
            batch, length, heads, width = x_BSHR.shape
            pairs = x_BSHR.reshape(batch, length, heads, width // 2, 2).swapaxes(-1, -2)
            x_BSHR = pairs.reshape(batch, length, heads, width)
        return rotate(x_BSHR, rotary[0], rotary[1])
