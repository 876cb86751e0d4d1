"""Weights from safetensors: every parameter filled, every tensor used or named (L01, L06)."""

from __future__ import annotations

import json
import logging

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixserve.errors import ModelLoadError
from tests import tiny

HEAD = "lm_head.weight"
NORM = "model.norm.weight"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"


@pytest.fixture(autouse=True)
def log_is_captured(caplog):
    """Whoever ran before may have taken the log away from pytest."""
    logger = logging.getLogger("radixserve")
    before = logger.propagate
    logger.propagate = True
    yield
    logger.propagate = before


def edit_weights(folder, file=SINGLE, **changes):
    """Set tensors of a file; None removes one."""
    tensors = load_file(folder / file) | {k.replace("__", "."): v for k, v in changes.items()}
    save_file({k: v for k, v in tensors.items() if v is not None}, folder / file)


def logits(folder):
    return tiny.logits(tiny.load(folder), tiny.prompt(12))


def expected(folder):
    return tiny.reference_logits(tiny.reference(folder), tiny.prompt(12))


@pytest.mark.parametrize("declared", [True, tiny.ABSENT])
def test_head_without_weights_is_the_embedding(tmp_path, declared):
    tiny.make_model(tmp_path, tied=True)
    assert HEAD not in load_file(tmp_path / SINGLE)
    right = expected(tmp_path)
    tiny.edit_config(tmp_path, tie_word_embeddings=declared)
    model = tiny.load(tmp_path)
    assert model.embedding.head.data_ptr() == model.embedding.table.data_ptr()
    assert (tiny.logits(model, tiny.prompt(12)) - right).abs().max() < 1e-3


@pytest.mark.parametrize("declared", [False, tiny.ABSENT, True])
def test_head_with_weights_of_its_own_is_used(tmp_path, declared, caplog):
    tiny.make_model(tmp_path)
    right = expected(tmp_path)
    tiny.edit_config(tmp_path, tie_word_embeddings=declared)
    assert (logits(tmp_path) - right).abs().max() < 1e-3
    assert ("not tied" in caplog.text) == (declared is True)


def test_copy_of_a_tied_head_is_not_loaded_twice(tmp_path, caplog):
    tiny.make_model(tmp_path, tied=True)
    embedding = load_file(tmp_path / SINGLE)["model.embed_tokens.weight"]
    edit_weights(tmp_path, lm_head__weight=embedding.clone())
    model = tiny.load(tmp_path)
    assert model.embedding.head.data_ptr() == model.embedding.table.data_ptr()
    assert HEAD not in caplog.text


def test_untied_head_without_weights_is_missing(tmp_path):
    tiny.make_model(tmp_path, tied=True)
    tiny.edit_config(tmp_path, tie_word_embeddings=False)
    with pytest.raises(ModelLoadError, match=HEAD):
        tiny.load(tmp_path)


def test_every_missing_tensor_is_named(tmp_path):
    tiny.make_model(tmp_path)
    gone = "model.layers.1.self_attn.k_proj.weight"
    edit_weights(tmp_path, model__norm__weight=None, **{gone.replace(".", "__"): None})
    with pytest.raises(ModelLoadError) as caught:
        tiny.load(tmp_path)
    assert NORM in str(caught.value)
    assert gone in str(caught.value)


def test_unused_tensors_are_named_and_derived_ones_are_not(tmp_path, caplog):
    tiny.make_model(tmp_path)
    right = logits(tmp_path)
    extra = {
        "model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8),
        "model.layers.0.adapter.weight": torch.zeros(3),
        "value_head.bias": torch.zeros(1),
    }
    edit_weights(tmp_path, **{name.replace(".", "__"): one for name, one in extra.items()})
    assert torch.equal(logits(tmp_path), right)
    assert "model.layers.0.adapter.weight" in caplog.text
    assert "value_head.bias" in caplog.text
    assert "inv_freq" not in caplog.text


def test_wrong_shape_names_tensor_and_shapes(tmp_path):
    tiny.make_model(tmp_path)
    edit_weights(tmp_path, model__norm__weight=torch.ones(32))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has shape \[32\].*\[64\]"):
        tiny.load(tmp_path)


def test_integer_weights_are_refused(tmp_path):
    tiny.make_model(tmp_path)
    edit_weights(tmp_path, model__norm__weight=torch.ones(64, dtype=torch.int8))
    with pytest.raises(ModelLoadError, match=r"model\.norm\.weight has dtype torch\.int8"):
        tiny.load(tmp_path)


def test_weights_are_cast_to_the_dtype_asked_for(tmp_path):
    tiny.make_model(tmp_path, dtype=torch.bfloat16)
    model = tiny.load(tmp_path)
    assert {view.dtype for view in model.views().values()} == {torch.float32}
    assert (logits(tmp_path) - expected(tmp_path)).abs().max() < 1e-3


def sharded(folder):
    """A model in several files; their names."""
    tiny.make_model(folder, shards=3)
    files = sorted(file.name for file in folder.glob("*.safetensors"))
    assert len(files) >= 3
    return files


def test_shards(tmp_path):
    sharded(tmp_path)
    assert (logits(tmp_path) - expected(tmp_path)).abs().max() < 1e-3


@pytest.mark.parametrize("stray", [SINGLE, "consolidated.safetensors"])
def test_stray_file_beside_shards_is_ignored(tmp_path, stray, caplog):
    files = sharded(tmp_path)
    right = expected(tmp_path)
    zeros = {
        name: torch.zeros_like(one)
        for file in files
        for name, one in load_file(tmp_path / file).items()
    }
    save_file(zeros, tmp_path / stray)
    assert (logits(tmp_path) - right).abs().max() < 1e-3
    assert stray in caplog.text


@pytest.mark.parametrize("into", [0, 1])
def test_tensor_that_the_index_puts_elsewhere_is_ignored(tmp_path, into, caplog):
    files = sharded(tmp_path)
    right = expected(tmp_path)
    home = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    other = files[into]
    name = next(name for name, file in home.items() if file == files[1 - into])
    shape = load_file(tmp_path / home[name])[name].shape
    edit_weights(tmp_path, other, **{name.replace(".", "__"): torch.zeros(shape)})
    assert (logits(tmp_path) - right).abs().max() < 1e-3
    assert name in caplog.text
    assert other in caplog.text


def test_tensor_that_its_shard_lacks_is_named(tmp_path):
    sharded(tmp_path)
    home = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    edit_weights(tmp_path, home[NORM], model__norm__weight=None)
    with pytest.raises(ModelLoadError, match=rf"{home[NORM]}: lacks {NORM}"):
        tiny.load(tmp_path)


def test_missing_and_broken_files_are_named(tmp_path):
    files = sharded(tmp_path)
    (tmp_path / files[1]).write_bytes(b"not safetensors")
    with pytest.raises(ModelLoadError, match=files[1]):
        tiny.load(tmp_path)
    (tmp_path / files[1]).unlink()
    with pytest.raises(ModelLoadError, match=files[1]):
        tiny.load(tmp_path)
    (tmp_path / INDEX).write_text("[]")
    with pytest.raises(ModelLoadError, match="not a weight index"):
        tiny.load(tmp_path)
    (tmp_path / INDEX).unlink()
    with pytest.raises(ModelLoadError, match=r"neither .* nor model\.safetensors is there"):
        tiny.load(tmp_path)
