"""The embedded model against transformers: greedy tokens in float32."""

from __future__ import annotations

import pathlib
import shutil

import pytest
import torch
import transformers

from radixserve.engine import Engine
from radixserve.text.gguf_tokenizer import convert
from radixserve.weights.source import ModelSource
from tests import tiny
from tests.e2e.conftest import check_no_leak

pytestmark = pytest.mark.model

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):",
    "Water boils at 100 degrees Celsius, and it freezes at",
    "<|im_start|>user\nName three fruits.<|im_end|>\n<|im_start|>assistant\n",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,",
    "Dear Sir or Madam,\n\nI am writing to",
    "The mitochondria is the",
    '{"name": "Ada Lovelace", "born": 1815, "field": "',
    "In the year 2050, most people will live in",
]


@pytest.fixture(scope="module")
def by_transformers() -> dict[str, list[int]]:
    model = tiny.smollm2_reference()
    found = {}
    with Engine("smollm2", inline=True, dtype="float32", kv_tokens=64, threads=1) as engine:
        encode = engine._gateway.renderer.encode_text
        ids = {prompt: encode(prompt).tolist() for prompt in PROMPTS}
    ends = model.generation_config.eos_token_id
    model.generation_config.eos_token_id = None  # the engine ignores ends too
    config = transformers.GenerationConfig(max_new_tokens=64, do_sample=False, pad_token_id=0)
    torch.set_num_threads(1)  # this fixture comes before the one that does so for each test
    with torch.inference_mode():
        for prompt, known in ids.items():
            out = model.generate(torch.tensor([known]), generation_config=config)
            found[prompt] = out[0, len(known) :].tolist()
    model.generation_config.eos_token_id = ends
    return found


@pytest.mark.parametrize("origin", ["gguf", "safetensors"])
def test_64_greedy_tokens_on_ten_prompts(
    origin: str,
    by_transformers: dict[str, list[int]],
    smollm2: ModelSource,
    tmp_path: pathlib.Path,
) -> None:
    """All ten at once, so that the batch is mixed; from the GGUF and from a folder of the same."""
    model = "smollm2"
    if origin == "safetensors":
        model = str(tiny.smollm2_folder(tmp_path))
        shutil.copytree(convert(smollm2.path), tmp_path, dirs_exist_ok=True)
    params = {"temperature": 0, "max_new_tokens": 64, "ignore_eos": True}
    with Engine(model, inline=True, dtype="float32", kv_tokens=8192, threads=1) as engine:
        replies = engine.generate(PROMPTS, params)
        check_no_leak(engine)
    for prompt, reply in zip(PROMPTS, replies):
        assert reply["output_ids"] == by_transformers[prompt], prompt
