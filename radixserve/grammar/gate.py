"""Where constrained requests wait for their grammar.

Owns: the requests whose grammar is being compiled, the compiler and the filler of mask rows, which
come with the first of them. Must not know: the scheduler, sockets.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
    """setup: what the engine knows of text. columns: of the logits. threads: for mask rows."""

    def __init__(self, config: GrammarConfig, setup: Setup, columns: int, threads: int) -> None:
        self._config = config
        self._setup = setup
        self._columns = columns
        self._threads = threads
        self._held: dict[str, Generate] = {}
        self._parts: tuple[Compiler, RowFiller] | None = None
        if config.warm:
            self._made()[0].warm()

    @property
    def held(self) -> int:
        """Requests that wait here."""
        return len(self._held)

    def hold(self, message: Generate) -> None:
        """Keep a request with a constraint until ready() returns it."""
        assert message.constraint is not None
        params = message.params
        ends = () if params.ignore_eos else self._setup.stop_ids
        self._held[message.rid] = message
        self._made()[0].submit(message.rid, message.constraint, (*ends, *params.stop_token_ids))

    def cancel(self, rid: str) -> bool:
        """Forget a request; False where it does not wait here."""
        if self._held.pop(rid, None) is None:
            return False
        self._made()[0].cancel(rid)
        return True

    def ready(self) -> Iterable[tuple[Generate, Guide | RequestError]]:
        """Each request whose guide, or refusal, has come since the last call."""
        if self._parts is None or not self._held:
            return []
        return [(self._held.pop(rid), found) for rid, found in self._parts[0].poll()]

    def rows(self, guides: Sequence[Guide | None]) -> Words:
        """Mask rows of a step, in the order of its sampling rows: see pool.RowFiller.rows."""
        from radixserve.grammar.pool import Matcher

        matchers = [guide if isinstance(guide, Matcher) else None for guide in guides]
        return self._made()[1].rows(matchers)

    def counts(self) -> dict[str, float]:
        """For Gauges."""
        if self._parts is None:
            return {}
        compiler = self._parts[0]
        return {
            "compiling": self.held,
            "grammar_compiles": compiler.compiled,
            "grammar_cache_hits": compiler.hits,
            "grammar_compile_seconds": compiler.seconds,
        }

    def close(self) -> None:
        if self._parts is not None:
            self._parts[0].close()

    def _made(self) -> tuple[Compiler, RowFiller]:
        if self._parts is None:
            from radixserve.grammar.compile import Compiler, Limits
            from radixserve.grammar.pool import RowFiller
            from radixserve.grammar.vocabulary import Vocabulary

            config = self._config
            limits = Limits(
                seconds=config.compile_seconds,
                mask_seconds=config.mask_seconds,
                cache_bytes=config.cache_mib * 2**20,
                waiting=config.max_compiling,
            )
            vocabulary = Vocabulary(self._setup.token_bytes, self._setup.stop_ids, self._columns)
            compiler = Compiler(vocabulary, limits, self._setup.tokenizer)
            filler = RowFiller(vocabulary, self._threads, config.mask_seconds)
            self._parts = compiler, filler
        return self._parts
