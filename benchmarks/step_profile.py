"""Where the time of a step goes, stage by stage, with the floor by bytes and FLOPs beside it.

    python -m benchmarks.step_profile

The scheduler, the cache, the model and the sampler are the real ones, in this process; only sockets
and text are left out. Decode steps have so many rows of CONTEXT tokens each, prefill steps one
prompt of so many tokens. Times are milliseconds: medians over the steps of a round, then over the
rounds. A floor is the longer of two times: what the stage must read at the rate at which this
machine reads memory, and what it must compute at the rate of a large product of torch, both
measured first. Stages that work in the caches have none.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from radixserve.attention import select
from radixserve.cache.prefix import PrefixCache
from radixserve.config.flags import configure
from radixserve.config.resolve import resolve
from radixserve.config.schema import Config, ScheduleConfig
from radixserve.executor.executor import Executor
from radixserve.executor.kv_pool import KvPool
from radixserve.ints import ceil_div
from radixserve.kernels.cpu import library
from radixserve.kernels.cpu.structs import STAGES
from radixserve.layers.context import ForwardContext
from radixserve.models.decoder import attention_shape
from radixserve.models.native import NativeModel
from radixserve.models.registry import Model, load_model
from radixserve.models.spec import ModelSpec, read_spec
from radixserve.plan import StepPlan
from radixserve.sampling.batch import SamplingBatch
from radixserve.scheduler.scheduler import Scheduler
from radixserve.weights import source
from radixserve.wire import codec
from radixserve.wire.messages import Generate
from radixserve.wire.params import SamplingParams

CONTEXT = 500
PAGE = 16
DECODE = (1, 8, 32)
PREFILL = (64, 512, 2048)
GEMMS = ("qkv", "output", "gate_up", "down")
ORDER = (
    "schedule", "inputs", "layers", "embedding", "norms", "GEMMs", "rotary", "attention", "logits",
    "sampling", "output", "all", "mask",
)  # fmt: skip

Times = dict[str, float]


@dataclass(frozen=True, slots=True)
class Rates:
    """Of this machine: bytes and FLOPs a second, with all threads."""

    bytes: float
    flops: float


class TimedModel:
    """A model that adds up the seconds of its calls, and of its stages where it is native."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._stages = model.steps.keep_times() if isinstance(model, NativeModel) else None
        self._forward = self._logits = 0.0

    def forward(self, ids: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        begin = time.perf_counter()
        hidden = self._model.forward(ids, ctx)
        self._forward += time.perf_counter() - begin
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        begin = time.perf_counter()
        logits = self._model.logits(hidden)
        self._logits += time.perf_counter() - begin
        return logits

    def take(self) -> Times:
        """Seconds since the last call: logits and the stages of forward."""
        forward, spent = self._forward, {"logits": self._logits}
        self._forward = self._logits = 0.0
        if self._stages is None:
            return spent | {"layers": forward}
        parts = dict(zip(STAGES, (self._stages / 1e9).tolist()))
        self._stages[:] = 0
        gemms = sum(parts.pop(name) for name in GEMMS)
        names = {"norm": "norms"}
        return spent | {"GEMMs": gemms} | {names.get(k, k): seconds for k, seconds in parts.items()}


class Rig:
    """An executor that computes, and schedulers for it."""

    def __init__(self, config: Config, tokens: int) -> None:
        """tokens: of the KV pool."""
        torch.set_num_threads(config.model.threads)
        self.threads = config.model.threads
        device, dtype = torch.device("cpu"), getattr(torch, config.model.dtype)
        native = library.load() if config.model.attention == "native" else None
        if native is not None:
            native.set_threads(config.model.threads)
        origin = source.resolve(config.model.model)
        self.spec = read_spec(origin)
        self.itemsize: int = dtype.itemsize
        self.model = TimedModel(load_model(origin, self.spec, dtype, device, native))
        if native is not None:
            torch.set_num_threads(1)  # as executor.load does
        shape = attention_shape(self.spec)
        self.pages = ceil_div(tokens, PAGE)
        pool = KvPool(shape, self.pages, PAGE, dtype, device)
        attention = select.choose(config.model.attention, device)(shape, PAGE, pool.k, pool.v)
        slots, vocab = max(DECODE), self.spec.vocab_size
        sampling = SamplingBatch(slots, vocab, device, vocab, native)
        self.executor = Executor(self.model, pool, attention, sampling, slots, device)
        words = ceil_div(vocab, 32)
        self._mask = np.full((slots, words), -1, np.int32)  # all is legal: it costs as much

    def scheduler(self, chunk: int) -> Scheduler:
        """An empty one, on an empty cache. chunk: tokens of prompt in one step."""
        return Scheduler(
            ScheduleConfig(max_running=max(DECODE), chunk=chunk, token_budget=max(chunk, 512)),
            PrefixCache(self.pages, PAGE),
            context_len=self.spec.context_len,
            vocab_size=self.spec.vocab_size,
            stop_ids=(0,),
            token_bytes=[b"x"] * self.spec.vocab_size,
        )

    def step(self, scheduler: Scheduler, *, is_masked: bool = False) -> tuple[StepPlan, Times]:
        """One step, and the seconds of each of its stages."""
        self.model.take()
        marks = [time.perf_counter()]
        plan = scheduler.plan()
        assert plan is not None
        marks.append(time.perf_counter())
        step = self.executor.launch(plan)
        marks.append(time.perf_counter())
        step.sample(self._mask[: plan.rows] if is_masked else None)
        result = step.result()
        marks.append(time.perf_counter())
        events = scheduler.apply(result)
        marks.append(time.perf_counter())
        codec.encode(events)
        marks.append(time.perf_counter())
        planned, launched, sampled, applied, encoded = np.diff(marks).tolist()
        times = self.model.take()
        logits = times["logits"]
        inputs = launched - (sum(times.values()) - logits)
        times |= {"schedule": planned + applied, "inputs": inputs, "sampling": sampled - logits}
        return plan, times | {"output": encoded, "all": marks[-1] - marks[0]}


def request(rid: str, tokens: int, outputs: int, vocab: int, rng: np.random.Generator) -> Generate:
    prompt = rng.integers(1, vocab, size=tokens, dtype=np.int32).tobytes()
    params = SamplingParams(max_new_tokens=outputs, temperature=0.0, ignore_eos=True, seed=0)
    return Generate(rid=rid, prompt=prompt, params=params)


def decode_times(rig: Rig, rows: int, steps: int, rng: np.random.Generator) -> Times:
    """Medians over `steps` steps of `rows` rows, every second one masked."""
    scheduler = rig.scheduler(chunk=512)
    for row in range(rows):
        outputs = 2 * steps + 2 * rows + 8  # the first rows go on while the last are prefilled
        scheduler.handle(request(f"r{row}", CONTEXT, outputs, rig.spec.vocab_size, rng))
    while rig.step(scheduler)[0].tokens != rows:
        pass
    free, masked = [], []
    for _ in range(steps):
        free.append(rig.step(scheduler)[1])
        masked.append(rig.step(scheduler, is_masked=True)[1])
    times = _medians(free)
    return times | {"mask": max(0.0, _medians(masked)["sampling"] - times["sampling"])}


def prefill_times(rig: Rig, tokens: int, steps: int, rng: np.random.Generator) -> Times:
    """Medians over `steps` prompts of `tokens` tokens, each computed in one step."""
    scheduler = rig.scheduler(chunk=tokens)
    times = []
    for turn in range(steps + 1):
        scheduler.handle(request(f"p{turn}", tokens, 1, rig.spec.vocab_size, rng))
        plan, spent = rig.step(scheduler)
        assert plan.tokens == tokens
        times.append(spent)
    return _medians(times[1:])  # the first one touches memory that nobody had


def _medians(steps: Sequence[Times]) -> Times:
    return {name: statistics.median(step[name] for step in steps) for name in steps[0]}


def floors(spec: ModelSpec, itemsize: int, rows: int, tokens: int, rates: Rates) -> Times:
    """Seconds below which no step gets, for the stages that have such a bound.

    rows of CONTEXT tokens and one new one, or one row of `tokens` new ones, of which the last layer
    needs K and V alone but for the row's last.
    """
    head, q_size = spec.head_dim, spec.num_qo_heads * spec.head_dim
    kv_size = spec.num_kv_heads * head
    projections = spec.hidden_size * (2 * q_size + 2 * kv_size + 3 * spec.intermediate_size)
    seen = rows * (CONTEXT + 1) if tokens == rows else tokens * (tokens + 1) // 2
    read = rows * (CONTEXT + 1) if tokens == rows else tokens
    before, left_out = spec.num_layers - 1, tokens - rows
    multiplied = projections * (before * tokens + rows) + spec.hidden_size * 2 * kv_size * left_out
    work = {  # weights or KV that are read, multiply-adds
        "GEMMs": (spec.num_layers * projections, multiplied),
        "attention": (
            spec.num_layers * 2 * kv_size * read,
            2 * q_size * (before * seen + read),
        ),
        "logits": (spec.vocab_size * spec.hidden_size, spec.vocab_size * spec.hidden_size * rows),
    }
    found = {
        stage: max(values * itemsize / rates.bytes, 2 * products / rates.flops)
        for stage, (values, products) in work.items()
    }
    return found | {"all": sum(found.values())}


def measure_rates(dtype: torch.dtype) -> Rates:
    memory = torch.from_numpy(np.ones(1 << 25, np.float64))
    a, b = (torch.randn(1536, 1536).to(dtype) for _ in range(2))
    reading = min(_seconds(memory.sum) for _ in range(8))
    product = min(_seconds(lambda: torch.mm(a, b)) for _ in range(8))
    return Rates(bytes=memory.nbytes / reading, flops=2 * 1536**3 / product)


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def show(name: str, times: Times, least: Times, spread: float) -> None:
    print(
        f"\n{name:<14}{'ms':>10}{'share':>7}{'floor':>10}{'times':>9}   rounds {spread:.0%} apart"
    )
    for stage in (stage for stage in ORDER if stage in times):
        line = f"  {stage:<12}{times[stage] * 1e3:>10.3f}{times[stage] / times['all']:>7.0%}"
        if stage in least:
            line += f"{least[stage] * 1e3:>10.3f}{times[stage] / least[stage]:>8.2f}x"
        print(line + "   beside all, when every row is masked" * (stage == "mask"))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2", help="as radixserve serve takes it")
    parser.add_argument("--dtype", default="auto", help="auto, bfloat16 or float32")
    parser.add_argument("--attention", default="auto", help="auto, native or cpu (torch)")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="0: every core")
    parser.add_argument("--rounds", type=int, metavar="N", help="5, or 2 with --quick")
    parser.add_argument("--quick", action="store_true", help="fewer steps, no prefill of 2,048")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write name: value")
    options = parser.parse_args(arguments)
    config = resolve(
        configure(
            model=options.model, dtype=options.dtype, attention=options.attention,
            threads=options.threads,
        )
    )  # fmt: skip
    out = profile(config, options.rounds or (2 if options.quick else 5), options.quick)
    if options.json:
        options.json.write_text(json.dumps(out, indent=1) + "\n")


