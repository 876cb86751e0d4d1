"""What read_spec takes from a folder or a GGUF file, and what it refuses by name."""

from __future__ import annotations

import json

import pytest

from radixserve.errors import ModelLoadError
from radixserve.models.spec import RopeSpec, read_spec
from radixserve.weights import source
from tests.tiny import ABSENT, edit_config

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def spec_of(folder):
    return read_spec(source.resolve(str(folder)))


def test_plain_llama(folder):
    spec = spec_of(folder)
    assert (spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (128, 64, 96)
    assert (spec.num_layers, spec.num_qo_heads, spec.num_kv_heads, spec.head_dim) == (3, 4, 2, 16)
    assert (spec.context_len, spec.rms_eps) == (2048, 1e-5)
    assert spec.rope == RopeSpec(theta=10000.0)
    assert spec.is_tied is None
    assert (spec.eos_ids, spec.bos_id) == ((2,), None)
    assert not any((spec.has_attention_bias, spec.has_output_bias, spec.has_mlp_bias))


def test_what_families_assume_of_absent_keys(folder):
    absent = {"num_key_value_heads": ABSENT, "max_position_embeddings": ABSENT}
    edit_config(folder, **absent)
    assert (spec_of(folder).num_kv_heads, spec_of(folder).context_len) == (4, 2048)
    edit_config(folder, architectures=["Qwen2ForCausalLM"], num_attention_heads=32)
    spec = spec_of(folder)
    assert (spec.num_kv_heads, spec.context_len, spec.head_dim) == (32, 32768, 2)


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        (2, 0, (0, 2)),
        (2, [0], (0, 2)),
        ([2], [0, 2], (0, 2)),
        ([2], ABSENT, (2,)),
        (ABSENT, [7, 3], (3, 7)),
        (None, None, ()),
    ],
)
def test_end_tokens_are_the_union(folder, config, generation, expected):
    edit_config(folder, eos_token_id=config)
    edit_config(folder, "generation_config.json", eos_token_id=generation)
    assert spec_of(folder).eos_ids == expected


def test_end_tokens_without_generation_config(folder):
    assert spec_of(folder).eos_ids == (2,)


ROPE = "rope_scaling"
REFUSED = {
    "architecture": ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel"),
    "no architecture": ({"architectures": ABSENT}, "architecture None"),
    "rope type": ({ROPE: {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
    "legacy rope type": ({ROPE: {"type": "dynamic", "factor": 2.0}}, "'dynamic'"),
    "rope type, 5": ({"rope_parameters": {"rope_type": "longrope"}}, "'longrope'"),
    "rope by layer type": (
        {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e6}}},
        "full_attention",
    ),
    "rope factor missing": ({ROPE: {"type": "linear"}}, "'factor'"),
    "partial rotary": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
    "activation": ({"hidden_act": "gelu"}, "'gelu'"),
    "quantised": ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    "a window of nothing": (
        {"architectures": ["MistralForCausalLM"], "sliding_window": 0},
        "sliding_window 0",
    ),
    "mistral with mixed layers": (
        {
            "architectures": ["MistralForCausalLM"],
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "sliding_attention",
    ),
    "layer types without a window": (
        {
            "architectures": ["Qwen3ForCausalLM"],
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
        },
        "layer_types sliding_attention is not",
    ),
    "layer types of other layers": (
        {"architectures": ["Qwen3ForCausalLM"], "layer_types": ["full_attention"]},
        "layer_types of 1 layers, num_hidden_layers is 3",
    ),
    "other layer types": ({"layer_types": ["chunked_attention"] * 3}, "chunked_attention"),
    "llama's window": ({"use_sliding_window": True}, "use_sliding_window true"),
    "missing key": ({"hidden_size": ABSENT}, "'hidden_size' is missing"),
    "wrong value": ({"hidden_size": "wide"}, "'wide'"),
    "uneven heads": ({"num_key_value_heads": 3}, "4 query heads cannot share 3 KV heads"),
    "odd head_dim": ({"head_dim": 15}, "head_dim 15"),
}


@pytest.mark.parametrize(("changes", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(folder, changes, named):
    edit_config(folder, **changes)
    with pytest.raises(ModelLoadError, match=named) as caught:
        spec_of(folder)
    assert str(folder) in str(caught.value)


MISTRAL = {"architectures": ["MistralForCausalLM"]}
QWEN = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}


@pytest.mark.parametrize(
    ("changes", "windows"),
    [
        (MISTRAL | {"sliding_window": 1024}, (1024,) * 3),
        (MISTRAL | {"max_position_embeddings": 8192}, (4096,) * 3),
        (QWEN | {"sliding_window": 512}, ()),  # from layer 28 on
        (QWEN | {"sliding_window": 512, "max_window_layers": 1}, (0, 512, 512)),
        (
            QWEN
            | {
                "sliding_window": 8,
                "layer_types": ["sliding_attention", "full_attention", "full_attention"],
            },
            (8, 0, 0),
        ),
        (QWEN | {"sliding_window": 2048, "max_window_layers": 0}, ()),
        (QWEN | {"sliding_window": None, "max_window_layers": 0}, ()),
    ],
)
def test_windows_of_layers(folder, changes, windows):
    edit_config(folder, **changes)
    assert spec_of(folder).windows == windows


@pytest.mark.parametrize(
    "changes",
    [
        {"architectures": ["MistralForCausalLM"], "sliding_window": None},
        {"architectures": ["MistralForCausalLM"], "sliding_window": 2048},
        {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 512, "use_sliding_window": False},
        {"rope_scaling": None},
        {"partial_rotary_factor": 1.0},
    ],
)
def test_settings_without_effect_are_accepted(folder, changes):
    edit_config(folder, **changes)
    assert spec_of(folder).rope == RopeSpec(theta=10000.0)


def test_broken_json_names_the_file(folder):
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json"):
        spec_of(folder)
