"""Breaks a healthy model directory in one way at a time. Each fault names the code that must find it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from check_breaks import (
    EMBEDDING,
    HEAD,
    Break,
    add_token,
    begin,
    between,
    changed,
    edit,
    end_of,
    index_without_file,
    inserting,
    longer,
    lose_shard,
    lower_case,
    no_eos,
    remote,
    remove,
    rewrite,
    rope,
    share_id,
    store,
    store_shard,
    swap_q_and_o,
    template,
    tied_with_other_head,
    tokenizer,
    total_size,
    truncate,
    unmark_eos,
)


@dataclass(frozen=True)
class Fault:
    """One fault, the code of its finding, and a run configuration if the fault needs one."""

    name: str
    code: str
    apply: Break
    run: dict[str, Any] | None = None
    family: str = "llama"


LOST_EXPERT = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
Q_NORM = "model.layers.1.self_attn.q_norm.weight"
FAULTS = (
    # vocabulary
    Fault("token behind the embedding", "C201", tokenizer(add_token)),
    Fault("vocab_size too small", "C203", edit("config.json", vocab_size=296)),
    Fault("embedding cut", "C203", changed(EMBEDDING, lambda rows: rows[:280])),
    Fault("lm_head extended", "C204", changed(HEAD, lambda rows: np.concatenate((rows, rows[:4])))),
    Fault("embedding of gpt2 extended", "C203", longer("transformer.wte.weight"), family="gpt2"),
    Fault(
        "embedding and head of gpt_neox extended",
        "C203",
        longer("gpt_neox.embed_in.weight", "embed_out.weight"),
        family="gpt_neox",
    ),
    Fault("embedding of gpt_neox extended", "C203", longer("gpt_neox.embed_in.weight"), family="gpt_neox"),
    Fault("head of gpt_neox extended", "C204", longer("embed_out.weight"), family="gpt_neox"),
    Fault("bias of bert's head extended", "C204", longer("cls.predictions.bias"), family="bert"),
    Fault("two tokens on one id", "C205", tokenizer(share_id)),
    Fault("added_tokens.json disagrees", "C206", edit("added_tokens.json", **{"<pad>": 299})),
    Fault(
        "added_tokens_decoder disagrees",
        "C206",
        edit("tokenizer_config.json", added_tokens_decoder={"7": {"content": "</s>", "special": True}}),
    ),
    Fault("added_tokens_decoder is a list", "C206", edit("tokenizer_config.json", added_tokens_decoder=["<pad>"])),
    Fault("tokenizer.json cut short", "C208", lambda d: (d / "tokenizer.json").write_text('{"model": {')),
    Fault("tokenizer.json without vocabulary", "C208", tokenizer(lambda body: body["model"].pop("vocab"))),
    Fault(
        "truncation of the last call saved",
        "C210",
        tokenizer(
            lambda body: body.update(
                truncation={"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
            )
        ),
    ),
    Fault("tokenizer changes text", "C209", tokenizer(lower_case)),
    # special ids
    Fault("eos out of range in config", "C301", edit("config.json", eos_token_id=300)),
    Fault("negative pad", "C301", edit("config.json", pad_token_id=-1)),
    Fault("one of several eos out of range", "C301", edit("generation_config.json", eos_token_id=[1, 5000])),
    Fault("suppressed id out of range", "C301", edit("generation_config.json", suppress_tokens=[3, 5000])),
    Fault("bad word out of range", "C301", edit("generation_config.json", bad_words_ids=[[3], [4, 5000]])),
    Fault("image token out of range", "C301", edit("config.json", image_token_index=32000)),
    Fault("generation config of another model", "C301", edit("generation_config.json", eos_token_id=[128001, 128009])),
    Fault("eos differs in generation config", "C302", edit("generation_config.json", eos_token_id=0)),
    Fault("eos lists share nothing", "C302", edit("generation_config.json", eos_token_id=[5, 6])),
    Fault("pad differs in config", "C302", edit("config.json", pad_token_id=9)),
    Fault("bos differs in the tokenizer", "C302", edit("tokenizer_config.json", bos_token="</s>")),
    Fault("pad token that does not exist", "C306", edit("tokenizer_config.json", pad_token="[PAD]")),
    Fault(
        "named extra token that does not exist",
        "C306",
        edit("tokenizer_config.json", extra_special_tokens={"image_token": "<image>"}),
    ),
    Fault("beginning of texts by the id of another token", "C317", inserting("<s>", 7)),
    Fault("separator by the id of another token", "C317", between("</s>", 2)),
    Fault("token at the beginning that does not exist", "C317", inserting("[CLS]", 7)),
    Fault("eos is text", "C307", edit("config.json", eos_token_id="1")),
    Fault("pad is a fraction", "C307", edit("generation_config.json", pad_token_id=2.5)),
    Fault("no eos anywhere", "C308", no_eos),
    Fault("special_tokens_map disagrees", "C309", edit("special_tokens_map.json", eos_token="<s>")),
    Fault("eos not special", "C310", tokenizer(unmark_eos)),
    # positions
    Fault("no max_position_embeddings", "C401", edit("config.json", max_position_embeddings=...)),
    Fault("max_position_embeddings is text", "C401", edit("config.json", max_position_embeddings="64")),
    Fault("sequence too long", "C402", lambda d: None, run={"data": {"seq_length": 65}}),
    Fault("negative rope_theta", "C403", rope(rope_theta=-1.0)),
    Fault("two rope_thetas", "C403", edit("config.json", rope_theta=500000.0)),
    Fault("two spellings that disagree", "C403", edit("config.json", rope_scaling={"type": "linear", "factor": 2.0})),
    Fault(
        "longrope lists of two lengths",
        "C405",
        rope(rope_type="longrope", short_factor=[1.0] * 4, long_factor=[2.0] * 3, original_max_position_embeddings=32),
    ),
    Fault("scaling is text", "C404", edit("config.json", rope_parameters=..., rope_theta=1e4, rope_scaling="linear")),
    Fault(
        "scaling without its rule",
        "C404",
        edit("config.json", rope_parameters=..., rope_theta=1e4, rope_scaling={"factor": 2.0}),
    ),
    Fault("unknown rope_type", "C404", rope(rope_type="lama3")),
    Fault("llama3 scaling without original length", "C405", rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0)),
    Fault(
        "llama3 factors swapped",
        "C406",
        rope(
            rope_type="llama3",
            factor=8.0,
            low_freq_factor=4.0,
            high_freq_factor=1.0,
            original_max_position_embeddings=32,
        ),
    ),
    Fault(
        "a layer type without its factor",
        "C405",
        edit(
            "config.json",
            rope_parameters={"full_attention": {"rope_theta": 1e6, "rope_type": "linear"}, "sliding_attention": {}},
        ),
    ),
    Fault(
        "a negative base of one layer type",
        "C403",
        edit("config.json", rope_parameters={"full_attention": {"rope_theta": -1.0}}),
    ),
    Fault("partial rotation", "C407", rope(partial_rotary_factor=0.5)),
    Fault(
        "sliding window on",
        "C408",
        edit("config.json", use_sliding_window=True, sliding_window=16),
        family="qwen2",
    ),
    Fault(
        "sliding layer types",
        "C408",
        edit("config.json", layer_types=["sliding_attention"] * 3, sliding_window=8),
        family="qwen2",
    ),
    # arithmetic
    Fault("kv heads do not divide heads", "C410", edit("config.json", num_key_value_heads=3)),
    Fault("heads do not divide hidden size", "C411", edit("config.json", num_attention_heads=6, head_dim=...)),
    Fault("odd head_dim", "C413", edit("config.json", head_dim=7)),
    Fault("no intermediate_size", "C414", edit("config.json", intermediate_size=...)),
    Fault("hidden_size is null", "C414", edit("config.json", hidden_size=None)),
    Fault("a thousand million layers", "C414", edit("config.json", num_hidden_layers=10**9)),
    Fault("layers is a fraction", "C414", edit("config.json", num_hidden_layers=2.5)),
    Fault("tie_word_embeddings is text", "C414", edit("config.json", tie_word_embeddings="false")),
    Fault("eps is zero", "C415", edit("config.json", rms_norm_eps=0)),
    Fault("eps of gpt2 is zero", "C415", edit("config.json", layer_norm_epsilon=0), family="gpt2"),
    Fault("eps without its minus", "C415", edit("config.json", rms_norm_eps=1e5)),
    Fault("dropout on", "C416", edit("config.json", attention_dropout=0.1)),
    Fault("another architecture", "C417", edit("config.json", architectures=["GPT2LMHeadModel"])),
    Fault("unknown model_type", "C418", edit("config.json", model_type="llamma")),
    Fault("no model_type", "C418", edit("config.json", model_type=...)),
    Fault("gelu", "C419", edit("config.json", hidden_act="gelu")),
    # experts
    Fault("more experts chosen than there are", "C431", edit("config.json", num_experts=4, num_experts_per_tok=5)),
    Fault("no experts", "C431", edit("config.json", num_local_experts=0)),
    Fault("groups that do not divide the experts", "C431", edit("config.json", n_routed_experts=6, n_group=4)),
    Fault("more groups kept than there are", "C431", edit("config.json", n_routed_experts=6, n_group=2, topk_group=3)),
    Fault("more dense layers than layers", "C431", edit("config.json", num_experts=4, first_k_dense_replace=9)),
    Fault("a dense layer that does not exist", "C431", edit("config.json", num_experts=4, mlp_only_layers=[3])),
    # attention
    Fault("attention of no kind", "C432", edit("config.json", attn_implementation="flash_attn_2")),
    Fault("layer types of another depth", "C433", edit("config.json", layer_types=["full_attention"] * 2)),
    Fault("unknown layer type", "C433", edit("config.json", layer_types=["full_atention"] * 3)),
    # chat template
    Fault("template cut short", "C314", template("{% for m in messages %}{{ m.content }}")),
    Fault("template that fails", "C314", template("{{ messages[0].text.strip() }}")),
    Fault("template that refuses an assistant", "C314", template("{{ raise_exception('no') }}")),
    Fault("template that divides by zero", "C314", template("{{ 1 // 0 }}")),
    Fault("template without end", "C314", template("{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}")),
    Fault(
        "template that takes for ever",
        "C314",
        template("{% for i in range(10000) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
    ),
    Fault("template is a number", "C314", template(5)),  # type: ignore[arg-type]
    Fault(
        "legacy template file cut short",
        "C314",
        store("chat_template.json", json.dumps({"chat_template": "{% for m in messages %}{{ m.content"})),
    ),
    Fault(
        "one of several templates cut short",
        "C314",
        store("additional_chat_templates/tool_use.jinja", "{% for m in messages %}{{ m.content"),
    ),
    Fault("template without content", "C315", template("{% for m in messages %}{{ m.role }}{% endfor %}")),
    Fault(
        "template of another model", "C316", template("{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}")
    ),
    Fault(
        "template that puts markers together",
        "C316",
        template("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"),
    ),
    # remote code
    Fault("auto_map without its file", "C521", edit("config.json", auto_map={"AutoModel": "modeling_x.X"})),
    Fault("auto_map of a wrong form", "C521", edit("config.json", auto_map={"AutoModel": "X"})),
    Fault("remote code imports a file that is not there", "C521", remote("from .other import y\nclass X: pass\n")),
    Fault("remote code without the class", "C522", remote("class Y: pass\n")),
    Fault("remote code that is no Python", "C522", remote("class X: pass\n  x\n")),
    Fault("remote code needs a package", "C523", remote("import flash_attn_x\nclass X: pass\n")),
    Fault("remote code starts a process", "C524", remote("import subprocess\nclass X: pass\n")),
    Fault("remote code runs text", "C524", remote("class X:\n    y = eval('1')\n")),
    Fault("remote code of another repository", "C525", edit("config.json", auto_map={"AutoModel": "org/name--m.X"})),
    # tensors
    Fault("a tensor lost", "C420", remove("model.layers.1.self_attn.k_proj.weight")),
    Fault("an expert of a layer lost", "C420", remove(LOST_EXPERT), family="mixtral"),
    Fault("bias switched on without biases", "C420", edit("config.json", attention_bias=True)),
    Fault("a stranger", "C421", rewrite(lambda tensors: tensors.update({Q_NORM: np.ones(8, np.float32)}))),
    Fault(
        "qwen2 weights under llama", "C421", edit("config.json", model_type="llama", architectures=...), family="qwen2"
    ),
    Fault("down_proj transposed", "C422", rewrite(swap_q_and_o)),
    Fault("intermediate_size wrong", "C422", edit("config.json", intermediate_size=64)),
    Fault("one tensor in half precision", "C423", changed("model.norm.weight", lambda t: t.astype(np.float16))),
    Fault("dtype says bfloat16", "C424", edit("config.json", dtype="bfloat16")),
    Fault("two dtypes in config.json", "C424", edit("config.json", torch_dtype="bfloat16")),
    Fault("untied, lm_head lost", "C425", remove(HEAD)),
    Fault("untied, head of gpt_neox lost", "C425", remove("embed_out.weight"), family="gpt_neox"),
    Fault("tied, lm_head of its own", "C426", tied_with_other_head),
    Fault("names with the wrapper's beginning", "C436", begin("module.")),
    Fault("names of a compiled model", "C436", begin("_orig_mod.")),
    Fault("names of the base model", "C436", end_of("model.")),
    Fault("total_size of another index", "C437", total_size(5)),
    Fault("total_size is text", "C437", total_size("large")),
    Fault(
        "a Git LFS pointer", "C427", store_shard("version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n")
    ),
    Fault("shard truncated", "C427", truncate),
    Fault("shard missing", "C427", lose_shard),
    Fault("index leaves the directory", "C427", index_without_file),
    Fault("integer weights", "C429", changed("model.norm.weight", lambda t: t.astype(np.int8))),
    Fault("quantization_config", "C429", edit("config.json", quantization_config={"quant_method": "gptq"})),
    Fault("a layer too many in config", "C430", edit("config.json", num_hidden_layers=4)),
    Fault("a layer too few in config", "C430", edit("config.json", num_hidden_layers=2)),
    # layout
    Fault("tp does not divide the heads", "C601", lambda d: None, run={"layout": {"tp": 3}}),
    Fault("more stages than layers", "C601", lambda d: None, run={"layout": {"pp": 4}}),
    Fault("unknown axis", "C602", lambda d: None, run={"layout": {"tpp": 2}}),
    Fault("tp is zero", "C602", lambda d: None, run={"layout": {"tp": 0}}),
    Fault("layout is a list", "C602", lambda d: None, run={"layout": [2]}),
    Fault("experts of a model without", "C601", lambda d: None, run={"layout": {"dp": 2, "ep": 2}}),
    Fault("parameters cut over dp and pp", "C604", lambda d: None, run={"layout": {"dp": 2, "pp": 2, "zero": 3}}),
    Fault(
        "sequences that cp does not divide",
        "C601",
        lambda d: None,
        run={"layout": {"cp": 2}, "data": {"seq_length": 62}},
    ),
    Fault("stages without work", "C607", lambda d: None, run={"layout": {"pp": 3}, "train": {"accumulation": 2}}),
    Fault(
        "tp over machines",
        "C607",
        lambda d: None,
        run={"layout": {"tp": 2, "dp": 3}, "launch": {"nodes": 2}},
    ),
    Fault("data directory missing", "C605", lambda d: None, run={"data": {"path": "no-such-data"}}),
)
