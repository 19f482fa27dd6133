"""A head for a checkpoint that has none: new weights, and what a save has to know of them.

transformers does the same: a model without heads loads into a class with one, whose weights are new, with a warning.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from mappings.cutting import cut
from mappings.families import Family
from mappings.layout import ParallelLayout
from mappings.rank_cuts import RankCuts
from ms_models.loading import Source
from ms_models.parallel.place import Place
from ms_models.saving import Origin

SEED = 0
logger = logging.getLogger(__name__)


def head_names(source: Source) -> list[str]:
    """Tensors of the head, if the checkpoint has none of them and all else; empty where it has a head."""
    spelled = source.family.spelling(source.config, source.stored.spelling)
    head = [one.name for one in spelled if not one.atoms[0].startswith(source.family.prefix)]
    head = [name for name in head if name in source.stored.tensors]
    return [] if any(name in source.entries for name in head) else head


def without(source: Source, names: list[str]) -> Source:
    """A source that is not expected to have some tensors."""
    kept = {name: held for name, held in source.stored.tensors.items() if name not in names}
    beside = tuple(without(one, names) for one in source.beside)
    return replace(source, stored=replace(source.stored, tensors=kept), beside=beside)


def new_weights(place: Place, names: list[str], deviation: float) -> dict[str, np.ndarray]:
    """This rank's pieces of new weights: normal ones around 0, biases 0, norms 1. The same numbers in every layout.

    Args:
        place: of the rank.
        names: of the tensors.
        deviation: `initializer_range` of `config.json`.
    """
    result = {}
    for name in names:
        held = place.held[name]
        whole = np.zeros(held.whole.shape, np.float32)
        if name.endswith("weight"):
            generator = np.random.default_rng([SEED, zlib.crc32(name.encode())])
            is_norm = held.layer_class == "norm"
            whole = np.ones_like(whole) if is_norm else generator.normal(0, deviation, whole.shape).astype(np.float32)
        result[name] = cut(whole, held.whole, held.arrangement)
    return result


def origin_with_head(origin: Origin, family: Family, config: Mapping[str, Any], names: list[str]) -> Origin:
    """How to save a model with a new head: every tensor under its name in the whole model, beside the embeddings.

    Args:
        origin: of the checkpoint without head.
        family: of the model.
        config: `config.json`, whose architecture has the head.
        names: of the head's tensors.
    """
    owner = {held.pieces[0].atom: name for name, held in origin.tensors.items()}
    beside = next(iter(owner.values()))
    wanted = {*owner, *names}
    cuts = RankCuts(family, config, ParallelLayout())
    tensors = {spelled.name: held for spelled, held in cuts.tensors(0) if spelled.name in wanted}
    sources = {name: owner.get(name, beside) for name in tensors}
    return Origin(
        origin.directory,
        {name: origin.files[source] for name, source in sources.items()},
        {name: origin.dtypes[source] for name, source in sources.items()},
        tensors,
        config,
    )


def warn_of_new_head(where: object, names: list[str]) -> None:
    """Says which weights say nothing yet."""
    logger.warning(
        "%s: has no head for masked words; these weights are new and must be trained: %s", where, ", ".join(names)
    )
