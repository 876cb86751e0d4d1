"""Logits of tiny random models against transformers in float32."""

from __future__ import annotations

import itertools

import pytest
import torch

from tests import tiny

CASES = {
    "llama": ("llama", {}),
    "llama tied": ("llama", {"tied": True}),
    "llama with every bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, own head_dim, eps and theta": (
        "llama",
        {
            "head_dim": 32,
            "rms_norm_eps": 0.1,
            "rope": {"rope_type": "default", "rope_theta": 500000.0},
        },
    ),
    "llama with gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama without GQA": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "mistral, window as long as the context": ("mistral", {"sliding_window": 2048}),
    "mistral, window below the prompt": ("mistral", {"sliding_window": 7}),
    "qwen2, windows from a layer on": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1},
    ),
    "qwen3, windows in some layers": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "qwen2": ("qwen2", {}),
    "qwen2 tied": ("qwen2", {"tied": True}),
    "qwen3": ("qwen3", {}),
    "qwen3 tied with biases": ("qwen3", {"tied": True, "attention_bias": True}),
}


@pytest.mark.parametrize(("arch", "settings"), CASES.values(), ids=CASES.keys())
def test_logits_equal_transformers(tmp_path, arch, settings):
    folder = tiny.make_model(tmp_path, arch, **settings)
    ids = tiny.prompt(40)
    expected = tiny.reference_logits(tiny.reference(folder), ids)
    assert expected.std() > 0.3  # otherwise 1e-3 would say nothing
    assert (tiny.logits(tiny.load(folder), ids) - expected).abs().max() < 1e-3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_close(tmp_path, dtype):
    folder = tiny.make_model(tmp_path, "qwen3")
    ids = tiny.prompt(40)
    whole = tiny.logits(tiny.load(folder), ids)
    half = tiny.logits(tiny.load(folder, dtype), ids)
    assert half.dtype == torch.float32
    assert (half - whole).abs().mean() < 0.05 * whole.std()


def test_norms_are_computed_in_float32(tmp_path):
    # Squares of 300 overflow float16, so a norm in the storage type would give zeros or NaN.
    folder = tiny.make_model(tmp_path)
    model = tiny.load(folder, torch.float16)
    x = torch.full((2, 64), 300.0, dtype=torch.float16)
    assert torch.allclose(model.norm(x), model.norm.weight.expand(2, 64), rtol=1e-2)


def test_each_element_of_a_parameter_is_in_one_view(tmp_path):
    folder = tiny.make_model(tmp_path, "qwen3", attention_bias=True)
    model = tiny.load(folder)
    views = model.views()
    spans = sorted(
        (v.data_ptr(), v.data_ptr() + v.numel() * v.element_size()) for v in views.values()
    )
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    storages = {
        v.untyped_storage().data_ptr(): v.untyped_storage().nbytes() for v in views.values()
    }
    assert sum(storages.values()) == model.num_bytes
    assert set(views) == set(tiny.reference(folder).state_dict())
