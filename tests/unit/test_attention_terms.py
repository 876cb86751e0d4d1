"""Windows, caps, sinks and fp8 caches: the backends are the reference, and transformers."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.gpt_oss import modeling_gpt_oss

from radixserve.attention.base import AttentionInputs, AttentionShape, AttentionTensors
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.native import NativeAttention
from radixserve.attention.reference import ReferenceAttention
from radixserve.attention.terms import FP8, layer_terms
from radixserve.engine import Engine
from radixserve.errors import ConfigError, ModelLoadError
from radixserve.models.decoder import Decoder
from tests import tiny
from tests.tiny_tokenizer import make_tokenizer

PAGE, HEAD_DIM, LAYERS = 4, 8, 2
SHAPE = AttentionShape(LAYERS, 6, 2, HEAD_DIM, HEAD_DIM**-0.5)


def tensors(has_sinks: bool, is_fp8: bool) -> AttentionTensors:
    torch.manual_seed(5)
    sinks = tuple(torch.randn(6) for _ in range(LAYERS)) if has_sinks else ()
    scales = tuple((torch.rand(2) + 0.5, torch.rand(2) + 0.5) for _ in range(LAYERS))
    return AttentionTensors(sinks=sinks, kv_scales=scales if is_fp8 else ())


def inputs_of(rows: list[tuple[int, int]]) -> AttentionInputs:
    """rows: position and length of each; page tables apart."""
    pages = [-(-(position + n) // PAGE) for position, n in rows]
    return AttentionInputs(
        positions=np.array([position for position, _ in rows], np.int32),
        lengths=np.array([n for _, n in rows], np.int32),
        page_indptr=np.cumsum([0, *pages]).astype(np.int32),
        page_indices=np.random.default_rng(0).permutation(sum(pages)).astype(np.int32),
    )


def run(kind: Any, shape: AttentionShape, extra: AttentionTensors, is_fp8: bool, rows: Any) -> Any:
    inputs = inputs_of(rows)
    torch.manual_seed(1)
    size = (len(inputs.page_indices), PAGE, 2, HEAD_DIM)
    dtype = FP8 if is_fp8 else torch.float32
    k, v = ([torch.randn(size).to(dtype) for _ in range(LAYERS)] for _ in range(2))
    backend = kind(shape, PAGE, k, v, extra)
    backend.plan(inputs)
    tokens = int(inputs.lengths.sum())
    outs = []
    for layer in range(LAYERS):
        q = torch.randn(tokens, 6, HEAD_DIM)
        outs.append(backend.run(layer, q, *torch.randn(2, tokens, 2, HEAD_DIM) * 2))
    return outs, [cache.float() for cache in (*k, *v)]


row = st.tuples(st.integers(0, 30), st.sampled_from([1, 1, 2, 9]))


@settings(max_examples=30)
@given(
    rows=st.lists(row, min_size=1, max_size=5),
    windows=st.sampled_from([(), (3, 3), (0, 5), (17, 1)]),
    softcap=st.sampled_from([0.0, 1.5]),
    has_sinks=st.booleans(),
    is_fp8=st.booleans(),
)
def test_the_cpu_backend_is_the_reference(
    rows: list[tuple[int, int]],
    windows: tuple[int, ...],
    softcap: float,
    has_sinks: bool,
    is_fp8: bool,
) -> None:
    shape = dataclasses.replace(SHAPE, windows=windows, softcap=softcap, has_sinks=has_sinks)
    extra = tensors(has_sinks, is_fp8)
    got, got_cache = run(CpuAttention, shape, extra, is_fp8, rows)
    wanted, wanted_cache = run(ReferenceAttention, shape, extra, is_fp8, rows)
    for one, other in zip(got + got_cache, wanted + wanted_cache):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-5)


class Module(torch.nn.Module):
    num_key_value_groups = 3

    def __init__(self, sinks: torch.Tensor) -> None:
        super().__init__()
        self.sinks = torch.nn.Parameter(sinks)


def test_caps_and_sinks_are_those_of_transformers() -> None:
    """Its eager attention of Gemma 2 has the cap, that of GPT-OSS the sinks."""
    n, layer = 7, 0
    torch.manual_seed(2)
    q, k, v = (torch.randn(n, heads, HEAD_DIM) for heads in (6, 2, 2))
    hidden = torch.full((n, n), float("-inf")).triu_(1)[None, None]
    states = [part.transpose(0, 1)[None] for part in (q, k, v)]
    options = {"attention_mask": hidden, "scaling": SHAPE.scale, "dropout": 0.0}
    extra = tensors(has_sinks=True, is_fp8=False)
    module = Module(extra.sinks[layer]).eval()
    cases = [
        (
            {"softcap": 2.0},
            AttentionTensors(),
            modeling_gemma2.eager_attention_forward(module, *states, softcap=2.0, **options),
        ),
        (
            {"has_sinks": True},
            extra,
            modeling_gpt_oss.eager_attention_forward(module, *states, **options),
        ),
    ]
    for fields, given_tensors, (wanted, _) in cases:
        caches = [[torch.zeros(2, PAGE, 2, HEAD_DIM) for _ in range(LAYERS)] for _ in range(2)]
        shape = dataclasses.replace(SHAPE, **fields)
        backend = ReferenceAttention(shape, PAGE, *caches, given_tensors)
        backend.plan(inputs_of([(0, n)]))
        torch.testing.assert_close(backend.run(layer, q, k, v), wanted[0].detach().flatten(1))


def test_what_does_not_fit_together_is_refused() -> None:
    cache = torch.zeros(1, PAGE, 2, HEAD_DIM)
    for fields, message in [
        ({"windows": (3,)}, "windows of 1 layers where 2"),
        ({"has_sinks": True}, "sinks of 0 layers where 2"),
    ]:
        with pytest.raises(ValueError, match=message):
            layer_terms(dataclasses.replace(SHAPE, **fields), AttentionTensors(), cache)
    with pytest.raises(ValueError, match="sinks of 2 layers where 0"):
        layer_terms(SHAPE, tensors(has_sinks=True, is_fp8=False), cache)
    for fields, dtype, message in [
        ({"windows": (3, 0)}, torch.float32, "sliding windows"),
        ({"softcap": 2.0}, torch.float32, "capped scores"),
        ({"has_sinks": True}, torch.float32, "attention sinks"),
        ({}, FP8, "--kv-dtype fp8_e4m3"),
    ]:
        caches = [[cache.to(dtype)] * LAYERS for _ in range(2)]
        with pytest.raises(ConfigError, match=message):
            NativeAttention(dataclasses.replace(SHAPE, **fields), PAGE, *caches)


# ---- whole models ----


def test_a_model_with_sinks_and_a_cap_reads_its_own(tmp_path: pathlib.Path) -> None:
    model = tiny.load(tiny.make_model(tmp_path))
    spec = dataclasses.replace(model.spec, has_sinks=True, softcap=3.0)
    own = Decoder(spec, dtype=torch.float32, device=torch.device("cpu"))
    names = {f"model.layers.{layer}.self_attn.sinks" for layer in range(3)}
    assert set(own.views()) - set(model.views()) == names
    filled = [layer.attention.sinks.fill_(0.5) for layer in own.layers]
    assert own.attention_tensors.sinks == tuple(filled)


@pytest.fixture(scope="module")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("tiny-mistral")
    tiny.make_model(
        folder, "mistral", vocab=448, eos_token_id=2, num_hidden_layers=2, sliding_window=24
    )
    return make_tokenizer(folder)


def serve(model: pathlib.Path, **settings: Any) -> tuple[list[list[int]], int]:
    """A prefix of 70 tokens that three prompts share, and one more behind them."""
    system = tiny.prompt(70, 400)
    prompts = [[*system, *tiny.prompt(5 + i, 400, seed=i)] for i in range(3)]
    options = {"dtype": "float32", "threads": 1, "kv_tokens": 1024, "inline": True, "audit": True}
    params = {"max_new_tokens": 6, "temperature": 0, "ignore_eos": True}
    with Engine(str(model), **(options | settings)) as engine:
        replies = engine.generate(input_ids=prompts, sampling_params=params)
        replies += engine.generate(
            input_ids=[prompts[0] + tiny.prompt(9, 400, seed=7)], sampling_params=params
        )
        cached = engine.gauges().cached_tokens
    return [reply["output_ids"] for reply in replies], cached


def test_sharing_stays_exact_with_windows(windowed: pathlib.Path) -> None:
    """Native is asked for, whose kernels have no windows: torch computes, and it is right."""
    found, cached = serve(windowed, attention="native")
    assert cached >= 3 * 64
    assert found == serve(windowed, attention="reference", prefix_cache=False)[0]
    reference = tiny.reference(windowed)
    prompt = [*tiny.prompt(70, 400), *tiny.prompt(5, 400, seed=0)]
    assert tiny.reference_logits(reference, prompt)[-1].argmax() == found[0][0]


def test_an_fp8_pool_is_near_and_half_as_large(windowed: pathlib.Path) -> None:
    backends = ("cpu", "reference")
    served = [serve(windowed, attention=name, kv_dtype="fp8_e4m3")[0] for name in backends]
    assert served[0] == served[1]
    plain = serve(windowed, attention="reference")[0]
    same = sum(a == b for one, other in zip(served[0], plain) for a, b in zip(one, other))
    assert same >= 8, "of 24 ids; more part by a near tie than by the rounding of K and V"


def test_scales_of_a_checkpoint(tmp_path: pathlib.Path) -> None:
    from safetensors.torch import load_file, save_file

    folder = tiny.make_model(tmp_path)
    file = folder / "model.safetensors"
    prefix = "model.layers.1.self_attn"
    wanted = {f"{prefix}.k_scale": torch.tensor(0.5), f"{prefix}.v_scale": torch.tensor([2.0, 3.0])}
    save_file(load_file(file) | wanted, file, metadata={"format": "pt"})
    scales = tiny.load(folder).attention_tensors.kv_scales
    assert [one.tolist() for one in scales[0]] == [[1.0, 1.0], [1.0, 1.0]]
    assert [one.tolist() for one in scales[1]] == [[0.5, 0.5], [2.0, 3.0]]
    save_file(
        load_file(file) | {f"{prefix}.k_scale": torch.tensor(0.0)}, file, metadata={"format": "pt"}
    )
    with pytest.raises(ModelLoadError, match=r"k_scale holds no scale above 0"):
        tiny.load(folder)
