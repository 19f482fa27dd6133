"""`AutoModelForMaskedLM`: the right encoder for a checkpoint directory, and the registry behind it."""

from __future__ import annotations

from pathlib import Path

from mappings.errors import UserError
from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from mappings.parallel_options import ParallelOptions
from ms_models.families.bert import BertForMaskedLM
from ms_models.families.masked_lm import MaskedLM
from ms_models.families.roberta import RobertaForMaskedLM
from ms_models.families.xlm_roberta import XLMRobertaForMaskedLM
from ms_models.loading import load_weights, open_source
from ms_models.new_head import head_names, new_weights, origin_with_head, warn_of_new_head, without
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.place import Place

_models: dict[str, type[MaskedLM]] = {}


def register(model_type: str, model: type[MaskedLM]) -> None:
    """Makes `from_pretrained` build `model` for checkpoints of `model_type`.

    Raises:
        UserError: the type is taken; the message names who registered it.
    """
    if (owner := _models.get(model_type)) is not None:
        raise UserError(
            f"model_type {model_type!r} is already registered by {owner.__module__}.{owner.__qualname__}; "
            "give the new model another model_type"
        )
    _models[model_type] = model


def registered() -> list[str]:
    """Model types that `from_pretrained` can build, sorted."""
    return sorted(_models)


class AutoModelForMaskedLM:
    """Loads encoders with their head of masked words by the `model_type` of their `config.json`."""

    @staticmethod
    def from_pretrained(
        directory: str | Path, mesh: Mesh | None = None, options: ParallelOptions | None = None
    ) -> MaskedLM:
        """The model in a Hugging Face directory or a sharded checkpoint, as fp32, cut for this rank.

        A checkpoint without head (`BertModel`) gets a new one, with a warning that names its weights, as in
        transformers; the model's `new_weights` names them too, and `save_pretrained` writes a model with head.

        Args:
            directory: holds `config.json` and safetensors, or a `manifest.json` whose layout fits the mesh.
            mesh: this process's place; one process on its own where not given.
            options: how ranks work together where that leaves no trace in a checkpoint.

        Raises:
            UserError: unknown family, unsupported setting, layout that does not fit, or tensors that do not match.
        """
        path = Path(directory)
        mesh = mesh or Mesh.single()
        raw = read_config(path)
        family = family_for_config(raw, str(path / "config.json"))
        if (kind := _models.get(raw["model_type"])) is None:
            known = ", ".join(registered())
            raise UserError(
                f"{path}: no encoder is registered for model_type {raw['model_type']!r} (registered: {known})"
            )
        if set(family.headless) & set(raw.get("architectures") or ()):
            raw = {**raw, "architectures": [kind.__name__]}
        source = open_source(path, mesh, family, raw)
        missing = head_names(source)
        source = without(source, missing)
        place = Place(mesh, family, raw, options or ParallelOptions(), kind.spelling, source.stored.optional)
        model = kind(kind.read_config(raw, family), place)
        load_weights(model, source, new_weights(place, missing, model.config.initializer_range))
        if missing:
            warn_of_new_head(path, missing)
            model.new_weights = tuple(missing)
            model.origin = origin_with_head(source.origin, family, raw, missing)
        return model


register("bert", BertForMaskedLM)
register("roberta", RobertaForMaskedLM)
register("xlm-roberta", XLMRobertaForMaskedLM)
