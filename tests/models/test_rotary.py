"""Rotary settings in every place and style that configs keep them (cases.md L03)."""

from __future__ import annotations

import pytest
import torch

from radixserve.models.decoder import inverse_frequencies
from radixserve.models.spec import RopeSpec
from tests import tiny

POSITIONS = [5, 500, 1900]
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
ABSENT = tiny.ABSENT
STYLES = {
    "4: theta on top, no scaling": {"rope_theta": 100000.0, "rope_scaling": None},
    "4: llama3 scaling": {
        "rope_theta": 500000.0,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
    },
    "4: llama3, original context on top": {
        "rope_theta": 500000.0,
        "original_max_position_embeddings": 64,
        "rope_scaling": {"rope_type": "llama3", **LLAMA3},
    },
    "4: legacy linear": {"rope_theta": 10000.0, "rope_scaling": {"type": "linear", "factor": 2}},
    "5: default": {"rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
    "5: linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "5: llama3": {
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    },
    "5: llama3, original context left out": {
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 32.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 30.0,
        },
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A model with theta 10000 and no scaling, and its logits."""
    folder = tiny.make_model(tmp_path_factory.mktemp("plain"))
    return folder, tiny.logits(tiny.load(folder), tiny.prompt(1901))[POSITIONS]


@pytest.mark.parametrize("style", STYLES.values(), ids=STYLES.keys())
def test_rotary_settings_are_found(plain, tmp_path, style):
    folder, without = plain
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tiny.edit_config(tmp_path, **({"rope_parameters": ABSENT} | style))
    ids = tiny.prompt(1901)
    expected = tiny.reference_logits(tiny.reference(tmp_path), ids)[POSITIONS]
    found = tiny.logits(tiny.load(tmp_path), ids)[POSITIONS]
    assert (found - expected).abs().max() < 1e-3
    assert ((found - without).abs().amax(dim=1) > 1e-2).all()  # the setting matters everywhere


def test_theta_defaults_to_10000(plain, tmp_path):
    folder, expected = plain
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tiny.edit_config(tmp_path, rope_parameters=ABSENT)
    assert torch.equal(tiny.logits(tiny.load(tmp_path), tiny.prompt(1901))[POSITIONS], expected)


def test_divisors_divide_each_frequency():
    plain = inverse_frequencies(RopeSpec(theta=100.0), 4)
    assert torch.allclose(plain, torch.tensor([1.0, 0.1]))
    divided = inverse_frequencies(RopeSpec(theta=100.0, divisors=(1.0, 8.0)), 4)
    assert torch.allclose(divided, torch.tensor([1.0, 0.0125]))
