"""The executor for a GPU on a fake one: what it draws is what the CPU's executor draws, and the
host waits for nothing but the ids of the step before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radixserve.attention.cpu import CpuAttention
from radixserve.config.flags import configure
from radixserve.config.schema import ScheduleConfig
from radixserve.errors import ConfigError, RadixServeError
from radixserve.executor import memory
from radixserve.executor.device_executor import DeviceExecutor, packed
from radixserve.executor.executor import Executor
from radixserve.executor.graphs import GraphStore, graph_sizes, is_pure_decode, padded_inputs
from radixserve.executor.kv_pool import KvPool
from radixserve.executor.load import on_device
from radixserve.models.decoder import Decoder, attention_shape
from radixserve.plan import Opened, Output, PageId, SlotId, StepPlan
from radixserve.sampling.batch import SamplingBatch
from radixserve.wire.messages import FinishReason
from radixserve.wire.params import SamplingParams
from tests import tiny
from tests.engine_driver import EngineDriver
from tests.fake_device import FakeDevice, OnDevice, ReadByHost, reading
from tests.staged_attention import StagedAttention

CPU = torch.device("cpu")
VOCAB, PAGE, PAGES, SLOTS = 32, 4, 48, 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder = tmp_path_factory.mktemp("tiny")
    return tiny.load(tiny.make_model(folder, vocab=VOCAB, num_hidden_layers=2, eos_token_id=0))


def plain_executor(model: Decoder) -> Executor:
    shape = attention_shape(model.spec)
    pool = KvPool(shape, PAGES, PAGE, torch.float32, CPU)
    attention = CpuAttention(shape, PAGE, pool.k, pool.v)
    return Executor(model, pool, attention, SamplingBatch(SLOTS, VOCAB, CPU), SLOTS, CPU)


def device_executor(
    model: Decoder, device: FakeDevice, *, uses_graphs: bool = True, staged: bool = True
) -> DeviceExecutor:
    shape = attention_shape(model.spec)
    pool = KvPool(shape, PAGES + 1, PAGE, torch.float32, CPU)
    backend = StagedAttention if staged else CpuAttention
    return DeviceExecutor(
        model,
        pool,
        backend(shape, PAGE, pool.k, pool.v),
        SamplingBatch(SLOTS, VOCAB, CPU),
        device,
        scratch=PageId(PAGES),
        uses_graphs=uses_graphs,
    )


PARAMS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "ignore_eos": True},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.8},
    {"temperature": 1.2, "min_p": 0.05, "frequency_penalty": 0.6, "repetition_penalty": 1.4},
    {"temperature": 0.0, "logit_bias": {3: 4.0}, "presence_penalty": 0.5, "min_new_tokens": 3},
)
Request = tuple[int, int, int, int]  # the prompt's length, how much is shared, params, tokens


def prompt_of(length: int, shared: int, which: int) -> list[int]:
    common = tiny.prompt(24, VOCAB, seed=1)
    return [*common[: min(shared, length)], *tiny.prompt(length, VOCAB, seed=which + 2)][:length]


def serve(executor: Any, requests: list[Request], overlap: bool) -> dict[str, Any]:
    """Outputs and what else is told, when one more request comes in every second turn."""
    driver = EngineDriver(
        pages=PAGES, page_size=PAGE, vocab=VOCAB, overlap=overlap, executor=executor,
        max_running=SLOTS, token_budget=24, chunk=8, shared_attention=False, stop_ids=(0,),
    )  # fmt: skip
    rids = []
    for which, (length, shared, params, n) in enumerate(requests):
        prompt = prompt_of(length, shared, which)
        rids.append(driver.submit(prompt, n, params=PARAMS[params]))
        driver.turn()
        driver.turn()
    driver.run()
    driver.no_leak()
    return {rid: (driver.output(rid), driver.finished(rid).reason) for rid in rids}


requests = st.lists(
    st.tuples(st.integers(1, 30), st.integers(0, 24), st.integers(0, 4), st.integers(3, 9)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=6, deadline=None)
@given(requests=requests, uses_graphs=st.booleans(), overlap=st.booleans())
def test_a_device_draws_what_the_cpu_draws(
    model: Decoder, requests: list[Request], uses_graphs: bool, overlap: bool
) -> None:
    wanted = serve(plain_executor(model), requests, overlap=False)
    device = FakeDevice()
    executor = device_executor(model, device, uses_graphs=uses_graphs)
    assert serve(executor, requests, overlap) == wanted
    assert bool(device.captures) == bool(device.replays)
    assert not device.replays or uses_graphs
    assert not device.captures or device.captures[0] == SLOTS


def test_graphs_serve_decode_steps(model: Decoder) -> None:
    device = FakeDevice()
    executor = device_executor(model, device)
    requests: list[Request] = [(n, 0, 0, 9) for n in (5, 6, 7)]
    assert serve(executor, requests, True) == serve(plain_executor(model), requests, False)
    assert device.captures[0] == SLOTS, "the largest comes first"
    assert {1, 2, 4} & set(device.captures)
    assert device.replays >= 8
    assert len(executor.graphs) == len(device.captures), "nothing is captured twice"


def test_a_backend_that_plans_at_once_is_served_too(model: Decoder) -> None:
    requests: list[Request] = [(9, 4, 1, 6), (9, 4, 0, 6)]
    with reading():
        found = serve(device_executor(model, FakeDevice(), staged=False), requests, True)
    assert found == serve(plain_executor(model), requests, False)


# ---- steps by hand ----

EMPTY = np.zeros(0, np.int32)


def plan_of(
    step: int, rows: list[tuple[int, int, list[int] | None]], *, opened: tuple[Opened, ...] = ()
) -> StepPlan:
    """rows: slot, position of the first token, ids or None for the last sampled. Slot s has the
    pages 8 * s and on."""
    lengths = [1 if ids is None else len(ids) for _, _, ids in rows]
    tables = [
        range(8 * slot, 8 * slot - (-(first + n) // PAGE))
        for (slot, first, _), n in zip(rows, lengths)
    ]
    return StepPlan(
        step=step,
        slots=np.array([slot for slot, _, _ in rows], np.int32),
        positions=np.array([first for _, first, _ in rows], np.int32),
        lengths=np.array(lengths, np.int32),
        ids=np.array([i for _, _, ids in rows for i in (ids or [0])], np.int32),
        from_last=np.array([ids is None for _, _, ids in rows]),
        outputs=np.full(len(rows), Output.SAMPLE, np.int8),
        page_indptr=np.cumsum([0, *map(len, tables)]).astype(np.int32),
        page_indices=np.array([page for table in tables for page in table], np.int32),
        samples=np.array([f + n for (_, f, _), n in zip(rows, lengths)], np.int32),
        opened=opened,
    )


def opened(slot: int, **fields: Any) -> Opened:
    params = SamplingParams(max_new_tokens=9, **({"temperature": 0.0, "seed": 3} | fields))
    return Opened(SlotId(slot), params, np.array([5, 6, 7], np.int32), EMPTY)


@pytest.mark.parametrize("uses_graphs", [False, True])
def test_the_host_waits_only_for_the_step_before(model: Decoder, uses_graphs: bool) -> None:
    """n + 1 is launched before the ids of n are there, by one copy; the tokens are the same."""
    device = FakeDevice()
    executor = device_executor(model, device, uses_graphs=uses_graphs)
    step = executor.launch(plan_of(0, [(1, 0, [4, 5, 6])], opened=(opened(1),)))
    step.sample()
    plain = plain_executor(model)
    one = plain.launch(plan_of(0, [(1, 0, [4, 5, 6])], opened=(opened(1),)))
    one.sample()
    wanted = [one.result().ids.tolist()]
    for number in range(1, 12):
        plan = plan_of(number, [(1, 2 + number, None)])
        waits, copies = device.waits, device.copies
        following = executor.launch(plan)
        assert (device.waits - waits, device.copies - copies) == (
            0,
            1 + (uses_graphs and number == 1),
        )
        assert step.result().ids.tolist() == wanted[-1]
        assert device.waits - waits == 1
        following.sample()
        assert device.waits - waits == 1
        step = following
        one = plain.launch(plan)
        one.sample()
        wanted.append(one.result().ids.tolist())


def test_a_slot_taken_over_in_flight_counts_its_own_tokens(model: Decoder) -> None:
    """Slot 0 changes hands while a step of its first request is in flight."""
    executor = device_executor(model, FakeDevice())
    penalty = {"repetition_penalty": 1.5}
    first = executor.launch(plan_of(0, [(0, 0, [5, 6])], opened=(opened(0, **penalty),)))
    first.sample()
    second = executor.launch(plan_of(1, [(0, 0, [8, 9])], opened=(opened(0, **penalty),)))
    drawn = int(first.result().ids[0])
    counts = executor._sampling.seen[0]
    assert counts.counts.sum() == 0, f"{drawn} was counted for the other request"
    second.sample()
    second.result()
    assert counts.counts.sum() == 1


def test_masks_hold_on_the_device(model: Decoder) -> None:
    legal = np.zeros((2, VOCAB), np.bool_)
    legal[0, [4, 9]] = legal[1, 11] = True
    words = packed(legal, VOCAB)
    for mask in (legal, words):
        executor = device_executor(model, FakeDevice())
        slots = opened(0), opened(1, temperature=1.0)
        step = executor.launch(plan_of(0, [(0, 0, [5, 6]), (1, 0, [7])], opened=slots))
        step.sample(mask)
        ids = step.result().ids.tolist()
        assert ids[0] in (4, 9)
        assert ids[1] == 11
    step.sample(np.zeros((2, VOCAB), np.bool_))
    with pytest.raises(ValueError, match=r"rows \[0, 1\] have no finite best logit"):
        step.result()
    executor.launch(plan_of(1, [(0, 2, None)])).sample()  # goes on with a token that exists


def test_logprobs_scores_and_sums_are_those_of_the_cpu(model: Decoder) -> None:
    from radixserve.plan import HiddenRange, ScoreRange

    def run(executor: Any) -> Any:
        plan = plan_of(0, [(0, 0, [5, 6, 7]), (1, 0, [4, 8])])
        wants = Opened(SlotId(0), SamplingParams(temperature=0.0), EMPTY, EMPTY, (), 3, (9, 2))
        targets = np.array([6, 7], np.int32)
        fields = {
            "opened": (wants, opened(1)),
            "outputs": np.array([Output.SAMPLE, Output.HIDDEN], np.int8),
            "scores": (ScoreRange(0, 0, targets, 2),),
            "hidden": (HiddenRange(1, 0),),
        }
        names = [name for name in StepPlan.__slots__ if name not in fields]
        plan = StepPlan(**{name: getattr(plan, name) for name in names}, **fields)
        step = executor.launch(plan)
        step.sample()
        with reading():
            return step.result()

    got, wanted = run(device_executor(model, FakeDevice())), run(plain_executor(model))
    assert got.ids.tolist() == wanted.ids.tolist()
    for one, other in [
        (got.logprobs[0], wanted.logprobs[0]),
        (got.scores[0], wanted.scores[0]),
    ]:
        assert one.top_ids.tolist() == other.top_ids.tolist()
        np.testing.assert_allclose(one.chosen, other.chosen, atol=1e-5)
        np.testing.assert_allclose(one.top, other.top, atol=1e-5)
    np.testing.assert_allclose(got.hidden[0], wanted.hidden[0], atol=1e-4)
    assert got.rows.tolist() == wanted.rows.tolist() == [0]


def test_the_fake_device_is_strict() -> None:
    device = FakeDevice()
    there = device.empty(8)
    host = device.pinned(8)
    with pytest.raises(ReadByHost):
        (there + 1).sum().item()
    with pytest.raises(ReadByHost):
        bool(there[0] == 0)
    device.send(host, there)
    host[0] = 1
    event = device.event()
    with pytest.raises(AssertionError, match="pinned memory changed"):
        event.wait()
    device.fetch(there, host)
    assert host[0] != 0, "what is on its way reads as nonsense"
    assert not device.event().is_done()
    device.event().wait()
    assert host.tolist() == [0] * 8
    source = device.empty(2)
    graph = device.capture(lambda: source * 2 + 1)
    source.fill_(5)
    graph.replay()
    assert graph.output.as_subclass(torch.Tensor).tolist() == [11, 11]
    assert isinstance(graph.output, OnDevice)


# ---- graphs ----


def test_sizes_of_graphs() -> None:
    assert graph_sizes(1) == (1,)
    assert graph_sizes(8) == (1, 2, 4, 8)
    assert graph_sizes(40) == (1, 2, 4, 8, 16, 32, 40)
    assert graph_sizes(256)[:6] == (1, 2, 4, 8, 16, 32)
    store = GraphStore(FakeDevice(), graph_sizes(40))
    assert [store.size_for(n) for n in (1, 3, 9, 33, 40, 41)] == [1, 4, 16, 40, 40, None]


def test_padding_writes_to_the_scratch_page_alone() -> None:
    plan = plan_of(3, [(0, 5, None), (2, 8, None)])
    assert is_pure_decode(plan)
    assert not is_pure_decode(plan_of(0, [(0, 0, [5, 6])]))
    inputs = padded_inputs(plan, 4, PageId(PAGES))
    assert inputs.page_indptr.tolist() == [0, 2, 5, 6, 7]
    assert inputs.page_indices.tolist() == [0, 1, 16, 17, 18, PAGES, PAGES]
    assert inputs.positions.tolist() == [5, 8, 0, 0]


# ---- memory ----


def test_a_full_step_fills_budget_and_slots() -> None:
    schedule = ScheduleConfig(max_running=3, token_budget=8)
    plan = memory.profile_plan(schedule, page_size=2, context_len=100)
    assert (plan.rows, plan.tokens) == (3, 8)
    assert plan.lengths.tolist() == [3, 3, 2]
    assert plan.page_indices.tolist() == list(range(5))
    assert memory.profile_plan(schedule, 2, context_len=2).lengths.tolist() == [2, 2, 2]


def test_the_pool_gets_what_a_step_leaves() -> None:
    assert memory.left_for_pool(1000, 100, uses_graphs=False) == 900
    assert memory.left_for_pool(1000, 100, uses_graphs=True) == 800
    assert memory.left_for_pool(100, 300, uses_graphs=True) == 0


@pytest.mark.parametrize("free", [2**22, 2**23])
def test_pages_follow_free_memory(model: Decoder, free: int) -> None:
    config = configure(
        max_running=4, token_budget=32, attention="reference", threads=1, page_size=4,
        device="cpu", memory_share=0.5,
    )  # fmt: skip
    with reading():
        executor, pages = on_device(config, model, model.spec, VOCAB, FakeDevice(free))
    shape = attention_shape(model.spec)
    token = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * 4
    own = 9 * 4 * token  # of the pool that the measured step had: pages of 4 rows, and the scratch
    left = free - 2 * (2**17 - own)
    assert pages == min(int(left * 0.5) // (4 * token), 4 * model.spec.context_len // 4)
    assert isinstance(executor, DeviceExecutor)
    small = configure(kv_tokens=2**20, max_running=4, attention="reference")
    with pytest.raises(ConfigError, match="kv_tokens"), reading():
        on_device(small, model, model.spec, VOCAB, FakeDevice(free))


def test_running_out_of_memory_names_the_settings(model: Decoder) -> None:
    executor = device_executor(model, FakeDevice())

    class Full(StagedAttention):
        def run(self, *_: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    pool = KvPool(attention_shape(model.spec), 2, PAGE, torch.float32, CPU)
    executor._attention = Full(attention_shape(model.spec), PAGE, pool.k, pool.v)
    with pytest.raises(RadixServeError, match=r"--memory-share.*--token-budget.*2 GiB\)"):
        executor.launch(plan_of(0, [(0, 0, [5, 6])], opened=(opened(0),)))


def test_a_failed_step_leaves_the_others_right(model: Decoder) -> None:
    """With the next step in flight: requests are requeued once and end as if nothing was."""
    requests: list[Request] = [(9, 4, 1, 6), (7, 4, 3, 6)]
    wanted = serve(plain_executor(model), requests, False)

    class Faulty:
        def __init__(self, executor: DeviceExecutor) -> None:
            self.executor, self.steps = executor, 0

        def launch(self, plan: StepPlan) -> Any:
            self.steps += 1
            if self.steps == 5:
                raise RuntimeError("injected")
            return self.executor.launch(plan)

    found = serve(Faulty(device_executor(model, FakeDevice())), requests, True)
    assert {rid: ids for rid, (ids, _) in found.items()} == {r: i for r, (i, _) in wanted.items()}
    assert all(reason is not FinishReason.ERROR for _, reason in found.values())
