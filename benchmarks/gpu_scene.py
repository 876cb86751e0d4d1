"""What the GPU check measures on: a decoder of random weights, an executor, steps made by hand.

Owns: shapes, a device on the CPU for the tiny mode, plans of decode and prefill steps. Must not
know: what is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention import select
from radixserve.executor.device import CudaDevice, Device
from radixserve.executor.device_executor import DeviceExecutor
from radixserve.executor.kv_pool import KvPool
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.models.spec import ModelSpec, RopeSpec
from radixserve.plan import Int32, Opened, Output, PageId, SlotId, StepPlan
from radixserve.sampling.batch import SamplingBatch
from radixserve.scheduler.sharing import shared_groups
from radixserve.wire.params import SamplingParams

PAGE = 16
EMPTY = np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What one mode of the check runs on. decode, prefill: rows and tokens of the steps measured;
    kv: tokens of a decode row; shared, own: of rows on a prefix; steps: of each measurement, after
    `warmup` others. top_p: of every draw."""

    large: ModelSpec
    small: ModelSpec
    dtype: torch.dtype
    decode: tuple[int, ...]
    prefill: tuple[int, ...]
    kv: int
    shared_rows: int
    shared: int
    own: int
    steps: int
    warmup: int
    top_p: float


def _spec(
    layers: int, hidden: int, inner: int, heads: int, kv: int, dim: int, vocab: int
) -> ModelSpec:
    return ModelSpec(
        architecture="LlamaForCausalLM",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=layers,
        num_qo_heads=heads,
        num_kv_heads=kv,
        head_dim=dim,
        rms_eps=1e-5,
        context_len=16384,
        rope=RopeSpec(theta=500000.0),
        is_tied=False,
    )


FULL = Sizes(
    large=_spec(32, 4096, 14336, 32, 8, 128, 128256),
    small=_spec(16, 2048, 8192, 32, 8, 64, 128256),
    dtype=torch.bfloat16,
    decode=(1, 16, 64, 256),
    prefill=(2048, 8192),
    kv=2048,
    shared_rows=256,
    shared=4096,
    own=256,
    steps=40,
    warmup=6,
    top_p=0.95,
)
TINY = Sizes(
    large=_spec(1, 32, 32, 4, 2, 16, 64),
    small=_spec(1, 32, 32, 4, 2, 16, 64),
    dtype=torch.float32,
    decode=(1, 3),
    prefill=(20,),
    kv=20,
    shared_rows=4,
    shared=32,
    own=8,
    steps=2,
    warmup=1,
    top_p=1.0,
)


class _Done:
    def wait(self) -> None: ...

    def is_done(self) -> bool:
        return True


class _Again:
    """A graph that computes again what it was made of."""

    def __init__(self, run: Callable[[], torch.Tensor]) -> None:
        self._run = run
        self.output = run()

    def replay(self) -> None:
        self.output.copy_(self._run())


class CpuDevice:
    """Device on the CPU, with the kernels where Triton interprets them: all at once, no queue."""

    place = torch.device("cpu")
    has_kernels = True

    def empty(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    pinned = empty

    def send(self, host: torch.Tensor, out: torch.Tensor) -> None:
        out.copy_(host)

    fetch = send

    def event(self) -> _Done:
        return _Done()

    def capture(self, run: Callable[[], torch.Tensor]) -> _Again:
        return _Again(run)

    def free_memory(self) -> int:
        return 2**28

    def peak_memory(self, run: Callable[[], None]) -> int:
        run()
        return 0


def device(is_tiny: bool) -> Device:
    return CpuDevice() if is_tiny else CudaDevice()


def random_model(spec: ModelSpec, dtype: torch.dtype, place: torch.device) -> Decoder:
    """Weights of a normal distribution, made on the device."""
    model = Decoder(spec, dtype=dtype, device=place)
    torch.manual_seed(0)
    for name, view in model.views().items():
        if view.ndim == 1:
            view.fill_(1.0)
        else:
            view.normal_(0.0, view.shape[1] ** -0.5)
        assert view.device.type == place.type, name
    return model


def make_executor(
    model: Decoder,
    on: Device,
    *,
    pages: int,
    slots: int,
    uses_graphs: bool = True,
    kv_dtype: torch.dtype | None = None,
) -> DeviceExecutor:
    """With Triton attention and a pool of so many pages and a scratch page. kv_dtype: of the pool,
    the model's where None."""
    shape = attention_shape(model.spec)
    pool = KvPool(shape, pages + 1, PAGE, kv_dtype or model.dtype, on.place)
    attention = select.choose("triton", on.place)(
        shape, PAGE, pool.k, pool.v, model.attention_tensors
    )
    sampling = SamplingBatch(slots, model.spec.vocab_size, on.place)
    return DeviceExecutor(
        model, pool, attention, sampling, on, scratch=PageId(pages), uses_graphs=uses_graphs
    )


def tables(rows: int, tokens: int, shared: int = 0) -> list[Int32]:
    """Page tables of rows with so many tokens each, the first `shared` of them in common."""
    common = np.arange(shared // PAGE, dtype=np.int32)
    own = -(-(tokens - len(common) * PAGE) // PAGE)
    return [
        np.concatenate((common, np.arange(own, dtype=np.int32) + len(common) + row * own))
        for row in range(rows)
    ]


def step_plan(
    number: int,
    rows: list[Int32],
    positions: int,
    length: int,
    *,
    groups: bool = False,
    top_p: float = 1.0,
) -> StepPlan:
    """Each row computes `length` tokens from `positions` on and draws; length 1 continues what was
    drawn. The first step (number 0) opens the slots. groups: with shared-prefix groups."""
    n = len(rows)
    used = [table[: -(-(positions + length) // PAGE)] for table in rows]
    indptr = np.cumsum([0, *map(len, used)]).astype(np.int32)
    indices = np.concatenate(used)
    places, lengths = np.full(n, positions, np.int32), np.full(n, length, np.int32)
    params = SamplingParams(max_new_tokens=10_000, temperature=0.8, top_p=top_p, seed=1)
    return StepPlan(
        step=number,
        slots=np.arange(n, dtype=np.int32),
        positions=places,
        lengths=lengths,
        ids=np.ones(n * length, np.int32),
        from_last=np.full(n, length == 1 and number > 0),
        outputs=np.full(n, Output.SAMPLE, np.int8),
        page_indptr=indptr,
        page_indices=indices,
        samples=places + length,
        opened=() if number else tuple(Opened(SlotId(s), params, EMPTY, EMPTY) for s in range(n)),
        shared=shared_groups(indptr, indices, places, lengths, PAGE) if groups else (),
    )
