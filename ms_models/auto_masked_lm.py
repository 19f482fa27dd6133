"""`AutoModelForMaskedLM`: the right encoder for a checkpoint directory, and the registry behind it."""

from __future__ import annotations

from pathlib import Path

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
from ms_models.registry import Registry

_models: Registry[MaskedLM] = Registry("encoder")
register, registered = _models.register, _models.registered


class AutoModelForMaskedLM:
    """Loads encoders with their head of masked words by the `model_type` of their `config.json`."""

    @staticmethod
    def from_pretrained(
        directory: str | Path,
        mesh: Mesh | None = None,
        options: ParallelOptions | None = None,
        *,
        compute: str = "fp32",
        recut: bool = False,
    ) -> MaskedLM:
        """The model in a Hugging Face directory or a sharded checkpoint, as fp32, cut for this rank.

        A checkpoint without head (`BertModel`) gets a new one, with a warning that names its weights, as in
        transformers; the model's `new_weights` names them too, and `save_pretrained` writes a model with head.

        Args:
            directory: holds `config.json` and safetensors, or a `manifest.json` whose layout fits the mesh.
            mesh: this process's place; one process on its own where not given.
            options: how ranks work together where that leaves no trace in a checkpoint.
            compute: number format of matrix products and of what is between layers, see `Place.compute`.
            recut: whether a checkpoint of another layout is put together from the files of all its ranks.

        Raises:
            UserError: unknown family, unsupported setting, layout that does not fit, or tensors that do not match.
        """
        path = Path(directory)
        mesh = mesh or Mesh.single()
        raw = read_config(path)
        family = family_for_config(raw, str(path / "config.json"))
        kind = _models.find(path, raw)
        if set(family.headless) & set(raw.get("architectures") or ()):
            raw = {**raw, "architectures": [kind.__name__]}
        source = open_source(path, mesh, family, raw, recut=recut)
        missing = head_names(source)
        source = without(source, missing)
        place = Place(mesh, family, raw, options or ParallelOptions(), kind.spelling, source.stored.optional, compute)
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
