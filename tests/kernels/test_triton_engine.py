"""A tiny random model served with --attention triton gives what the reference backend gives."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

from radixserve.attention import select
from radixserve.attention.base import AttentionInputs, AttentionShape
from radixserve.engine import Engine
from radixserve.layers.context import ForwardContext
from radixserve.models.decoder import attention_shape
from radixserve.scheduler.sharing import shared_groups
from tests import tiny
from tests.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tiny-llama")
    tiny.make_model(folder, vocab=448, eos_token_id=2, num_hidden_layers=2)
    return make_tokenizer(folder)


def serve(model: pathlib.Path, attention: str) -> tuple[list[list[int]], int]:
    """The ids of a shared-prefix workload, in two waves, and the tokens found in the cache."""
    system = tiny.prompt(85, 400)
    prompts = [[*system, *tiny.prompt(5 + i, 400, seed=i)] for i in range(3)]
    settings = {"dtype": "float32", "threads": 1, "kv_tokens": 1024, "audit": True}
    with Engine(str(model), attention=attention, inline=True, **settings) as engine:
        params = {"max_new_tokens": 3, "temperature": 0}
        replies = engine.generate(input_ids=prompts, sampling_params=params)
        longer = [[*prompts[0], *tiny.prompt(10, 400, seed=9)]]
        replies += engine.generate(input_ids=longer, sampling_params=params)
        cached = engine.gauges().cached_tokens
    return [reply["output_ids"] for reply in replies], cached


def test_a_shared_prefix_workload_equals_the_reference_backend(model: pathlib.Path) -> None:
    ids, cached = serve(model, "triton")
    assert ids == serve(model, "reference")[0]
    assert cached >= 3 * 80  # the system prompt, whole pages of it
    assert all(len(one) == 3 for one in ids[:3])


@pytest.mark.parametrize("arch", ["llama", "qwen3"])
def test_layers_rotate_and_norm_in_the_backend(arch: tiny.Arch, tmp_path: pathlib.Path) -> None:
    model = tiny.load(tiny.make_model(tmp_path, arch, num_hidden_layers=2))
    shape = attention_shape(model.spec)
    ids = torch.tensor(tiny.prompt(21))
    inputs = AttentionInputs(
        positions=np.array([0], np.int32),
        lengths=np.array([21], np.int32),
        page_indptr=np.array([0, 2], np.int32),
        page_indices=np.array([1, 0], np.int32),
    )
    logits = []
    for name in ("triton", "reference"):
        size = (2, 16, shape.num_kv_heads, shape.head_dim)
        caches = [[torch.zeros(size) for _ in model.layers] for _ in range(2)]
        backend = select.choose(name, "cpu")(shape, 16, *caches)
        assert (backend.rotating is None) == (name == "reference")
        backend.plan(inputs)
        logits.append(model.logits(model.forward(ids, ForwardContext(torch.arange(21), backend))))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


def test_steps_equal_the_reference_backend_with_and_without_groups() -> None:
    shape = AttentionShape(1, 6, 2, 16, 0.25)
    torch.manual_seed(0)
    size = (40, 16, 2, 16)
    caches = [[torch.randn(size)] for _ in range(2)]
    copies = [[one.clone() for one in part] for part in caches]
    ours = select.choose("triton", "cpu")(shape, 16, *caches)
    plain = select.choose("reference", "cpu")(shape, 16, *copies)
    trunk = list(range(10))
    tables = [[*trunk, 10, 11], [*trunk, 12], [*trunk, 13, 14], [20, 21, 22]]
    for positions, lengths in [
        ([165, 160, 170, 33], [1, 1, 1, 1]),
        ([165, 160, 170, 20], [1, 3, 1, 21]),
        ([165, 160, 170, 0], [2, 16, 3, 1]),
    ]:
        arrays = [np.array(part, np.int32) for part in (positions, lengths)]
        indptr = np.cumsum([0, *map(len, tables)]).astype(np.int32)
        indices = np.concatenate(tables).astype(np.int32)
        groups = shared_groups(indptr, indices, *arrays, 16)
        assert groups
        for shared in ((), groups):
            inputs = AttentionInputs(
                positions=arrays[0],
                lengths=arrays[1],
                page_indptr=indptr,
                page_indices=indices,
                shared=shared,
            )
            tokens = sum(lengths)
            q, k, v = (torch.randn(tokens, heads, 16) for heads in (6, 2, 2))
            for backend in (ours, plain):
                backend.plan(inputs)
            torch.testing.assert_close(ours.run(0, q, k, v), plain.run(0, q, k, v))
            assert torch.equal(caches[0][0], copies[0][0])
