"""Where constrained requests wait for their grammar.

Owns: the requests whose grammar is being compiled, the compiler and the filler of mask rows, which
come with the first of them. Must not know: the scheduler, sockets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from radixserve.config.schema import GrammarConfig
from radixserve.errors import RequestError
from radixserve.grammar.thinking import Bars, Thinker
from radixserve.guide import Guide
from radixserve.ints import ceil_div
from radixserve.wire.messages import Generate, Setup
from radixserve.wire.reasoning import Reasoning

if TYPE_CHECKING:  # xgrammar takes a second to import, which only constrained requests pay
    from radixserve.grammar.compile import Compiler
    from radixserve.grammar.pool import Matcher, RowFiller

Words = npt.NDArray[np.int32]


class Gate:
    """setup: what the engine knows of text. columns: of the logits. threads: for mask rows.

    The compiler is made in a thread, once no call of ready() has come for a while or a constrained
    request has: importing the grammar engine and reading the vocabulary take a second.
    """

    def __init__(self, config: GrammarConfig, setup: Setup, columns: int, threads: int) -> None:
        self._config = config
        self._setup = setup
        self._columns = columns
        self._threads = threads
        self._held: dict[str, Generate] = {}
        self._queued: list[str] = []  # of those, the ones that the compiler has not been given
        self._making: Future[_Parts] | None = None
        self._making_lock = threading.Lock()
        self._turned = time.monotonic()
        self._closed = threading.Event()
        self._bars: dict[tuple[bytes, bytes, tuple[int, ...]], Bars] = {}
        if config.compiler_at_start:
            self._make()
        elif config.compiler_idle_s:
            threading.Thread(target=self._make_when_idle, name="grammar-idle", daemon=True).start()

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def hold(self, message: Generate) -> None:
        """Keep a request with a constraint until ready() returns it."""
        self._held[message.rid] = message
        self._queued.append(message.rid)
        self._make()

    def cancel(self, rid: str) -> bool:
        """Forget a request; False where it does not wait here."""
        if self._held.pop(rid, None) is None:
            return False
        if rid in self._queued:
            self._queued.remove(rid)
        elif (parts := self._parts()) is not None:
            parts.compiler.cancel(rid)
        return True

    def ready(self) -> list[tuple[Generate, Guide | RequestError]]:
        """Each request whose guide, or refusal, has come since the last call. Called in each turn
        of the loop, which sleeps where there is no work."""
        self._turned = time.monotonic()
        if not self._held:
            return []
        parts = self._parts()
        if parts is None:
            return []
        for rid in self._queued:
            self._submit(parts, self._held[rid])
        self._queued.clear()
        return [self._answered(rid, found) for rid, found in parts.compiler.poll()]

    def thinker(self, message: Generate) -> Thinker | None:
        """The guide of a request without a constraint, where it has reasoning to watch."""
        if message.reasoning is None:
            return None
        return Thinker(message.reasoning, self._setup.token_bytes, self._columns)

    def rows(self, guides: Sequence[Guide | None]) -> Words | None:
        """Mask rows of a step, in the order of its sampling rows: see pool.RowFiller.rows; None
        where every row may draw any id."""
        knowing = [g.speaking if isinstance(g, Thinker) else g for g in guides]
        thinkers = [g for g in guides if isinstance(g, Thinker) and g.narrows]
        if not any(knowing) and not thinkers:
            return None
        rows = self._filled(knowing)
        for guide, row in zip(guides, rows):
            if isinstance(guide, Thinker):
                guide.narrow(row)
        return rows

    def _filled(self, guides: Sequence[object]) -> Words:
        parts = self._parts()
        if parts is None:  # no grammar was ever compiled
            return np.full((len(guides), ceil_div(self._columns, 32)), -1, np.int32)
        from radixserve.grammar.pool import Matcher

        return parts.filler.rows([g if isinstance(g, Matcher) else None for g in guides])

    def counts(self) -> dict[str, float]:
        """For Gauges."""
        parts = self._parts()
        if parts is None:
            return {"compiling": self.held}
        return {
            "compiling": self.held,
            "grammar_compiles": parts.compiler.compiled,
            "grammar_cache_hits": parts.compiler.hits,
            "grammar_compile_seconds": parts.compiler.seconds,
        }

    def close(self) -> None:
        with self._making_lock:
            self._closed.set()
        if self._making is not None:
            self._making.result().compiler.close()

    def _answered(
        self, rid: str, found: Matcher | RequestError
    ) -> tuple[Generate, Guide | RequestError]:
        message = self._held.pop(rid)
        reasoning = message.reasoning
        if reasoning is None or isinstance(found, RequestError):
            return message, found
        bars = self._bars_of(reasoning, message.params.stop_token_ids)
        thinker = Thinker(reasoning, self._setup.token_bytes, self._columns, found, bars)
        return message, thinker

    def _bars_of(self, reasoning: Reasoning, own: tuple[int, ...]) -> Bars:
        """Kept for the tags of the model; of requests with stop ids of their own, the last one."""
        key = (reasoning.end, reasoning.gap, own)
        if key not in self._bars:
            self._bars = {kept: bars for kept, bars in self._bars.items() if not kept[2]}
            stops = (*self._setup.stop_ids, *own)
            self._bars[key] = Bars(reasoning, self._setup.token_bytes, stops, self._columns)
        return self._bars[key]

    def _submit(self, parts: _Parts, message: Generate) -> None:
        assert message.constraint is not None
        params = message.params
        ends = () if params.ignore_eos else self._setup.stop_ids
        stops = (*ends, *params.stop_token_ids)
        parts.compiler.submit(message.rid, message.constraint, stops, message.namespace)

    def _parts(self) -> _Parts | None:
        """None while they are being made."""
        if self._making is None or not self._making.done():
            return None
        return self._making.result()

    def _make_when_idle(self) -> None:
        patience = self._config.compiler_idle_s
        left = patience
        while self._making is None and left > 0:
            if self._closed.wait(left):
                return
            left = self._turned + patience - time.monotonic()
        if threading.main_thread().is_alive():  # else no thread can be started any more
            self._make()

    def _make(self) -> None:
        with self._making_lock:
            if self._making is None and not self._closed.is_set():
                starter = ThreadPoolExecutor(1, "grammar-start")
                self._making = starter.submit(self._made)
                starter.shutdown(wait=False)

    def _made(self) -> _Parts:
        from radixserve.grammar.compile import Compiler, Limits
        from radixserve.grammar.pool import RowFiller
        from radixserve.grammar.vocabulary import Vocabulary

        config = self._config
        limits = Limits(
            seconds=config.compile_seconds,
            mask_seconds=config.mask_seconds,
            cache_bytes=config.cache_mib * 2**20,
            waiting=config.max_compiling,
            forces=config.forced_tokens,
        )
        setup = self._setup
        vocabulary = Vocabulary(setup.token_bytes, setup.stop_ids, self._columns, setup.marks)
        compiler = Compiler(vocabulary, limits, setup.tokenizer)
        compiler.warm()
        return _Parts(compiler, RowFiller(vocabulary, self._threads, config.mask_seconds))


class _Parts(NamedTuple):
    compiler: Compiler
    filler: RowFiller
