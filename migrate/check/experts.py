"""C431: the fields of a mixture of experts can belong to one model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrate.check.codes import finding
from migrate.check.subject import Subject
from migrate.check.tally import Tally
from migrate.report import Finding

FILE = "config.json"
COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k")


def experts_fit(subject: Subject, tally: Tally) -> Iterator[Finding]:
    """No more experts are chosen than there are, groups divide them, dense layers are layers."""
    config = subject.config
    field = next((name for name in COUNTS if config.get(name) is not None), None)
    if field is None:
        return
    experts = config[field]
    tally.add()
    if type(experts) is not int or experts < 1:
        yield _fault(f"{field} is {experts!r}, no positive whole number", field)
        return
    for name in CHOSEN:
        if (chosen := config.get(name)) is not None:
            tally.add()
            if type(chosen) is not int or not 1 <= chosen <= experts:
                yield _fault(f"{name} is {chosen!r}, of {experts} experts ({field})", name)
    yield from _groups(config, experts, field, tally)
    yield from _layers(config, tally)


def _groups(config: dict[str, Any], experts: int, field: str, tally: Tally) -> Iterator[Finding]:
    groups, kept = config.get("n_group"), config.get("topk_group")
    if type(groups) is int:
        tally.add()
        if groups < 1 or experts % groups:
            yield _fault(f"n_group {groups} does not divide {field} {experts}", "n_group")
        elif type(kept) is int and not 1 <= kept <= groups:
            yield _fault(f"topk_group is {kept}, of {groups} groups", "topk_group")
        elif type(kept) is int and type(chosen := config.get("num_experts_per_tok")) is int:
            tally.add()
            if chosen > kept * (experts // groups):
                yield _fault(
                    f"num_experts_per_tok {chosen} is more than the {kept * (experts // groups)} experts of "
                    f"{kept} groups (topk_group)", "topk_group",
                )  # fmt: skip


def _layers(config: dict[str, Any], tally: Tally) -> Iterator[Finding]:
    layers = config.get("num_hidden_layers")
    if type(layers) is not int:
        return
    dense = config.get("first_k_dense_replace")
    if dense is not None:
        tally.add()
        if type(dense) is not int or not 0 <= dense <= layers:
            yield _fault(f"first_k_dense_replace is {dense!r}, of {layers} layers", "first_k_dense_replace")
    listed = config.get("mlp_only_layers")
    if isinstance(listed, list):
        tally.add()
        if bad := [item for item in listed if type(item) is not int or not 0 <= item < layers]:
            yield _fault(f"mlp_only_layers names {bad[0]!r}, layers are 0 to {layers - 1}", "mlp_only_layers")
    step = config.get("decoder_sparse_step")
    if step is not None:
        tally.add()
        if type(step) is not int or step < 1:
            yield _fault(f"decoder_sparse_step is {step!r}", "decoder_sparse_step")


def _fault(message: str, field: str) -> Finding:
    return finding("C431", message, file=FILE, field=field)


ASSERTIONS = (experts_fit,)
