"""Drives the real Loop and Scheduler over a FakeExecutor, one turn at a time, without threads."""

from __future__ import annotations

import time

import numpy as np

from radixserve.cache.prefix import PrefixCache
from radixserve.config.schema import GrammarConfig, ScheduleConfig
from radixserve.grammar.gate import Gate
from radixserve.loop import Loop, StepExecutor
from radixserve.scheduler.scheduler import Scheduler
from radixserve.wire import codec
from radixserve.wire.messages import (
    Abort,
    Finished,
    Gauges,
    Generate,
    PromptScores,
    Setup,
    ToEngine,
    TokenOut,
)
from radixserve.wire.params import SamplingParams
from tests.fake_executor import FakeExecutor


class ListChannel:
    def __init__(self) -> None:
        self.down: list[bytes] = []
        self.events: list = []

    def drain(self, timeout: float | None) -> list[bytes]:
        frames, self.down = self.down, []
        return frames

    def send(self, frame: bytes) -> None:
        self.events += codec.decode_from_engine(frame)

    def heartbeat(self, frame: bytes) -> None:
        raise AssertionError("no heartbeat here")

    def close(self) -> None: ...


class StillHeart:
    gauges = Gauges()


class EngineDriver:
    """vocab: ids 0 .. vocab - 1; token i's bytes are chr(97 + i)."""

    def __init__(
        self,
        *,
        pages: int = 64,
        page_size: int = 4,
        vocab: int = 5,
        context_len: int = 4096,
        stop_ids: tuple[int, ...] = (),
        overlap: bool = False,
        enabled: bool = True,
        gate: Gate | None = None,
        executor: StepExecutor | None = None,
        **schedule,
    ) -> None:
        defaults = {"max_running": 8, "token_budget": 64, "chunk": 16} | schedule
        self.vocab = vocab
        self.token_bytes = [chr(97 + i).encode() for i in range(vocab)]
        self.cache = PrefixCache(pages, page_size, enabled=enabled, audit=True)
        self.scheduler = Scheduler(
            ScheduleConfig(**defaults),
            self.cache,
            context_len=context_len,
            vocab_size=vocab,
            stop_ids=stop_ids,
            token_bytes=self.token_bytes,
        )
        self.executor = executor or FakeExecutor(pages, page_size, vocab)
        self.channel = ListChannel()
        setup = Setup(config=b"", token_bytes=self.token_bytes, stop_ids=list(stop_ids))
        self.gate = gate or Gate(GrammarConfig(compiler_idle_s=0), setup, vocab, threads=1)
        self.loop = Loop(
            self.channel, self.scheduler, self.executor, StillHeart(), self.gate, overlap=overlap
        )
        self._names = 0

    def submit(self, prompt, max_new: int = 4, rid: str = "", **fields) -> str:
        self._names += 1
        rid = rid or f"r{self._names}"
        params = fields.pop("params", {})
        message = Generate(
            rid=rid,
            prompt=np.asarray(prompt, "<i4").tobytes(),
            params=SamplingParams(max_new_tokens=max_new, seed=0, **params),
            **fields,
        )
        self.channel.down.append(codec.encode([message]))
        return rid

    @staticmethod
    def encoded(message: ToEngine) -> bytes:
        return codec.encode([message])

    def abort(self, rid: str) -> None:
        self.channel.down.append(codec.encode([Abort(rid)]))

    def turn(self) -> None:
        self.loop.turn()
        self.cache.audit()

    def run(self, most: int = 2000) -> None:
        """Until idle; a schedule that never ends fails the test."""
        for _ in range(most):
            self.turn()
            if self.gate.held and self.scheduler.idle:
                time.sleep(0.01)  # the loop itself would wait for messages
            if self.idle:
                return
        raise AssertionError(f"not idle after {most} turns")

    @property
    def idle(self) -> bool:
        return (
            self.scheduler.idle
            and not self.channel.down
            and not self.loop.launched
            and not self.gate.held
        )

    def output(self, rid: str) -> list[int]:
        return [
            token
            for event in self.channel.events
            if isinstance(event, TokenOut) and event.rid == rid
            for token in event.ids
        ]

    def finished(self, rid: str) -> Finished:
        """The one terminal message, which is the last about its rid."""
        about = [event for event in self.channel.events if getattr(event, "rid", None) == rid]
        ends = [event for event in about if isinstance(event, Finished)]
        assert len(ends) == 1, f"{rid}: {len(ends)} terminal messages"
        assert about[-1] is ends[0], f"{rid}: something came after its end"
        return ends[0]

    def scores(self, rid: str) -> dict[int, float]:
        found: dict[int, float] = {}
        for event in self.channel.events:
            if isinstance(event, PromptScores) and event.rid == rid:
                for offset, value in enumerate(event.logprobs.chosen):
                    assert event.start + offset not in found, "a token was scored twice"
                    found[event.start + offset] = value
        return found

    def no_leak(self) -> None:
        """Recipe NOLEAK."""
        gauges = self.scheduler.gauges()
        assert (gauges.running, gauges.waiting, gauges.locked_tokens) == (0, 0, 0)
        assert gauges.free_tokens + gauges.evictable_tokens == gauges.kv_tokens
        self.cache.flush()
        self.cache.audit()
        assert self.cache.free_pages == self.cache.total_pages
