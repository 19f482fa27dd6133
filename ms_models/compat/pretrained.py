"""`PreTrainedModel`: a module with a configuration, initial values, tied weights, and directories to load and save."""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import math
import re
import sys
from pathlib import Path
from typing import Any, TypeVar

import mindspore as ms
from mindspore import nn

from .device import device as device_type
from .device import device_of
from .embedding_access import EmbeddingAccess
from .initial_weights import default_init, initialize
from .model_losses import LOSS_MAPPING
from .module import Module
from .padding_warning import PaddingWarning
from .pretrained_files import config_dtype, read_weights, weight_files, write_weights
from .pretrained_loading import cast, load_state
from .resized_embeddings import resize
from .tied_weights import tie, tied_names, without_aliases

logger = logging.getLogger(__name__)
Model = TypeVar("Model", bound="PreTrainedModel")

_HUB = (
    "cache_dir", "force_download", "local_files_only", "token", "revision", "use_safetensors", "low_cpu_mem_usage",
    "trust_remote_code", "device_map", "max_memory", "offload_folder", "code_revision", "weights_only", "proxies",
    "resume_download", "use_auth_token", "_fast_init", "mirror",
)  # fmt: skip
"""Options of `from_pretrained` about where files come from and where tensors go; they change no value."""
_REFUSED = (
    "quantization_config", "load_in_8bit", "load_in_4bit", "gguf_file", "from_tf", "from_flax", "tp_plan", "tp_size",
    "device_mesh", "distributed_config", "adapter_kwargs", "key_mapping", "subfolder", "use_kernels",
)  # fmt: skip


