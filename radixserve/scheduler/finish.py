"""When an output ends: stop ids, stop strings on the bytes of tokens, length.

Owns: the tail of bytes in which a stop string may still complete. Must not know: characters (the
front turns bytes into text), the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixserve.scheduler.patterns import PatternWatch
from radixserve.wire.messages import FinishReason
from radixserve.wire.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Ending:
    """matched: the stop id or string. kept_bytes: bytes of output before the stop string."""

    reason: FinishReason
    matched: int | str | None = None
    kept_bytes: int | None = None


class FinishCheck:
    """Fed one output token at a time; says whether it ended the output.

    The ending of a stop string is its first completion; of strings that complete in one token the
    one that begins first. Control tokens have no bytes. A pattern ends the output behind the token.
    """

    __slots__ = (
        "_bytes",
        "_count",
        "_min",
        "_patterns",
        "_stop_ids",
        "_stops",
        "_table",
        "_tail",
        "_window",
    )

    def __init__(
        self, params: SamplingParams, model_stop_ids: Sequence[int], token_bytes: Sequence[bytes]
    ) -> None:
        own = () if params.ignore_eos else model_stop_ids
        self._stop_ids = frozenset(own) | frozenset(params.stop_token_ids)
        self._stops = tuple((text.encode(), text) for text in params.stop)
        self._window = max((len(stop) for stop, _ in self._stops), default=1) - 1
        self._patterns = PatternWatch(params.stop_regex) if params.stop_regex else None
        self._table = token_bytes
        self._min = params.min_new_tokens
        self._count = 0
        self._bytes = 0
        self._tail = b""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that may not be sampled before min_new_tokens are out."""
        return tuple(sorted(self._stop_ids))

    @property
    def size(self) -> int:
        """Bytes of the output so far; counted where a text may end it."""
        return self._bytes

    def push(self, token: int, *, is_text: bool = False, is_heard: bool = True) -> Ending | None:
        """Take the next output token. is_text: it ends nothing by its id. is_heard: stop strings
        and patterns look at it, and may begin with it."""
        self._count += 1
        if not is_text and token in self._stop_ids and self._count > self._min:
            return Ending(FinishReason.STOP, matched=token)
        if not self._stops and self._patterns is None:
            return None
        fresh = self._table[token] if token < len(self._table) else b""
        if not is_heard:
            self._bytes += len(fresh)
            self._tail = b""
            return None
        string, pattern = self._stop_string(fresh), self._stop_pattern(fresh)
        return string or pattern

    def _stop_pattern(self, fresh: bytes) -> Ending | None:
        if self._patterns is None or self._count <= self._min:
            return None
        matched = self._patterns.feed(fresh)
        return None if matched is None else Ending(FinishReason.STOP, matched=matched)

    def _stop_string(self, fresh: bytes) -> Ending | None:
        text = self._tail + fresh
        start = self._bytes - len(self._tail)
        ending = self._find(text, start, len(self._tail)) if self._count > self._min else None
        self._bytes += len(fresh)
        self._tail = text[-self._window :] if self._window else b""
        return ending

    def _find(self, text: bytes, start: int, old: int) -> Ending | None:
        best: tuple[int, str] | None = None
        for stop, name in self._stops:
            at = text.find(stop, max(0, old - len(stop) + 1))
            if at >= 0 and (best is None or at < best[0]):
                best = (at, name)
        if best is None:
            return None
        return Ending(FinishReason.STOP, matched=best[1], kept_bytes=start + best[0])
