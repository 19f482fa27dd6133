"""The load path of a run is complete: every tensor of the model is there in the right shape. No tensor is read."""

from __future__ import annotations

from dataclasses import replace

from mappings.completeness import mismatches
from mappings.errors import UserError
from mappings.formats.hf_directory import read_tensors
from mappings.formats.manifest import NAME as MANIFEST
from mappings.formats.manifest import Manifest
from mappings.formats.safetensors import read_header
from mappings.stored import recognise
from ms_models.train.config import RunConfig
from ms_models.train.launch.checks.model import Model
from ms_models.train.task import MASKED, task_of


def check_weights(config: RunConfig, model: Model) -> str:
    """The weights that ranks will load are complete.

    Returns:
        What is there, and which tensors a model without head will get anew.

    Raises:
        UserError: one line with everything that is missing, unexpected, misshapen or unreadable.
    """
    directory = model.directory
    if (directory / MANIFEST).is_file():
        return _check_shards(config, model)
    entries = read_tensors(directory)
    raw, new = model.config, ""
    headless = set(model.family.headless) & set(raw.get("architectures") or ())
    if headless and task_of(model.family) == MASKED:
        # The runner gives such a model a head, see `ms_models.new_head`.
        raw = {**raw, "architectures": []}
    stored = recognise(model.family, raw, {name: entry.shape for name, entry in entries.items()}, directory)
    if headless:
        named = model.family.spelling(raw, stored.spelling)
        head = {one.name for one in named if not one.atoms[0].startswith(model.family.prefix)} & set(stored.tensors)
        if not any(name in entries for name in head):
            kept = {name: held for name, held in stored.tensors.items() if name not in head}
            stored, new = replace(stored, tensors=kept), f"; a new head of {len(head)} tensors"
    if problems := mismatches(entries, stored, model.family, raw):
        raise UserError(f"{directory}: {'; '.join(problems)}")
    return f"{len(stored.tensors)} tensors of {model.parameters:,} parameters are there, in the right shape{new}"


def _check_shards(config: RunConfig, model: Model) -> str:
    directory, manifest = model.directory, Manifest.read(model.directory)
    if manifest.family != model.family.name:
        raise UserError(f"{directory}: manifest says family {manifest.family!r}, config.json {model.family.name!r}")
    for axis in ("tp", "pp", "vpp", "ep", "vocab_multiple"):  # dp and cp replicate weights, so they are free
        have, want = getattr(manifest.layout, axis), getattr(config.layout, axis)
        if have != want:
            raise UserError(
                f"{directory}: sharded for {axis}={have}, the run has {axis}={want}; "
                "start from the Hugging Face directory, or convert it for this layout"
            )
    layout, count = manifest.layout, 0
    for rank in sorted({layout.weight_owner(rank) for rank in range(layout.world_size)}):
        name = manifest.weights.get(rank)
        if name is None or name not in manifest.files:
            raise UserError(f"{directory / MANIFEST}: names no weights for rank {rank}")
        path = directory / name
        size = path.stat().st_size if path.is_file() else None
        if size != manifest.files[name].bytes:
            what = "missing" if size is None else f"{size} bytes, the manifest says {manifest.files[name].bytes}"
            raise UserError(f"{path}: {what}; restore or convert it again")
        entries = {entry.name: entry for entry in read_header(path)[0]}
        shapes = {one: entry.shape for one, entry in entries.items()}
        stored = recognise(model.family, model.config, shapes, path, layout, rank)
        if problems := mismatches(entries, stored, model.family, model.config):
            raise UserError(f"{path}: {'; '.join(problems)}")
        count += len(entries)
    return f"{count} tensors in the files of layout {layout} are there, in the right shape"
