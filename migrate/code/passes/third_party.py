"""Imports that need torch although they do not spell it, and star imports of torch."""

from __future__ import annotations

import libcst as cst

from migrate.code.passes.base import Pass
from migrate.code.resolve import dotted

TORCH_PACKAGES = frozenset(
    {
        "torchvision", "torchaudio", "torchtext", "torchmetrics", "torchtune", "torchao", "torch_xla", "torch_npu",
        "lightning", "pytorch_lightning", "accelerate", "peft", "trl", "deepspeed", "fairscale", "apex", "timm",
        "xformers", "flash_attn", "bitsandbytes", "triton", "loralib", "x_transformers", "rotary_embedding_torch",
        "diffusers", "sentence_transformers", "einops", "safetensors.torch", "megatron", "colossalai", "fairseq",
    }
)  # fmt: skip
"""Import names of packages whose functions take torch tensors."""

# Of transformers, what works without torch installed.
_TRANSFORMERS_WITHOUT_TORCH = ("Tokenizer", "TokenizerFast", "Config", "Processor")


class ThirdParty(Pass):
    """Reports; changes nothing."""

    def enter(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Import):
            for alias in node.names:
                self._check(node, alias.evaluated_name)
        elif isinstance(node, cst.ImportFrom) and not node.relative:
            module = dotted(node.module) or ""
            if isinstance(node.names, cst.ImportStar):
                if module.split(".")[0] == "torch":
                    self.context.counts.add(module, converted=False)
                    self.context.report("M103", node, f"from {module} import *")
            elif module.split(".")[0] == "transformers":
                for alias in node.names:
                    if not alias.evaluated_name.endswith(_TRANSFORMERS_WITHOUT_TORCH):
                        self.context.report("M114", node, f"{module}.{alias.evaluated_name} works on torch tensors")
            else:
                self._check(node, module)

    def _check(self, node: cst.CSTNode, module: str) -> None:
        parts = module.split(".")
        if self.context.analysis.project.find(module, self.context.file.source):
            return
        for length in (1, 2):
            if ".".join(parts[:length]) in TORCH_PACKAGES:
                self.context.report("M114", node, f"{'.'.join(parts[:length])} works on torch tensors")
                return
