"""Steps in one native call against the torch path."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest
import torch

from radixserve.attention.base import AttentionBackend, AttentionInputs
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.native import NativeAttention
from radixserve.kernels.cpu.library import Library
from radixserve.layers.context import ForwardContext
from radixserve.models.decoder import attention_shape
from radixserve.models.native import KEPT_ROWS
from radixserve.models.registry import Model, load_model
from radixserve.models.spec import read_spec
from radixserve.weights import source
from tests import tiny

PAGE = 4


def load(folder: pathlib.Path, dtype: torch.dtype, native: Library | None) -> Model:
    origin = source.resolve(str(folder))
    return load_model(origin, read_spec(origin), dtype, torch.device("cpu"), native)


class Session:
    """A model, its cache and one sequence of tokens."""

    def __init__(self, model: Model, backend: type[CpuAttention] | type[NativeAttention]) -> None:
        shape = attention_shape(model.spec)
        size = (64, PAGE, shape.num_kv_heads, shape.head_dim)
        self.model = model
        self.k, self.v = (
            [torch.zeros(size, dtype=model.dtype) for _ in range(shape.num_layers)]
            for _ in range(2)
        )
        self.attention: AttentionBackend = backend(shape, PAGE, self.k, self.v)

    def step(self, begin: int, ids: list[int]) -> torch.Tensor:
        """Hidden states of tokens begin .. of the sequence: [len(ids), hidden_size]."""
        pages = -(-(begin + len(ids)) // PAGE)
        self.attention.plan(
            AttentionInputs(
                positions=np.array([begin], np.int32),
                lengths=np.array([len(ids)], np.int32),
                page_indptr=np.array([0, pages], np.int32),
                page_indices=63 - np.arange(pages, dtype=np.int32),
            )
        )
        positions = torch.arange(begin, begin + len(ids))
        return self.model.forward(torch.tensor(ids), ForwardContext(positions, self.attention))


CASES = {
    "llama": ("llama", {}),
    "every bias": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "odd sizes": (
        "llama",
        {"head_dim": 24, "num_attention_heads": 3, "num_key_value_heads": 1,
         "hidden_size": 54, "intermediate_size": 77},
    ),
    "qwen2": ("qwen2", {"tied": True}),
    "qwen3": ("qwen3", {}),
}  # fmt: skip


@pytest.mark.parametrize(("arch", "settings"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_steps_of_every_size_are_the_torch_paths(
    native: Library, tmp_path: pathlib.Path, dtype: torch.dtype, arch: tiny.Arch, settings: dict
) -> None:
    folder = tiny.make_model(tmp_path, arch, **settings)
    ours = Session(load(folder, dtype, native), NativeAttention)
    torchs = Session(load(folder, dtype, None), CpuAttention)
    ids = tiny.prompt(80)
    begin = 0
    for n in (70, 1, 7, 2):
        got = ours.step(begin, ids[begin : begin + n])
        wanted = torchs.step(begin, ids[begin : begin + n])
        got_logits, wanted_logits = ours.model.logits(got), torchs.model.logits(wanted)
        assert got_logits.dtype == torch.float32
        if dtype == torch.float32:
            torch.testing.assert_close(got_logits, wanted_logits, rtol=1e-4, atol=1e-4)
        else:
            assert (got_logits - wanted_logits).abs().mean() < 0.05 * wanted_logits.std()
        begin += n


def test_bfloat16_logits_keep_the_bits_that_rounding_would_tie(
    native: Library, tmp_path: pathlib.Path
) -> None:
    model = load(tiny.make_model(tmp_path), torch.bfloat16, native)
    logits = model.logits(torch.randn(3, 64, dtype=torch.bfloat16) * 8)
    assert not torch.equal(logits, logits.bfloat16().float())


def test_logits_of_many_rows_are_those_of_a_few_and_stay(
    native: Library, tmp_path: pathlib.Path
) -> None:
    model = load(tiny.make_model(tmp_path), torch.float32, native)
    hidden = torch.randn(KEPT_ROWS + 1, 64)
    many = model.logits(hidden)
    assert torch.equal(model.logits(hidden[:1]), many[:1])
    assert torch.equal(model.logits(hidden[1:]), many[1:])


def test_an_id_that_no_row_of_the_table_has_is_refused(
    native: Library, tmp_path: pathlib.Path
) -> None:
    session = Session(load(tiny.make_model(tmp_path), torch.float32, native), NativeAttention)
    for bad in (-1, 128):
        with pytest.raises(IndexError):
            session.step(0, [bad])


def test_native_parameters_need_native_attention(native: Library, tmp_path: pathlib.Path) -> None:
    session = Session(load(tiny.make_model(tmp_path), torch.float32, native), CpuAttention)
    with pytest.raises(ValueError, match="native attention"):
        session.step(0, [1])


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_gives_the_same_bits_whole_and_in_parts(
    native: Library, tmp_path: pathlib.Path, tied: bool
) -> None:
    model = load(tiny.make_model(tmp_path, tied=tied), torch.bfloat16, native)
    ids = tiny.prompt(150)
    whole, parts = (Session(model, NativeAttention) for _ in range(2))
    wanted = whole.step(0, ids)
    got = [parts.step(begin, ids[begin:end]) for begin, end in ((0, 90), (90, 91), (91, 150))]
    assert torch.equal(torch.cat(got), wanted)
