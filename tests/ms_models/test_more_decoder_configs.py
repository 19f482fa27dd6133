"""What the configurations of Phi-3, GLM-4 and Gemma 3 mean, in every spelling, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import transformers
from tiny_decoders import CONFIGS
from tiny_models import SIZES

from mappings.errors import UserError
from mappings.families import load_family
from ms_models.families.gemma3_text import Gemma3ForCausalLM
from ms_models.families.glm4 import Glm4ForCausalLM
from ms_models.families.phi3 import Phi3ForCausalLM
from ms_models.layers.linear_rope import LinearRope
from ms_models.layers.rotary import RopeConfig

KINDS: dict[str, Any] = {"phi3": Phi3ForCausalLM, "glm4": Glm4ForCausalLM, "gemma3_text": Gemma3ForCausalLM}
PHI3, GLM4, GEMMA3 = (CONFIGS[name].to_dict() for name in ("phi3", "glm4", "gemma3_text"))
LONG = CONFIGS["phi3-longrope-tied"].to_dict()["rope_parameters"]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("phi3", {"resid_pdrop": 0.1}, "resid_pdrop 0.1"),
        ("phi3", {"embd_pdrop": 0.1}, "embd_pdrop 0.1"),
        ("phi3", {"attention_dropout": 0.1}, "attention_dropout"),
        ("phi3", {"layer_types": ["full_attention"] * 3}, "layer_types"),
        ("phi3", {"sliding_window": 0}, "sliding_window must be a positive whole number or null"),
        ("phi3", {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope type 'linear' .* for phi3"),
        ("phi3", {"rope_parameters": {**LONG, "rope_type": "su", "long_factor": None}}, "long_factor"),
        ("glm4", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("glm4", {"rope_parameters": {"partial_rotary_factor": 2}}, "partial_rotary_factor must not exceed 1"),
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping 50.0"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ("gemma3_text", {"layer_types": ["full_attention"]}, "layer_types must name 3 layers"),
        ("gemma3_text", {"layer_types": None, "sliding_window_pattern": 0}, "sliding_window_pattern .* found 0"),
        ("gemma3_text", {"final_logit_softcapping": "30"}, "final_logit_softcapping must be a positive number"),
        ("gemma3_text", {"rope_parameters": {"rope_theta": 1e6}}, "rope_parameters of gemma3_text"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, "for full_attention, found 3"),
        ("gemma3_text", {"rope_scaling": {"rope_type": "linear", "factor": 0}}, "factor of the rotary embedding"),
        ("gemma3_text", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    ],
)
def test_what_is_not_computed_is_refused(kind: str, changes: dict[str, Any], message: str) -> None:
    raw = {**CONFIGS[kind].to_dict(), **changes}
    with pytest.raises(UserError, match=message) as caught:
        KINDS[kind].read_config(raw, load_family(kind))
    assert "\n" not in str(caught.value)


def rope_of_transformers_4(raw: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """`config.json` as it was written before transformers 5."""
    four = {key: value for key, value in raw.items() if key not in ("rope_parameters", "layer_types")}
    return four | fields


def test_phi3_reads_what_was_published() -> None:
    family = load_family("phi3")
    lists = {name: LONG[name] for name in ("short_factor", "long_factor")}
    five = Phi3ForCausalLM.read_config(CONFIGS["phi3-longrope-tied"].to_dict(), family)
    for kind in ("longrope", "su", "yarn"):  # all names of one thing in files of Phi-3
        fields = {"rope_theta": 1e4, "partial_rotary_factor": 0.75, "rope_scaling": {"type": kind, **lists}}
        four = rope_of_transformers_4(CONFIGS["phi3-longrope-tied"].to_dict(), fields)
        assert Phi3ForCausalLM.read_config(four, family) == five
    bare = {key: value for key, value in four.items() if key != "original_max_position_embeddings"}
    rope = Phi3ForCausalLM.read_config(bare, family).rope
    again = transformers.Phi3Config(**bare)
    assert rope is not None and rope.scaling.original == again.original_max_position_embeddings == 4096  # type: ignore
    assert Phi3ForCausalLM.read_config({**PHI3, "sliding_window": None}, family).windows == (None,) * 3


def test_glm4_rotates_half_of_a_head_where_nothing_is_said() -> None:
    family = load_family("glm4")
    five = Glm4ForCausalLM.read_config(GLM4, family)
    assert five.rope is not None and five.rope.partial_rotary_factor == 0.5
    four = rope_of_transformers_4(GLM4, {"rope_theta": 10000.0, "rope_scaling": None})
    assert Glm4ForCausalLM.read_config(four, family) == five
    assert Glm4ForCausalLM.read_config({**four, "partial_rotary_factor": 0.25}, family) != five
    left_out = ("rms_norm_eps", "pad_token_id", "eos_token_id", "max_position_embeddings", "attention_bias")
    sizes = {name: value for name, value in SIZES.items() if name not in left_out}
    plain = transformers.Glm4Config(**sizes, head_dim=20).to_dict()
    bare = {key: value for key, value in plain.items() if key not in left_out}
    assert Glm4ForCausalLM.read_config(bare, family) == Glm4ForCausalLM.read_config(plain, family)


def test_gemma3_reads_what_was_published() -> None:
    """Files of 2025: one base for full attention, one for windows, and how many layers lie between full ones."""
    family = load_family("gemma3_text")
    fields = {
        "rope_theta": 5e5,
        "rope_local_base_freq": 2e4,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "sliding_window_pattern": 2,
    }
    four = rope_of_transformers_4(GEMMA3, fields)
    five = transformers.Gemma3TextConfig(**four).to_dict()
    found = Gemma3ForCausalLM.read_config(four, family)
    assert found == Gemma3ForCausalLM.read_config(five, family)
    assert found.is_local == (True, False, True) and found.windows == (4, None, 4)
    assert found.rope == RopeConfig(5e5, LinearRope(8.0)) and found.local_rope == RopeConfig(2e4)
    assert found.logit_cap == 3.0 and found.attention_scale == 7**-0.5
    left_out = (
        "layer_types",
        "rope_parameters",
        "sliding_window",
        "pad_token_id",
        "eos_token_id",
        "query_pre_attn_scalar",
    )
    plain = transformers.Gemma3TextConfig(**{**SIZES, "num_hidden_layers": 7}, head_dim=10).to_dict()
    bare = {key: value for key, value in plain.items() if key not in (*left_out, "pad_token_id")}
    assert Gemma3ForCausalLM.read_config(bare, family) == Gemma3ForCausalLM.read_config(plain, family)
    assert Gemma3ForCausalLM.read_config(bare, family).is_local == (True,) * 5 + (False, True)
