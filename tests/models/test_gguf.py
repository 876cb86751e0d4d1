"""GGUF files written by the gguf package, read back by us."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from radixserve.errors import ModelLoadError
from radixserve.models.spec import read_spec
from radixserve.weights import source
from radixserve.weights.gguf import GgufFile, unpermute
from tests import tiny

SAME_FIELDS = [
    "num_kv_heads",
    "head_dim",
    "has_attention_bias",
    "has_output_bias",
    "has_mlp_bias",
    "has_qk_norm",
    "is_tied",
    "context_len",
    "eos_ids",
    "vocab_size",
]


def spec_of(path):
    return read_spec(source.resolve(str(path)))


def agrees(path, reference):
    ids = tiny.prompt(40)
    expected = tiny.reference_logits(reference, ids)
    assert expected.std() > 0.3
    return (tiny.logits(tiny.load(path), ids) - expected).abs().max() < 1e-3


@pytest.mark.parametrize(
    "kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
)
def test_quantised_llama(tmp_path, kind):
    # Rows of 64 and 96 are whole blocks of 32 in every one of these types.
    tiny.make_model(tmp_path)
    assert agrees(tmp_path / "m.gguf", tiny.write_gguf(tmp_path, tmp_path / "m.gguf", kind))


@pytest.mark.parametrize(
    ("arch", "settings"),
    [
        ("llama", {"tied": True}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"head_dim": 32}),
        ("mistral", {}),
        ("qwen2", {}),
        ("qwen2", {"tied": True}),
        ("qwen3", {}),
    ],
)
def test_families(tmp_path, arch, settings):
    tiny.make_model(tmp_path, arch, **settings)
    reference = tiny.write_gguf(tmp_path, tmp_path / "m.gguf", Kind.Q8_0)
    assert agrees(tmp_path / "m.gguf", reference)
    from_folder, from_gguf = spec_of(tmp_path), spec_of(tmp_path / "m.gguf")
    for field in SAME_FIELDS:
        assert getattr(from_gguf, field) == getattr(from_folder, field), field


def test_linear_rope_scaling(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    tiny.make_model(tmp_path, rope=rope)
    scaling = {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}
    reference = tiny.write_gguf(tmp_path, tmp_path / "m.gguf", **scaling)
    assert agrees(tmp_path / "m.gguf", reference)


def test_llama3_scaling_kept_as_divisors(tmp_path, caplog):
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    tiny.make_model(tmp_path, rope=rope)
    plain = 1.0 / 10000.0 ** (np.arange(0, 16, 2, dtype=np.float32) / 16)
    scaled = tiny.reference(tmp_path).model.rotary_emb.inv_freq.numpy()
    assert (plain / scaled).max() > 7
    reference = tiny.write_gguf(
        tmp_path, tmp_path / "m.gguf", extra={"rope_freqs.weight": plain / scaled}
    )
    assert agrees(tmp_path / "m.gguf", reference)
    assert "rope_freqs" not in caplog.text


def test_rows_of_a_head_are_put_back():
    rows = np.arange(8, dtype=np.float32)
    assert unpermute(rows, 2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    matrix = np.random.default_rng(0).random((24, 5), np.float32)
    assert np.array_equal(unpermute(tiny.permute(matrix, 3), 3), matrix)


def supported_kinds():
    for kind, (block, size) in gguf.GGML_QUANT_SIZES.items():
        try:
            gguf.quants.dequantize(np.zeros((1, size), np.uint8), kind)
        except NotImplementedError:
            continue
        yield kind, block, size


@pytest.mark.parametrize(
    ("kind", "block", "size"), [pytest.param(*one, id=one[0].name) for one in supported_kinds()]
)
def test_every_type_that_the_package_dequantises(tmp_path, kind, block, size):
    # Small bytes keep the scales, which are float16 somewhere inside a block, finite.
    raw = (np.arange(3 * 2 * size) % 47).astype(np.uint8).reshape(3, 2 * size)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("first.weight", np.ones(5, np.float32))  # so that padding is at work
    writer.add_tensor("some.weight", raw, raw_dtype=kind)
    finish(writer)
    found = GgufFile(tmp_path / "m.gguf").dequantised("some.weight")
    assert found.shape == (3, 2 * block)
    assert np.array_equal(found, gguf.quants.dequantize(raw, kind), equal_nan=True)


def test_float64(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("some.weight", np.array([0.25, -3.0]))
    finish(writer)
    assert GgufFile(tmp_path / "m.gguf").dequantised("some.weight").tolist() == [0.25, -3.0]


def test_type_that_cannot_be_dequantised_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_tensor("some.weight", np.zeros((1, 292), np.uint8), raw_dtype=Kind.Q8_K)
    finish(writer)
    with pytest.raises(ModelLoadError, match=r"some\.weight of type Q8_K"):
        GgufFile(tmp_path / "m.gguf").dequantised("some.weight")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_metadata_of_every_type(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    values = {
        "int8": -3, "uint8": 200, "int16": -300, "uint16": 60000, "int32": -70000,
        "uint32": 4_000_000_000, "int64": -(2**40), "uint64": 2**63, "float32": 0.5,
        "float64": 0.1, "bool": True, "string": "wörter",
    }  # fmt: skip
    for name, value in values.items():
        getattr(writer, f"add_{name}")(f"a.{name}", value)
    writer.add_array("a.words", ["x", "", "ÿ"])
    writer.add_array("a.numbers", [1, 2, 3])
    finish(writer)
    metadata = GgufFile(tmp_path / "m.gguf").metadata
    assert {name: metadata[f"a.{name}"] for name in values} == values
    assert metadata["a.words"] == ["x", "", "ÿ"]
    assert metadata["a.numbers"] == [1, 2, 3]


REFUSED = {
    "rope scaling": ({"rope.scaling.type": "yarn"}, "'yarn'"),
    "experts": ({"expert_count": 8}, "expert_count 8"),
    "partial rotary": ({"rope.dimension_count": 8}, r"rope\.dimension_count 8"),
    "unlike head sizes": ({"attention.value_length": 8}, r"attention\.value_length"),
}


@pytest.mark.parametrize(("metadata", "named"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(tmp_path, metadata, named):
    tiny.make_model(tmp_path)
    tiny.write_gguf(tmp_path, tmp_path / "m.gguf", **metadata)
    with pytest.raises(ModelLoadError, match=named) as caught:
        spec_of(tmp_path / "m.gguf")
    assert "m.gguf" in str(caught.value)


def test_foreign_architecture_and_split_files_are_refused(tmp_path):
    finish(gguf.GGUFWriter(tmp_path / "m.gguf", "gemma3"))
    with pytest.raises(ModelLoadError, match="'gemma3'"):
        spec_of(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(tmp_path / "part.gguf", "llama")
    writer.add_uint16("split.count", 2)
    finish(writer)
    with pytest.raises(ModelLoadError, match="split"):
        spec_of(tmp_path / "part.gguf")


@pytest.mark.parametrize("size", [0, 3, 30, 400, -1000])
def test_cut_off_and_foreign_files_are_refused(tmp_path, size):
    tiny.make_model(tmp_path)
    tiny.write_gguf(tmp_path, tmp_path / "m.gguf")
    whole = (tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").write_bytes(whole[:size])
    with pytest.raises(ModelLoadError, match=r"m\.gguf"):
        tiny.load(tmp_path / "m.gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGML" + whole[4:])
    with pytest.raises(ModelLoadError, match="magic"):
        tiny.load(tmp_path / "m.gguf")


def test_missing_and_unused_tensors_are_named(tmp_path, caplog):
    tiny.make_model(tmp_path)
    extra = {"blk.0.mystery.weight": np.zeros(3, np.float32)}
    tiny.write_gguf(tmp_path, tmp_path / "m.gguf", extra=extra)
    tiny.load(tmp_path / "m.gguf")
    assert "blk.0.mystery.weight" in caplog.text
    tiny.write_gguf(tmp_path, tmp_path / "m.gguf", without="blk.2.ffn_up.weight")
    with pytest.raises(ModelLoadError, match=r"missing: model\.layers\.2\.mlp\.up_proj\.weight"):
        tiny.load(tmp_path / "m.gguf")


def test_float32_tensors_do_not_alias_the_file(tmp_path):
    tiny.make_model(tmp_path)
    tiny.write_gguf(tmp_path, tmp_path / "m.gguf")
    before = (tmp_path / "m.gguf").read_bytes()
    model = tiny.load(tmp_path / "m.gguf")
    for view in model.views().values():
        view.zero_()
    assert (tmp_path / "m.gguf").read_bytes() == before
    assert not torch.equal(tiny.load(tmp_path / "m.gguf").norm.weight, model.norm.weight)
