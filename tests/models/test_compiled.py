"""A model whose layers go through torch.compile computes what it computes without."""

from __future__ import annotations

import pathlib
import shutil

import pytest
import torch

from radixserve.config.flags import configure
from radixserve.config.resolve import resolve
from radixserve.engine import Engine
from radixserve.errors import ConfigError
from radixserve.models import compiled
from radixserve.models.compiled import CompiledParts
from tests import tiny
from tests.tiny_tokenizer import make_tokenizer

LENGTHS = (7, 1, 12, 1, 30)


def equal_with(folder: pathlib.Path, backend: str) -> None:
    model = tiny.load(folder)
    prompts = [tiny.prompt(n, seed=n) for n in LENGTHS]
    wanted = [tiny.logits(model, prompt) for prompt in prompts]
    model.parts = CompiledParts(backend)
    for prompt, one in zip(prompts, wanted):
        torch.testing.assert_close(tiny.logits(model, prompt), one, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("llama", {"hidden_act": "gelu_pytorch_tanh", "attention_bias": True, "mlp_bias": True}),
        ("qwen3", {}),
    ],
    ids=["llama", "qwen3"],
)
def test_the_layers_are_traced_once_for_all_and_equal(
    arch: tiny.Arch, settings: dict, tmp_path: pathlib.Path
) -> None:
    """Three layers, five lengths: the first layer's enter apart, and one token apart, are two
    graphs each, and leave is one and one."""
    folder = tiny.make_model(tmp_path, arch, **settings)
    graphs: list[torch.fx.GraphModule] = []

    def noting(graph, inputs):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    equal_with(folder, noting)
    assert len(graphs) == 6
    torch._dynamo.reset()


def test_a_server_with_torch_compile_gives_the_same_tokens(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compiler, but by the same way."""
    traced: list[int] = []

    def noting(graph, inputs):
        traced.append(len(inputs))
        return graph.forward

    monkeypatch.setattr(compiled, "BACKEND", noting)
    torch._dynamo.reset()
    folder = make_tokenizer(tiny.make_model(tmp_path, vocab=448, num_hidden_layers=2))
    prompts = [tiny.prompt(9, 400), tiny.prompt(17, 400)]
    served = []
    for is_on in (False, True):
        settings = {"attention": "cpu", "dtype": "float32", "kv_tokens": 512, "inline": True}
        with Engine(str(folder), torch_compile=is_on, threads=1, **settings) as engine:
            assert bool(traced) == is_on, "compiled before the first request"
            count = len(traced)
            params = {"max_new_tokens": 5, "temperature": 0, "ignore_eos": True}
            replies = engine.generate(input_ids=prompts, sampling_params=params)
            served.append([reply["output_ids"] for reply in replies])
            assert len(traced) == count, "and not in one"
    assert served[0] == served[1]
    torch._dynamo.reset()


def test_it_is_refused_where_it_has_no_effect() -> None:
    with pytest.raises(ConfigError, match="--torch-compile has no effect on --attention native"):
        resolve(configure(torch_compile=True, attention="native", device="cpu"))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("c++"), reason="inductor needs a compiler")
def test_inductor_computes_the_same(tmp_path: pathlib.Path) -> None:
    equal_with(tiny.make_model(tmp_path, "qwen2"), "inductor")
