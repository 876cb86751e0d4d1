"""Where constrained requests wait for their grammar.

Owns: the requests whose grammar is being compiled, the compiler and the filler of mask rows, which
come with the first of them. Must not know: the scheduler, sockets.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from radixserve.config.schema import GrammarConfig
from radixserve.errors import RequestError
from radixserve.guide import Guide
from radixserve.wire.messages import Generate, Setup

if TYPE_CHECKING:  # xgrammar takes a second to import, which only constrained requests pay
    from radixserve.grammar.compile import Compiler
    from radixserve.grammar.pool import RowFiller

Words = npt.NDArray[np.int32]


class Gate:
    """setup: what the engine knows of text. columns: of the logits. threads: for mask rows.

    The compiler is made in a thread when the first constrained request comes: reading the
    vocabulary takes a second.
    """

    def __init__(self, config: GrammarConfig, setup: Setup, columns: int, threads: int) -> None:
        self._config = config
        self._setup = setup
        self._columns = columns
        self._threads = threads
        self._held: dict[str, Generate] = {}
        self._queued: list[str] = []  # of those, the ones that the compiler has not been given
        self._making: Future[_Parts] | None = None
        if config.compiler_at_start:
            self._make()

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
        """Each request whose guide, or refusal, has come since the last call."""
        if not self._held:
            return []
        parts = self._parts()
        if parts is None:
            return []
        for rid in self._queued:
            self._submit(parts, self._held[rid])
        self._queued.clear()
        return [(self._held.pop(rid), found) for rid, found in parts.compiler.poll()]

    def rows(self, guides: Sequence[Guide | None]) -> Words:
        """Mask rows of a step, in the order of its sampling rows: see pool.RowFiller.rows."""
        from radixserve.grammar.pool import Matcher

        parts = self._parts()
        assert parts is not None, "a guide was given out"
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
        if self._making is not None:
            self._making.result().compiler.close()

    def _submit(self, parts: _Parts, message: Generate) -> None:
        assert message.constraint is not None
        params = message.params
        ends = () if params.ignore_eos else self._setup.stop_ids
        parts.compiler.submit(message.rid, message.constraint, (*ends, *params.stop_token_ids))

    def _parts(self) -> _Parts | None:
        """None while they are being made."""
        if self._making is None or not self._making.done():
            return None
        return self._making.result()

    def _make(self) -> None:
        if self._making is None:
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
        vocabulary = Vocabulary(self._setup.token_bytes, self._setup.stop_ids, self._columns)
        compiler = Compiler(vocabulary, limits, self._setup.tokenizer)
        compiler.warm()
        return _Parts(compiler, RowFiller(vocabulary, self._threads, config.mask_seconds))


class _Parts(NamedTuple):
    compiler: Compiler
    filler: RowFiller
