"""The run configuration of MindSpore Transformers 2.x that goes on with an exported checkpoint.

Code-verified, not measured: MindSpore Transformers needs an NPU. Keys are checked against its own dataclasses, see
`mindformers_keys.yaml`; values are those of the run. What only the user knows is written as `REPLACE_...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from mappings.families import Family
from migrate.export.keys import keys

NAME = "mindspore_transformers.yaml"
DATA = "REPLACE_WITH_PATH_OF_MEGATRON_DATA_WITHOUT_ENDING"
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
SCHEDULES = {None: "1f1b", "1f1b": "1f1b", "gpipe": "gpipe", "interleaved": "interleaved_1f1b"}
NOT_OF_THE_MODEL = ("transformers_version", "torch_dtype", "dtype", "_name_or_path", "auto_map", "quantization_config")
YARN = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")
RUN: dict[str, dict[str, Any]] = {
    "train": {"steps": 1000, "micro_batch_size": 1, "accumulation": 1, "seed": 42},
    "layout": {"tp": 1, "cp": 1, "dp": 1, "pp": 1, "vpp": 1, "ep": 1, "zero": 0},
    "parallel": {"context": "ring", "schedule": None},
    "optimizer": {"lr": 1e-5, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip_norm": 1.0},
    "schedule": {"kind": "cosine", "warmup_steps": 0, "min_lr_ratio": 0.1, "decay_fraction": 0.1},
    "checkpoint": {"every": 0, "keep": 2, "asynchronous": True},
    "precision": {"compute": "bf16"},
}
"""Values where there was no run."""


class RunYaml:
    """Makes the configuration.

    Args:
        family: of the model.
        raw: its `config.json`.
        config: of the run, as plain data; empty where there was none.
        seq_length: tokens per sequence; None takes the model's positions, with a note.
        checkpoint: directory of the exported checkpoint.
        has_states: whether optimizer states are in it.

    Attributes:
        notes: what of the run has no counterpart there.
    """

    def __init__(
        self,
        family: Family,
        raw: Mapping[str, Any],
        config: Mapping[str, Any],
        *,
        seq_length: int | None,
        checkpoint: Path,
        has_states: bool,
    ) -> None:
        self.family, self.raw = family, raw
        self.run = {name: {**values, **(config.get(name) or {})} for name, values in RUN.items()}
        self.checkpoint, self.has_states = checkpoint, has_states
        self.notes: list[str] = []
        self.seq_length = seq_length or raw.get("max_position_embeddings") or 4096
        if seq_length is None:
            self.notes.append(f"the sequence length is not known; {self.seq_length} is written")

    def body(self) -> dict[str, Any]:
        """The configuration as plain data."""
        train, layout = self.run["train"], self.run["layout"]
        global_batch = train["micro_batch_size"] * train["accumulation"] * layout["dp"]
        model_type = self.raw.get("model_type")
        if model_type not in keys()["model_types"]:
            known = ", ".join(keys()["model_types"])
            self.notes.append(f"model_type {model_type!r} has no PyNative training model there; known are {known}")
        return {
            "checkpoint": self._checkpoint(),
            "training": {
                "steps": train["steps"],
                "local_batch_size": train["micro_batch_size"],
                "global_batch_size": global_batch,
                "max_norm": self.run["optimizer"]["clip_norm"],
                "seed": train["seed"],
            },
            "optimizer": {
                "type": "AdamW",
                "betas": list(self.run["optimizer"]["betas"]),
                "eps": self.run["optimizer"]["eps"],
                "weight_decay": self.run["optimizer"]["weight_decay"],
            },
            "lr_scheduler": self._schedule(),
            "parallelism": self._parallelism(),
            "train_dataset": self._data(global_batch * train["steps"]),
            "model": self._model(),
        }

    def text(self) -> str:
        """The file."""
        body = self.body()
        head = [
            "Run configuration for MindSpore Transformers 2.1 (PyNative trainer), written by `msmigrate export`.",
            "Replace what begins with REPLACE_. Weights: checkpoint.load_path.",
            *self.notes,
        ]
        return "".join(f"# {line}\n" for line in head) + yaml.safe_dump(body, sort_keys=False, width=110)

    def _checkpoint(self) -> dict[str, Any]:
        section = self.run["checkpoint"]
        return {
            "load_path": str(self.checkpoint),
            "no_load_optim": not self.has_states,
            "enable_save": True,
            "save_path": "./output/checkpoint",
            "save_max": section["keep"],
            "save_interleaved_steps": section["every"] or self.run["train"]["steps"],
            "async_save": section["asynchronous"],
            "prefix": self.family.name,
        }

    def _schedule(self) -> dict[str, Any]:
        schedule, steps, peak = self.run["schedule"], self.run["train"]["steps"], self.run["optimizer"]["lr"]
        common = {"learning_rate": peak, "warmup_steps": schedule["warmup_steps"], "total_steps": steps}
        end = {"lr_end": peak * schedule["min_lr_ratio"]}
        match schedule["kind"]:
            case "constant":
                return {"type": "ConstantWarmUpLR", **common}
            case "linear":
                return {"type": "PolynomialWithWarmUpLR", **common, **end, "power": 1.0}
            case "wsd":
                decay = round(steps * (1 - schedule["decay_fraction"]))
                return {"type": "WarmUpStableDecayLR", **common, **end, "decay_start_steps": decay}
            case "cosine":
                return {"type": "CosineWithWarmUpLR", **common, **end}
        self.notes.append(f"schedule.kind {schedule['kind']!r} has no counterpart; a cosine is written")
        return {"type": "CosineWithWarmUpLR", **common, **end}

    def _parallelism(self) -> dict[str, Any]:
        layout, parallel = self.run["layout"], self.run["parallel"]
        if parallel["schedule"] not in SCHEDULES:
            self.notes.append(f"parallel.schedule {parallel['schedule']!r} has no counterpart; 1f1b is written")
        schedule = SCHEDULES.get(parallel["schedule"], "1f1b")
        if layout["vpp"] > 1:
            schedule = "interleaved_1f1b"
        return {
            "data_parallel_shard": -1,
            "tensor_parallel": layout["tp"],
            "sequence_parallel": layout["tp"] > 1,  # its tensor parallelism insists on it
            "context_parallel": layout["cp"],
            "context_parallel_method": "ulysses" if parallel["context"] == "ulysses" else "colossal",
            "pipeline_parallel": layout["pp"],
            "pipeline_parallel_schedule": schedule,
            "pipeline_parallel_interleave_num": layout["vpp"],
            "pipeline_parallel_microbatch_size": self.run["train"]["micro_batch_size"],
            "expert_parallel": layout["ep"],
        }

    def _data(self, samples: int) -> dict[str, Any]:
        eos, pad = self.raw.get("eos_token_id"), self.raw.get("pad_token_id")
        return {
            "dataloader": {
                "type": "BlendedMegatronDatasetDataLoader",
                "datasets_type": "GPTDataset",
                "sizes": [samples, 0, 0],
                "config": {
                    "seq_length": self.seq_length,
                    "split": "1, 0, 0",
                    "eod_mask_loss": False,
                    "reset_position_ids": False,
                    "create_attention_mask": False,
                    "reset_attention_mask": False,
                    "create_compressed_eod_mask": False,
                    "eod_pad_length": 128,
                    "eod": eos[0] if isinstance(eos, list) else eos if eos is not None else "REPLACE_WITH_EOS_ID",
                    "pad": -1 if pad is None else pad,
                    "data_path": ["1", DATA],
                },
                "column_names": ["input_ids", "labels", "loss_mask", "position_ids"],
                "shuffle": False,
            },
            "drop_remainder": True,
            "num_parallel_workers": 8,
            "prefetch_size": 1,
        }

    def _model(self) -> dict[str, Any]:
        fields = {name: value for name, value in self.raw.items() if name not in NOT_OF_THE_MODEL}
        architectures = self.raw.get("architectures")
        if isinstance(architectures, list) and architectures:
            fields["architectures"] = architectures[0]  # one name there, a list in config.json
        compute = DTYPES[self.run["precision"]["compute"]]
        tied = bool(self.raw.get("tie_word_embeddings", False))
        names = {parameter.name for parameter in self.family.parameters(self.raw)}
        positions = self._positions(fields)
        return {
            **fields,
            **positions,
            "seq_length": self.seq_length,
            "params_dtype": "float32",
            "compute_dtype": compute,
            "layernorm_compute_dtype": "float32",
            "softmax_compute_dtype": "float32",
            "rotary_dtype": "float32",
            "add_bias_linear": False,
            "gated_linear_unit": True,
            "qk_layernorm": any(name.endswith("q_norm.weight") for name in names),
            "hidden_dropout": 0.0,
            "untie_embeddings_and_output_weights": not tied,
            "use_contiguous_weight_layout_attention": False,
            "use_interleaved_weight_layout_mlp": True,
            "use_flash_attention": True,
        }

    def _positions(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Rotary embedding and latent attention; takes the nested fields of Hugging Face out of `fields`."""
        old, new = fields.pop("rope_scaling", None) or {}, fields.pop("rope_parameters", None) or {}
        rope = {**old, **new}
        result: dict[str, Any] = {"position_embedding_type": "rope"}
        if "rope_theta" in rope:
            result["rope_theta"] = rope["rope_theta"]
        kind = rope.get("rope_type", rope.get("type", "default"))
        if kind == "yarn":
            result["position_embedding_type"] = "yarn"
            result["scaling_factor"] = rope["factor"]
            result |= {name: rope[name] for name in YARN if name in rope}
        elif kind != "default":
            self.notes.append(f"rope_type {kind!r} has no counterpart; plain rotary positions are written")
        if "kv_lora_rank" in fields:
            result |= {"multi_latent_attention": True, "mla_qkv_concat": False}  # as the weights are named
        return result
