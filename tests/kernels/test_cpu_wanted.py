"""A step whose last layer computes the wanted tokens alone: the others change nothing."""

from __future__ import annotations

import pathlib
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.base import AttentionBackend, AttentionInputs
from radixserve.attention.cpu import CpuAttention
from radixserve.attention.native import NativeAttention
from radixserve.kernels.cpu.library import Library
from radixserve.layers.context import ForwardContext
from radixserve.models.compiled import CompiledParts
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.models.native import NativeModel
from radixserve.models.registry import Model, load_model
from radixserve.models.spec import read_spec
from radixserve.scheduler.sharing import shared_groups
from radixserve.weights import source
from tests import tiny

PAGE, PAGES, SHARED = 16, 80, 5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tiny.make_model(tmp_path_factory.mktemp("tiny"), num_hidden_layers=2)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def native_model(
    request: pytest.FixtureRequest, native: Library, folder: pathlib.Path
) -> NativeModel:
    origin = source.resolve(str(folder))
    dtype = getattr(torch, request.param)
    model = load_model(origin, read_spec(origin), dtype, torch.device("cpu"), native)
    assert isinstance(model, NativeModel)
    return model


@pytest.fixture(scope="module")
def torch_model(folder: pathlib.Path) -> Decoder:
    return tiny.load(folder)


@dataclass
class Row:
    """is_sharing: the row begins with SHARED pages that others have too. wanted: of its tokens."""

    is_sharing: bool
    position: int
    wanted: list[bool]


@st.composite
def steps(draw: st.DrawFn) -> list[Row]:
    rows = []
    for _ in range(draw(st.integers(1, 6))):
        is_sharing = draw(st.booleans())
        position = draw(st.integers(0, 40)) + (SHARED * PAGE if is_sharing else 0)
        length = draw(st.sampled_from([1, 1, 2, 7, 16, 45]))
        kind = draw(st.sampled_from(["last", "all", "none", "some"]))
        some = st.lists(st.booleans(), min_size=length, max_size=length)
        wanted = {"all": [True] * length, "none": [False] * length}.get(kind)
        last = [False] * (length - 1) + [True]
        rows.append(Row(is_sharing, position, wanted or (draw(some) if kind == "some" else last)))
    return rows


class Run:
    """The rows on a cache of noise, on one backend."""

    def __init__(self, rows: list[Row], model: Model) -> None:
        shape = attention_shape(model.spec)
        size = (shape.num_layers, PAGES, PAGE, shape.num_kv_heads, shape.head_dim)
        random = torch.Generator().manual_seed(5)
        self.k, self.v = (
            list(torch.randn(size, generator=random).to(model.dtype)) for _ in range(2)
        )
        backend = NativeAttention if isinstance(model, NativeModel) else CpuAttention
        attention: AttentionBackend = backend(shape, PAGE, self.k, self.v)
        free = iter(range(SHARED, PAGES))
        tables = []
        for row in rows:
            own = -(-(row.position + len(row.wanted)) // PAGE) - (SHARED if row.is_sharing else 0)
            shared = range(SHARED) if row.is_sharing else ()
            tables.append([*shared, *(next(free) for _ in range(own))])
        positions = np.array([row.position for row in rows], np.int32)
        lengths = np.array([len(row.wanted) for row in rows], np.int32)
        indptr = np.cumsum([0, *map(len, tables)]).astype(np.int32)
        indices = np.concatenate(tables).astype(np.int32)
        groups = shared_groups(indptr, indices, positions, lengths, PAGE)
        attention.plan(
            AttentionInputs(
                positions=positions,
                lengths=lengths,
                page_indptr=indptr,
                page_indices=indices,
                shared=groups if attention.shares_prefixes else (),
            )
        )
        self.attention, self.model = attention, model
        self.ids = torch.tensor(tiny.prompt(int(lengths.sum())))
        places = [np.arange(n) + first for first, n in zip(positions, lengths)]
        self.positions = torch.from_numpy(np.concatenate(places))

    def hidden(self, wanted: torch.Tensor | None) -> torch.Tensor:
        ctx = ForwardContext(self.positions, self.attention, wanted=wanted)
        return self.model.forward(self.ids, ctx)

    def caches(self) -> torch.Tensor:
        return torch.stack((*self.k, *self.v))


def both(rows: list[Row], model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Hidden states of the wanted tokens, computed alone and beside all others."""
    wanted = torch.tensor([one for row in rows for one in row.wanted]).nonzero().flatten()
    few, whole = Run(rows, model), Run(rows, model)
    got, expected = few.hidden(wanted), whole.hidden(None)
    assert torch.equal(few.caches(), whole.caches()), "K and V of all tokens are stored"
    again = few.hidden(None)
    assert torch.equal(again, expected), "the plan serves the whole step too"
    return got, expected[wanted]


@settings(max_examples=30)
@given(rows=steps())
def test_natively_wanted_tokens_have_the_bits_of_the_whole_step(
    native_model: NativeModel, rows: list[Row]
) -> None:
    got, expected = both(rows, native_model)
    assert torch.equal(got, expected)


@settings(max_examples=15)
@given(rows=steps())
def test_in_torch_wanted_tokens_are_those_of_the_whole_step(
    torch_model: Decoder, rows: list[Row]
) -> None:
    got, expected = both(rows, torch_model)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_compiled_layers_give_the_wanted_tokens_too(folder: pathlib.Path) -> None:
    model = tiny.load(folder)
    model.parts = CompiledParts("eager")
    rows = [Row(False, 3, [False, False, True, True]), Row(False, 9, [True])]
    got, expected = both(rows, model)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_tokens_that_are_not_there_are_refused(native_model: NativeModel) -> None:
    run = Run([Row(False, 0, [True] * 3)], native_model)
    for bad in ([3], [-1], [1, 1], [2, 0]):
        with pytest.raises(IndexError, match="of 3"):
            run.hidden(torch.tensor(bad))
