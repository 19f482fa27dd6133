"""`LayerWidths`: the sizes of one kind of layer that activations and arithmetic depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mappings.errors import UserError
from mappings.families import Atom
from migrate.plan.shapes import ModelShapes

CHOSEN = ("num_experts_per_tok", "moe_topk", "moe_k", "experts_per_token")
"""Fields of `config.json` with the number of experts per token."""
GATED = 3
"""Matrices of a feed-forward with a gate."""


@dataclass(frozen=True)
class LayerWidths:
    """Of the whole layer, before any cut."""

    hidden: int
    heads: int
    key_heads: int
    query: int
    """Width of one head's queries and keys."""
    value: int
    """Width of one head's values."""
    latent: int
    """Latent attention: numbers per token of the latents, which every tensor-parallel rank has."""
    inner: int
    """Dense feed-forward, shared experts included: outputs of all its matrices that read the residual stream, and the
    inputs of the one that writes it."""
    gated: bool
    experts: int
    chosen: int
    """Experts per token."""
    expert_width: int

    def local_key_heads(self, tp: int) -> int:
        """Of one rank; at least one, ranks hold copies."""
        return max(1, self.key_heads // tp)

    @property
    def entered(self) -> int:
        """Numbers per token that attention's column-parallel layers read: those that cross tensor-parallel ranks."""
        return self.latent or self.hidden

    @classmethod
    def of(cls, shapes: ModelShapes, kind: int) -> LayerWidths:
        """Sizes of one kind of layer of a model."""
        dims, layer = shapes.dims, shapes.kind_of_layer.index(kind)
        atoms = [atom for atom in shapes.atoms.values() if atom.layer == layer]
        hidden = dims["hidden"]
        dense = [_inner(atom, hidden) for atom in atoms if _is_cut_matrix(atom) and atom.expert is None]
        expert = next((_inner(atom, hidden) for atom in atoms if _is_cut_matrix(atom) and atom.expert == 0), 0)
        is_latent = "kv_rank" in dims
        head = dims["nope"] + dims["rope"] if is_latent else dims["head_dim"]
        return cls(
            hidden=hidden,
            heads=dims["heads"],
            key_heads=dims["heads"] if is_latent else dims.get("kv_heads", dims["heads"]),
            query=head,
            value=dims["v_dim"] if is_latent else head,
            latent=(dims.get("q_rank", 0) + dims["kv_rank"] + dims["rope"]) if is_latent else 0,
            inner=sum(dense),
            gated=len(dense) % GATED == 0,
            experts=dims["experts"] if expert else 0,
            chosen=_chosen(shapes.config) if expert else 0,
            expert_width=expert,
        )


def _is_cut_matrix(atom: Atom) -> bool:
    return atom.layer_class == "ffn" and len(atom.shape) == 2 and atom.cut is not None


def _inner(atom: Atom, hidden: int) -> int:
    """The side of a feed-forward matrix that is not the model's width."""
    assert atom.cut is not None
    return atom.shape[atom.cut] if hidden in atom.shape else max(atom.shape)


def _chosen(config: Mapping[str, Any]) -> int:
    for name in CHOSEN:
        if isinstance(value := config.get(name), int):
            return value
    raise UserError(f"config.json: the number of experts per token is missing (one of {', '.join(CHOSEN)})")
