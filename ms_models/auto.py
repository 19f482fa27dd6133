"""`AutoModelForCausalLM`: the right model for a checkpoint directory, and the registry behind it."""

from __future__ import annotations

from pathlib import Path

from mappings.families import family_for_config
from mappings.formats.hf_directory import read_config
from mappings.parallel_options import ParallelOptions
from ms_models.families.causal_lm import CausalLM
from ms_models.families.deepseek_v3 import DeepseekV3ForCausalLM
from ms_models.families.gemma2 import Gemma2ForCausalLM
from ms_models.families.gemma3_text import Gemma3ForCausalLM
from ms_models.families.glm4 import Glm4ForCausalLM
from ms_models.families.gpt2 import GPT2LMHeadModel
from ms_models.families.gpt_neox import GPTNeoXForCausalLM
from ms_models.families.llama import LlamaForCausalLM
from ms_models.families.mistral import MistralForCausalLM
from ms_models.families.mixtral import MixtralForCausalLM
from ms_models.families.phi3 import Phi3ForCausalLM
from ms_models.families.qwen2 import Qwen2ForCausalLM
from ms_models.families.qwen3 import Qwen3ForCausalLM
from ms_models.families.qwen3_moe import Qwen3MoeForCausalLM
from ms_models.loading import load_weights, open_source
from ms_models.parallel.mesh import Mesh
from ms_models.parallel.place import Place
from ms_models.registry import Registry

_models: Registry[CausalLM] = Registry("model")
register, registered = _models.register, _models.registered


class AutoModelForCausalLM:
    """Loads language models by the `model_type` of their `config.json`."""

    @staticmethod
    def from_pretrained(
        directory: str | Path,
        mesh: Mesh | None = None,
        options: ParallelOptions | None = None,
        *,
        compute: str = "fp32",
        recut: bool = False,
    ) -> CausalLM:
        """The model in a Hugging Face directory or a sharded checkpoint, as fp32, cut for this rank.

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
        source = open_source(path, mesh, family, raw, recut=recut)
        place = Place(mesh, family, raw, options or ParallelOptions(), kind.spelling, source.stored.optional, compute)
        model = kind(kind.read_config(raw, family), place)
        load_weights(model, source)
        return model


register("deepseek_v3", DeepseekV3ForCausalLM)
register("gemma2", Gemma2ForCausalLM)
register("gemma3_text", Gemma3ForCausalLM)
register("glm4", Glm4ForCausalLM)
register("gpt2", GPT2LMHeadModel)
register("gpt_neox", GPTNeoXForCausalLM)
register("kimi_k2", DeepseekV3ForCausalLM)
register("llama", LlamaForCausalLM)
register("mistral", MistralForCausalLM)
register("mixtral", MixtralForCausalLM)
register("phi3", Phi3ForCausalLM)
register("qwen2", Qwen2ForCausalLM)
register("qwen3", Qwen3ForCausalLM)
register("qwen3_moe", Qwen3MoeForCausalLM)