class PreTrainedModel(EmbeddingAccess, PaddingWarning, Module):
    """Base class of models; a class of the repository says what the modules are and how they are called."""

    config_class: Any = None
    base_model_prefix = ""
    main_input_name = "input_ids"
    supports_gradient_checkpointing = False
    _auto_class: str | None = None
    _tied_weights_keys: Any = None
    _keep_in_fp32_modules: Any = None
    _keep_in_fp32_modules_strict: Any = None
    _keys_to_ignore_on_load_missing: Any = None
    _keys_to_ignore_on_load_unexpected: Any = None
    _keys_to_ignore_on_save: Any = None
    _no_split_modules: Any = None
    _skip_keys_device_placement: Any = None
    _supports_sdpa = False
    _can_record_outputs: Any = None
    _new_generation_config: Any
    """Method of `GenerationMixin`, where a class has it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """A class without `config_class` has the one that its annotation of `config` names."""
        super().__init_subclass__(**kwargs)
        stated = inspect.get_annotations(cls).get("config")
        if isinstance(stated, str):
            stated = getattr(sys.modules[cls.__module__], stated, None)
        if "config_class" not in cls.__dict__ and isinstance(stated, type):
            cls.config_class = stated

    def __init__(self, config: Any, *inputs: Any, **kwargs: Any) -> None:
        super().__init__()
        if not hasattr(config, "to_dict") or not hasattr(config, "save_pretrained"):
            raise TypeError(f"{type(self).__name__} takes a configuration, not {type(config).__name__}")
        self.config = config
        self.name_or_path = getattr(config, "name_or_path", "")
        self.all_tied_weights_keys: dict[str, str] = {}
        self._choose_implementations()
        if self.can_generate():
            self.generation_config = self._new_generation_config()

    def _choose_implementations(self) -> None:
        """What attention and experts are computed with, where the configuration leaves it open."""
        asked = getattr(self.config, "_attn_implementation", None)
        if asked is None:
            self.config._attn_implementation_internal = "sdpa" if self._supports_sdpa else "eager"
        elif isinstance(asked, str) and re.search(r"flash|flex|paged", asked):
            raise ValueError(f"attn_implementation {asked!r} has no counterpart; use 'sdpa' or 'eager'")
        if getattr(self.config, "_experts_implementation", None) is None:
            self.config._experts_implementation_internal = "eager"

    def post_init(self) -> None:
        """Draws initial values and ties weights; models call it at the end of `__init__`."""
        self.all_tied_weights_keys = tied_names(self)
        for name, child in self.named_children():
            inner: dict[str, str] = getattr(child, "all_tied_weights_keys", {})
            self.all_tied_weights_keys |= {f"{name}.{k}": f"{name}.{v}" for k, v in inner.items()}
        for patterns in _INHERITED:
            found = set(getattr(self, patterns) or ())
            found.update(*(getattr(child, patterns, None) or () for child in self.children()))
            setattr(self, patterns, found)
        self.init_weights()
        if self.supports_gradient_checkpointing and getattr(self.config, "gradient_checkpointing", False):
            self.gradient_checkpointing_enable()
            del self.config.gradient_checkpointing

    # -- what the model is
    @property
    def base_model(self) -> Any:
        """The model without its head."""
        return getattr(self, self.base_model_prefix, self) if self.base_model_prefix else self

    @property
    def device(self) -> device_type:
        """Where the parameters are."""
        return device_of(next(self.parameters()))

    @property
    def dtype(self) -> Any:
        """Data type of the first floating point parameter."""
        return next(p.dtype for p in self.parameters() if p.is_floating_point())

    @property
    def loss_function(self) -> Any:
        """The loss of the kind of head that the class name says, for causal language models by default."""
        given = self.__dict__.get("_loss_function")
        if given is not None:
            return given
        kind = re.search("|".join(sorted(LOSS_MAPPING, key=len, reverse=True)), type(self).__name__)
        return LOSS_MAPPING[kind[0] if kind else "ForCausalLM"]

    @loss_function.setter
    def loss_function(self, value: Any) -> None:
        self._loss_function = value

    @classmethod
    def can_generate(cls) -> bool:
        """Whether the class has `generate`."""
        return any(base.__name__ == "GenerationMixin" for base in cls.__mro__)

    def num_parameters(self, only_trainable: bool = False, exclude_embeddings: bool = False) -> int:
        """Number of elements of all parameters, shared ones once."""
        left_out = set()
        if exclude_embeddings:
            left_out = {f"{name}.weight" for name, cell in self.named_modules() if hasattr(cell, "num_embeddings")}
        return sum(
            math.prod(parameter.shape)
            for name, parameter in self.named_parameters()
            if name not in left_out and (parameter.requires_grad or not only_trainable)
        )

    # -- initial values and tied weights
    def init_weights(self) -> None:
        """Initial values of everything that has none yet, then the ties."""
        initialize(self)
        self.tie_weights(recompute_mapping=False)

    def _init_weights(self, module: nn.Cell) -> None:
        """Initial values of one module; a model overrides this to draw others."""
        default_init(self.config, module)

    def tie_weights(self, missing_keys: Any = None, recompute_mapping: bool = True) -> None:
        """Let the names that belong together mean one parameter."""
        if recompute_mapping:
            self.all_tied_weights_keys = {
                f"{path}.{name}" if path else name: f"{path}.{source}" if path else source
                for path, cell in self.named_modules()
                if isinstance(cell, PreTrainedModel)
                for name, source in tied_names(cell).items()
            }
        for target, source in self.all_tied_weights_keys.items():
            tie(self, target, source)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> Any:
        """Change the number of tokens of the embeddings, the head and the configuration; gives the embeddings.

        Optimizers have to be made afterwards: the parameters are new ones.
        """
        embedding = self.get_input_embeddings()
        if new_num_tokens is None and pad_to_multiple_of is None:
            return embedding
        embedding = resize(self, new_num_tokens, pad_to_multiple_of, mean_resizing)
        self.config.get_text_config().vocab_size = self.vocab_size = embedding.weight.shape[0]
        self.tie_weights()
        return embedding

    # -- activation checkpointing
    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Any = None, **kwargs: Any) -> None:
        """Set the switches of the modules that have one; MindSpore keeps the activations, the values are the same.

        Raises:
            ValueError: the model has no such switch.
        """
        if not self.supports_gradient_checkpointing:
            raise ValueError(f"{type(self).__name__} does not support activation checkpointing.")
        self._switch_checkpointing(True)

    def gradient_checkpointing_disable(self) -> None:
        """Take the switches back."""
        if self.supports_gradient_checkpointing:
            self._switch_checkpointing(False)

    activation_checkpointing_enable = gradient_checkpointing_enable
    activation_checkpointing_disable = gradient_checkpointing_disable

    def _switch_checkpointing(self, enable: bool) -> None:
        own = getattr(self, "_set_gradient_checkpointing", None)
        if own is not None and "value" in inspect.signature(own).parameters:
            self.apply(functools.partial(own, value=enable))  # as models of the time before transformers 4.35 have it
            return
        for cell in self.modules():
            if hasattr(cell, "gradient_checkpointing"):
                cell._gradient_checkpointing_func = _called
                cell.gradient_checkpointing = enable

    @property
    def is_gradient_checkpointing(self) -> bool:
        """Whether any switch is set."""
        return any(getattr(cell, "gradient_checkpointing", False) for cell in self.modules())

    is_activation_checkpointing = is_gradient_checkpointing

    def enable_input_require_grads(self) -> None:
        """Nothing to do: MindSpore's gradients are taken of parameters, not of inputs."""

    disable_input_require_grads = enable_input_require_grads

    # -- directories
    @classmethod
    def from_pretrained(
        cls: type[Model],
        pretrained_model_name_or_path: Any,
        *model_args: Any,
        config: Any = None,
        ignore_mismatched_sizes: bool = False,
        output_loading_info: bool = False,
        state_dict: dict[str, Any] | None = None,
        variant: str | None = None,
        dtype: Any = None,
        torch_dtype: Any = None,
        **kwargs: Any,
    ) -> Any:
        """A model with the weights of a directory that transformers or `save_pretrained` wrote, in evaluation mode.

        Args:
            pretrained_model_name_or_path: directory with `config.json` and weights, in one file or in shards.
            model_args: further arguments of the class.
            config: a configuration instead of the directory's.
            ignore_mismatched_sizes: keep the initial values where the shapes differ, instead of an error.
            output_loading_info: also return the names that were missing, unexpected or of another shape.
            state_dict: weights by name instead of the directory's.
            variant: `fp16` for `model.fp16.safetensors`.
            dtype: data type of the parameters; by default the one of `config.json`, else that of the weights.
            torch_dtype: older name of `dtype`.
            kwargs: values of the configuration, and arguments of the class.

        Raises:
            OSError: there is no such directory, or no weights in it.
            RuntimeError: shapes differ.
            ValueError: an option that has no counterpart.
        """
        refused = [name for name in _REFUSED if kwargs.pop(name, None)]
        if refused:
            raise ValueError(f"from_pretrained({refused[0]}=...) has no counterpart on MindSpore; leave it away")
        generation_config = kwargs.pop("generation_config", None)
        attention = kwargs.pop("attn_implementation", None)
        kwargs = {name: value for name, value in kwargs.items() if name not in _HUB}
        directory = Path(pretrained_model_name_or_path) if pretrained_model_name_or_path is not None else None
        if directory is not None and state_dict is None:
            files = weight_files(directory, variant)  # says what is wrong before anything else is done
        if config is None or isinstance(config, str | Path):
            if cls.config_class is None:
                raise ValueError(f"{cls.__name__} has no config_class; pass config= to from_pretrained")
            config, kwargs = cls.config_class.from_pretrained(config or directory, return_unused_kwargs=True, **kwargs)
        else:
            config = copy.deepcopy(config)
        if attention is not None:
            config._attn_implementation = attention
        state = dict(state_dict) if state_dict is not None else read_weights(files)
        config.name_or_path = str(pretrained_model_name_or_path or "")
        model = cls(config, *model_args, **kwargs)
        cast(model, _dtype(dtype or torch_dtype or "auto", config, state))
        info = load_state(model, state, ignore_mismatched_sizes, str(pretrained_model_name_or_path))
        model.eval()
        if cls.can_generate() and directory is not None:
            model._load_generation_config(directory, generation_config)
        return (model, info) if output_loading_info else model

    def save_pretrained(
        self,
        save_directory: Any,
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        push_to_hub: bool = False,
        max_shard_size: int | str = "50GB",
        variant: str | None = None,
        **kwargs: Any,
    ) -> None:
        """Write configuration and weights so that `from_pretrained`, here and in transformers, reads them.

        Args:
            save_directory: made if it does not exist.
            is_main_process: whether this process writes; of several ranks only one should.
            state_dict: weights by name instead of the model's.
            push_to_hub: refused; upload the directory afterwards.
            max_shard_size: of one file, as a number of bytes or e.g. `5GB`.
            variant: `fp16` for `model.fp16.safetensors`.
            kwargs: taken and left out of account: the format is always safetensors.

        Raises:
            ValueError: `push_to_hub`.
        """
        if push_to_hub:
            raise ValueError("save_pretrained(push_to_hub=True) is not done; upload the directory with `hf upload`")
        if not is_main_process:
            return
        directory = Path(save_directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.config.dtype = config_dtype(self.dtype)
        self.config.architectures = [type(self).__name__]
        self.config.save_pretrained(directory)
        if self.can_generate():
            self.generation_config.save_pretrained(directory)
        state = dict(self.state_dict() if state_dict is None else state_dict)
        state = {name: state[name] for name in state if name not in (self._keys_to_ignore_on_save or ())}
        write_weights(directory, without_aliases(self, state), max_shard_size, variant)

    def register_for_auto_class(self, auto_class: str = "AutoModel") -> None:
        """Nothing to do: the Auto classes of transformers make torch models."""


_INHERITED = (
    "_keep_in_fp32_modules", "_keep_in_fp32_modules_strict", "_no_split_modules", "_skip_keys_device_placement",
    "_keys_to_ignore_on_load_unexpected", "_keys_to_ignore_on_load_missing", "_keys_to_ignore_on_save",
)  # fmt: skip
"""Properties of a model that the ones inside it add to."""


def _called(function: Any, *args: Any, **kwargs: Any) -> Any:
    """What transformers calls a layer with under activation checkpointing."""
    return function(*args, **kwargs)


def _dtype(asked: Any, config: Any, state: dict[str, Any]) -> Any:
    """MindSpore's type for the `dtype` of `from_pretrained`."""
    if asked == "auto":
        asked = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
        if asked is None:
            floating = [value.dtype for value in state.values() if value.is_floating_point()]
            asked = floating[0] if floating else ms.float32
    return getattr(ms, config_dtype(asked))
