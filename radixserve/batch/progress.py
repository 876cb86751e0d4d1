"""How far a batch is, on a terminal or in a log.

Owns: the bar, the summary. Must not know: requests, files.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TextIO

from radixserve.wire.messages import Gauges

WIDTH = 24  # characters of the bar
LOG_SECONDS = 10.0  # between lines where there is no terminal


@dataclass(slots=True)
class Tally:
    """What became of the lines of this run. kept: lines that an earlier run answered, kept_failed:
    those of them with an error. cut: answers that a token limit ended. failed: by error code. read:
    bytes of the input. gauges: of the engine, as last heard."""

    kept: int = 0
    kept_failed: int = 0
    answered: int = 0
    cut: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    read: int = 0
    gauges: Gauges = field(default_factory=Gauges)

    @property
    def done(self) -> int:
        return self.kept + self.answered + self.failed.total()


class Progress:
    """Draws a tally. size: bytes of the input, None where nobody knows."""

    def __init__(
        self,
        stream: TextIO,
        tally: Tally,
        size: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stream = stream
        self._tally = tally
        self._size = size
        self._clock = clock
        self._started = clock()
        self._logged = self._started
        self._is_terminal = stream.isatty()

    def show(self) -> None:
        """The bar, over the one before; without a terminal a line now and then."""
        if self._is_terminal:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write("\r" + self._line()[:width] + "\x1b[K")
            self._stream.flush()
        elif self._clock() - self._logged >= LOG_SECONDS:
            self._logged = self._clock()
            print(self._line(), file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the last bar standing."""
        if self._is_terminal:
            self.show()
            self._stream.write("\n")

    def summary(self) -> str:
        tally, gauges = self._tally, self._tally.gauges
        parts = [f"{tally.answered} answered"]
        if tally.failed:
            kinds = ", ".join(f"{code} {n}" for code, n in tally.failed.most_common())
            parts.append(f"{tally.failed.total()} failed ({kinds})")
        if tally.cut:
            parts.append(f"{tally.cut} cut at the token limit")
        if tally.kept:
            failed = f", {tally.kept_failed} of them failed" if tally.kept_failed else ""
            parts.append(f"{tally.kept} kept from before{failed}")
        return (
            f"{', '.join(parts)}; {gauges.generated_tokens} tokens in {self._elapsed:.1f} s, "
            f"{self._rate:.0f} tokens/s, {self._reused:.0%} of {gauges.prompt_tokens} prompt "
            f"tokens reused"
        )

    @property
    def _elapsed(self) -> float:
        return max(1e-9, self._clock() - self._started)

    @property
    def _rate(self) -> float:
        return self._tally.gauges.generated_tokens / self._elapsed

    @property
    def _reused(self) -> float:
        gauges = self._tally.gauges
        if not gauges.prompt_tokens:
            return 0.0
        return max(0.0, 1 - gauges.computed_tokens / gauges.prompt_tokens)

    def _line(self) -> str:
        tally = self._tally
        parts = [f"{tally.done} lines"]
        if self._size:
            share = min(1.0, tally.read / self._size)
            full = round(WIDTH * share)
            parts = [f"[{'#' * full}{'.' * (WIDTH - full)}] {share:4.0%}", *parts]
        parts += [f"{self._rate:.0f} tokens/s", f"{self._reused:.0%} reused"]
        if tally.failed:
            parts.append(f"{tally.failed.total()} failed")
        return "  ".join(parts)
