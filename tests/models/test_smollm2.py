"""SmolLM2, from GGUF and from safetensors of the same weights, against transformers (L01)."""

from __future__ import annotations

import pytest
import torch

from radixserve.models.spec import read_spec
from radixserve.weights.gguf import GgufFile
from tests import tiny

pytestmark = pytest.mark.model
PROMPTS = [
    "The capital of France is",
    "Once upon a time there was a small",
    "The answer to the question is",
    "In the middle of the night the old man",
    "def",
]


@pytest.fixture(scope="module")
def prompts(smollm2):
    vocabulary = {
        token: index
        for index, token in enumerate(GgufFile(smollm2.path).metadata["tokenizer.ggml.tokens"])
    }
    return [[vocabulary[word] for word in text.replace(" ", " Ġ").split()] for text in PROMPTS]


@pytest.fixture(scope="module")
def from_gguf(smollm2):
    return tiny.load(smollm2.path)


def test_facts(smollm2):
    spec = read_spec(smollm2)
    assert (spec.num_layers, spec.num_qo_heads, spec.num_kv_heads, spec.head_dim) == (30, 9, 3, 64)
    assert (spec.vocab_size, spec.context_len, spec.rope.theta) == (49152, 8192, 100000.0)
    assert (spec.eos_ids, spec.bos_id, spec.is_tied) == ((2,), 1, True)


def test_logits_equal_transformers(from_gguf, prompts):
    for ids in prompts:
        expected = tiny.reference_logits(tiny.smollm2_reference(), ids)
        assert (tiny.logits(from_gguf, ids) - expected).abs().max() < 1e-3


def test_safetensors_of_the_same_weights(from_gguf, prompts, tmp_path):
    from_folder = tiny.load(tiny.smollm2_folder(tmp_path))
    assert from_folder.embedding.head.data_ptr() == from_folder.embedding.table.data_ptr()
    for name, view in from_gguf.views().items():
        assert torch.equal(view, from_folder.views()[name]), name
    for ids in prompts:
        assert torch.equal(tiny.logits(from_folder, ids), tiny.logits(from_gguf, ids))


def test_it_knows_the_capital_of_france(from_gguf, prompts, smollm2):
    best = int(tiny.logits(from_gguf, prompts[0])[-1].argmax())
    assert GgufFile(smollm2.path).metadata["tokenizer.ggml.tokens"][best] == "ĠParis"
