"""A tiny random model served with --attention triton gives what the reference backend gives."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

from radixserve.attention import select
from radixserve.attention.base import AttentionInputs, AttentionShape, AttentionTensors
from radixserve.attention.terms import FP8
from radixserve.engine import Engine
from radixserve.kernels.triton import gated, rms_norm, store_kv
from radixserve.layers.context import ForwardContext
from radixserve.layers.operations import layer_operations
from radixserve.models.decoder import attention_shape
from radixserve.scheduler.sharing import shared_groups
from tests import tiny
from tests.tiny_tokenizer import make_tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Two layers, the second with a window."""
    folder = tmp_path_factory.mktemp("tiny-qwen2")
    window = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
    tiny.make_model(folder, "qwen2", vocab=448, eos_token_id=2, num_hidden_layers=2, **window)
    return make_tokenizer(folder)


def serve(model: pathlib.Path, attention: str) -> tuple[list[list[int]], int]:
    """The ids of a shared-prefix workload, in two waves, and the tokens found in the cache."""
    system = tiny.prompt(70, 400)
    prompts = [[*system, *tiny.prompt(5 + i, 400, seed=i)] for i in range(2)]
    settings = {"dtype": "float32", "threads": 1, "kv_tokens": 512, "audit": True}
    with Engine(str(model), attention=attention, inline=True, **settings) as engine:
        params = {"max_new_tokens": 2, "temperature": 0}
        replies = engine.generate(input_ids=prompts, sampling_params=params)
        longer = [[*prompts[0], *tiny.prompt(10, 400, seed=9)]]
        replies += engine.generate(input_ids=longer, sampling_params=params)
        cached = engine.gauges().cached_tokens
    return [reply["output_ids"] for reply in replies], cached


def test_a_shared_prefix_workload_equals_the_reference_backend(
    model: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And every kernel of a layer is launched."""
    launched = []
    for module, name in (
        (rms_norm, "rms_norm_launch"),
        (gated, "gated_launch"),
        (store_kv, "rotary_store_launch"),
    ):
        real = getattr(module, name)

        def noted(*args, real=real, name=name, **kwargs):
            launched.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, noted)
    ids, cached = serve(model, "triton")
    steps = launched.count("gated_launch") // 2
    assert steps > 3
    assert launched.count("rms_norm_launch") == 5 * steps
    assert launched.count("rotary_store_launch") == 2 * steps
    launched.clear()
    assert ids == serve(model, "reference")[0]
    assert not launched
    assert cached >= 2 * 64  # the system prompt, whole pages of it
    assert all(len(one) == 2 for one in ids)


@pytest.mark.parametrize(
    ("arch", "settings"),
    [("llama", {"hidden_act": "gelu_pytorch_tanh"}), ("qwen3", {})],
    ids=["llama with gelu", "qwen3"],
)
def test_layers_rotate_and_norm_in_kernels(
    arch: tiny.Arch, settings: dict, tmp_path: pathlib.Path
) -> None:
    model = tiny.load(tiny.make_model(tmp_path, arch, num_hidden_layers=1, **settings))
    shape = attention_shape(model.spec)
    ids = torch.tensor(tiny.prompt(9))
    inputs = AttentionInputs(
        positions=np.array([0], np.int32),
        lengths=np.array([9], np.int32),
        page_indptr=np.array([0, 2], np.int32),
        page_indices=np.array([1, 0], np.int32),
    )
    logits = []
    for name in ("triton", "reference"):
        size = (2, 8, shape.num_kv_heads, shape.head_dim)
        caches = [[torch.zeros(size) for _ in model.layers] for _ in range(2)]
        backend = select.choose(name, "cpu")(shape, 8, *caches)
        assert (backend.rotating is None) == (name == "reference")
        backend.plan(inputs)
        ctx = ForwardContext(torch.arange(9), backend, layer_operations(name == "triton"))
        logits.append(model.logits(model.forward(ids, ctx)))
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-4)


STEPS = [
    ([85, 80, 90, 33], [1, 1, 1, 1]),
    ([85, 80, 90, 20], [1, 3, 1, 21]),
    ([85, 80, 90, 0], [2, 16, 3, 1]),
]
TRUNK = list(range(5))
TABLES = [[*TRUNK, 10], [*TRUNK, 12], [*TRUNK, 13], [20, 21, 22]]


def inputs_of(positions: list[int], lengths: list[int], groups: bool) -> AttentionInputs:
    rows = [np.array(part, np.int32) for part in (positions, lengths)]
    indptr = np.cumsum([0, *map(len, TABLES)]).astype(np.int32)
    indices = np.concatenate(TABLES).astype(np.int32)
    found = shared_groups(indptr, indices, *rows, 16)
    assert found
    return AttentionInputs(
        positions=rows[0],
        lengths=rows[1],
        page_indptr=indptr,
        page_indices=indices,
        shared=found if groups else (),
    )


@pytest.mark.parametrize("groups", [False, True])
def test_steps_equal_the_reference_backend(groups: bool) -> None:
    """Layers of two windows in one step, the second capped and with sinks like the first."""
    shape = AttentionShape(2, 3, 1, 16, 0.25, windows=(0, 20), softcap=2.0, has_sinks=True)
    torch.manual_seed(0)
    tensors = AttentionTensors(sinks=(torch.randn(3), torch.randn(3)))
    caches = [[torch.randn(24, 16, 1, 16) for _ in range(2)] for _ in range(2)]
    copies = [[one.clone() for one in part] for part in caches]
    ours = select.choose("triton", "cpu")(shape, 16, *caches, tensors)
    plain = select.choose("reference", "cpu")(shape, 16, *copies, tensors)
    for positions, lengths in STEPS:
        q, k, v = (torch.randn(sum(lengths), heads, 16) for heads in (3, 1, 1))
        for backend in (ours, plain):
            backend.plan(inputs_of(positions, lengths, groups))
        for layer in range(2):
            torch.testing.assert_close(ours.run(layer, q, k, v), plain.run(layer, q, k, v))
            assert torch.equal(caches[0][layer], copies[0][layer])


def test_an_fp8_pool_equals_the_reference_backend() -> None:
    """K and V are numbers that fp8 holds, for the interpreter cuts off where a GPU rounds."""
    shape = AttentionShape(1, 2, 1, 16, 0.25)
    torch.manual_seed(0)
    scales = torch.tensor([0.5]), torch.tensor([2.0])
    tensors = AttentionTensors(kv_scales=(scales,))
    caches = [[torch.randn(24, 16, 1, 16).to(FP8)] for _ in range(2)]
    copies = [[one.clone() for one in part] for part in caches]
    ours = select.choose("triton", "cpu")(shape, 16, *caches, tensors)
    plain = select.choose("reference", "cpu")(shape, 16, *copies, tensors)
    for positions, lengths in STEPS[:2]:
        n = sum(lengths)
        k, v = (torch.randn(n, 1, 16).to(FP8).float() * scale for scale in scales)
        q = torch.randn(n, 2, 16)
        for backend in (ours, plain):
            backend.plan(inputs_of(positions, lengths, groups=True))
        torch.testing.assert_close(ours.run(0, q, k, v), plain.run(0, q, k, v))
        assert torch.equal(caches[0][0].view(torch.uint8), copies[0][0].view(torch.uint8))
