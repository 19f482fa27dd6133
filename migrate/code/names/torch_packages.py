"""Packages whose functions take torch tensors or need torch to be imported: what each is, and what to do without it."""

from __future__ import annotations

from collections.abc import Mapping

_OWN_SOURCE = "it is plain torch code: put its source into the repository and convert it along"
_LAYERS = "take the layers you use from its source into the repository and convert them along"
_LOOP = "write the training loop out; plain loops are converted"
_ATTENTION = "call scaled_dot_product_attention, which is converted to MindSpore's own kernels"

TORCH_PACKAGES: Mapping[str, str] = {
    # training frameworks
    "lightning": f"trainer for torch modules; {_LOOP}",
    "pytorch_lightning": f"trainer for torch modules; {_LOOP}",
    "lightning_fabric": f"devices and precision around a torch training loop; {_LOOP}",
    "accelerate": f"devices and processes around a torch training loop; {_LOOP}",
    "deepspeed": "ZeRO, pipelines and kernels for torch; remove it, and give the layout to `msmigrate train` instead",
    "fairscale": "sharding for torch; remove it, and give the layout to `msmigrate train` instead",
    "megatron": "tensor and pipeline parallel torch layers; use the layouts of `msmigrate train` instead",
    "colossalai": "parallel training for torch; use the layouts of `msmigrate train` instead",
    "fairseq": f"sequence models and trainer in torch; {_LAYERS}",
    "torchtune": f"recipes and models in torch; {_LAYERS}",
    "torchtitan": f"training of large models in torch; {_LAYERS}",
    "trl": f"preference and reinforcement learning trainers on torch; {_LOOP}",
    "ignite": f"training engine for torch; {_LOOP}",
    "horovod.torch": "gradient exchange for torch; use torch.distributed, which is converted",
    # kernels
    "flash_attn": f"CUDA attention kernels; {_ATTENTION}",
    "xformers": f"CUDA attention kernels and layers; {_ATTENTION}",
    "sageattention": f"quantized CUDA attention kernels; {_ATTENTION}",
    "triton": "compiler for CUDA kernels; write the computation with tensor operations",
    "apex": "fused CUDA layers and mixed precision; use torch.amp and torch.nn, which are converted",
    "transformer_engine": "fp8 layers on CUDA; use torch.nn layers, which are converted",
    "liger_kernel": "fused layers in Triton; use torch.nn layers, which are converted",
    "mamba_ssm": "CUDA kernels of state space models; write the recurrence with tensor operations",
    "causal_conv1d": "a CUDA kernel; use conv1d with padding on the left, which is converted",
    "bitsandbytes": "8-bit and 4-bit CUDA layers and optimizers; use torch.optim and torch.nn, which are converted",
    "torchao": "quantization of torch modules; remove it, there is no counterpart",
    "optimum": "quantization and export of torch models; remove it, there is no counterpart",
    "auto_gptq": "4-bit torch layers; load the weights that are not quantized",
    "awq": "4-bit torch layers; load the weights that are not quantized",
    # models and layers
    "peft": "adapters put into torch modules; write the LoRA layer out, it is converted",
    "loralib": f"LoRA layers in torch; {_OWN_SOURCE}",
    "timm": f"vision models in torch; {_LAYERS}",
    "diffusers": f"diffusion models in torch; {_LAYERS}",
    "sentence_transformers": f"encoders in torch; {_LAYERS}",
    "open_clip": f"image and text encoders in torch; {_LAYERS}",
    "vllm": "inference server for torch models; serve the exported checkpoint with it instead",
    "x_transformers": f"transformer layers in torch; {_OWN_SOURCE}",
    "rotary_embedding_torch": f"rotary embeddings in torch; {_OWN_SOURCE}",
    "local_attention": f"attention layers in torch; {_OWN_SOURCE}",
    "lion_pytorch": f"an optimizer in torch; {_OWN_SOURCE}",
    "ema_pytorch": f"averages of torch parameters; {_OWN_SOURCE}",
    "vector_quantize_pytorch": f"quantization layers in torch; {_OWN_SOURCE}",
    "torch_einops_utils": f"helpers around einops in torch; {_OWN_SOURCE}",
    "torchdiffeq": f"solvers in torch; {_OWN_SOURCE}",
    "gpytorch": f"Gaussian processes in torch; {_LAYERS}",
    "e3nn": f"equivariant layers in torch; {_LAYERS}",
    "torch_geometric": f"graph layers in torch; {_LAYERS}",
    "torch_scatter": "scatter kernels for torch; use index_add_ and scatter_reduce, which are converted",
    # tensors
    "opt_einsum": "order of contractions, on the tensors of the frameworks it knows; use torch.einsum",
    "torchmetrics": "metrics that hold torch tensors; compute them with tensor operations or numpy",
    "tensordict": "dictionaries of torch tensors; use plain dictionaries, or put its source into the repository",
    "kornia": f"image operations in torch; {_LAYERS}",
    "safetensors.torch": "reads and writes torch tensors; use mindspore.load_checkpoint with format='safetensors'",
    # torch's own family
    "torchvision": "images, data sets and models for torch; mindspore.dataset.vision has the transforms",
    "torchaudio": "audio for torch; use mindspore.dataset.audio",
    "torchtext": "text data sets for torch; use mindspore.dataset.text",
    "torchdata": "loaders for torch; use torch.utils.data, which is converted",
    "torch_xla": "torch on TPUs; remove it, MindSpore places tensors itself",
    "torch_npu": "torch on Ascend; remove it, MindSpore runs there without it",
    "intel_extension_for_pytorch": "torch on Intel devices; remove it",
}  # fmt: skip
"""By import name; the value says what the package is and what to do. `mappings/transformers.yaml` has transformers."""


def torch_package(module: str) -> str | None:
    """The entry of a dotted module name, `lightning` of `lightning.pytorch`; None if it needs no torch."""
    parts = module.split(".")
    return next((name for name in (parts[0], ".".join(parts[:2])) if name in TORCH_PACKAGES), None)