def profile(config: Config, rounds: int, is_quick: bool) -> dict[str, float]:
    """Measures and prints every case; returns name: milliseconds."""
    steps, rng = (3, 1) if is_quick else (10, 3), np.random.default_rng(0)
    prefills = PREFILL[:-1] if is_quick else PREFILL
    rates = measure_rates(getattr(torch, config.model.dtype))
    rig = Rig(config, tokens=max(max(DECODE) * 2 * CONTEXT, 2 * max(PREFILL)))
    print(f"reading {rates.bytes / 1e9:.1f} GB/s, products {rates.flops / 1e9:.0f} GFLOP/s")
    cases: dict[str, tuple[Callable[[], Times], int, int]] = {}
    for n in DECODE:
        cases[f"decode_{n}"] = (lambda n=n: decode_times(rig, n, steps[0], rng)), n, n
    for n in prefills:
        cases[f"prefill_{n}"] = (lambda n=n: prefill_times(rig, n, steps[1], rng)), 1, n
    measured: dict[str, list[Times]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (measure, _, _) in cases.items():
            measured[name].append(measure())
    out: dict[str, float] = {"rounds": rounds, "read_gbs": rates.bytes / 1e9}
    out["gflops"] = rates.flops / 1e9
    for name, (_, rows, tokens) in cases.items():
        times = _medians(measured[name])
        alls = [one["all"] for one in measured[name]]
        spread = (max(alls) - min(alls)) / times["all"]
        least = floors(rig.spec, rig.itemsize, rows, tokens, rates)
        show(name, times, least, spread)
        out |= {f"{name}.{stage}_ms": round(value * 1e3, 4) for stage, value in times.items()}
        out |= {f"{name}.{stage}_floor_ms": round(v * 1e3, 4) for stage, v in least.items()}
        out[f"{name}.spread"] = round(spread, 4)
    return out


if __name__ == "__main__":
    main()
