"""What a state's text is made of, and what each call cost: the data behind explain() and show().

Owns: pieces of text with their origin, the share of each that the cache had, and the reports of
calls. Must not know: how they are shown, backends.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

Origin = Literal["constant", "mark", "generated", "selected"]

MARKS = {"system": "SYSTEM: ", "user": "USER: ", "assistant": "ASSISTANT: ", "tool": "TOOL: "}


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of text of one origin.

    tokens: how many it came to, once a call has told; None before. cached: how many of them the
    backend had cached when they were first sent, counted from the front; where a call sent several
    pieces, both are shared out by length. forced: output tokens that a grammar left no choice for.
    call: the call that made or first sent it.
    """

    origin: Origin
    text: str
    call: str = ""
    tokens: int | None = None
    cached: int = 0
    forced: int = 0


@dataclass(slots=True, kw_only=True)
class CallReport:
    """One call as it happened. Times in seconds; started is time.time().

    call, parent: places in the program, as sent in the wire form. name: the variable. computed
    tokens are prompt_tokens - cached_tokens. waited: before the backend began with it, the longest
    of its outputs; 0 where the backend does not say. error: None when it went well.
    """

    call: str
    parent: str
    kind: Literal["generate", "choose"]
    name: str | None
    constraint: str | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    finish: str | None = None
    started: float = 0.0
    seconds: float = 0.0
    waited: float = 0.0
    tries: int = 0
    text: str = ""
    error: str | None = None

    @property
    def computed_tokens(self) -> int:
        return self.prompt_tokens - self.cached_tokens

    def take(self, reply: Any) -> None:
        """Note what a reply (one output, a list of them, or scores of choices) says."""
        outputs = [each for each in _listed(reply) if isinstance(each, dict)]
        metas = [each.get("meta_info") or {} for each in outputs]
        for meta in metas[:1]:
            self.prompt_tokens = meta.get("prompt_tokens", 0)
            self.cached_tokens = meta.get("cached_tokens", 0)
            self.finish = (meta.get("finish_reason") or {}).get("type")
            self.text = outputs[0].get("text", "")
        self.completion_tokens = sum(meta.get("completion_tokens", 0) for meta in metas)
        self.forced_tokens = sum(meta.get("forced_tokens", 0) for meta in metas)
        self.waited = max((meta.get("queue_time", 0.0) for meta in metas), default=0.0)


@dataclass(slots=True)
class History:
    """The pieces of one branch; append-only but for the pieces that no call has sent yet."""

    pieces: list[Piece] = field(default_factory=list)
    _sent: int = 0
    _known_tokens: int = 0

    def copy(self) -> History:
        return History(list(self.pieces), self._sent, self._known_tokens)

    def add(self, origin: Origin, text: str) -> None:
        """Text that the next call will send."""
        if text:
            self.pieces.append(Piece(origin, text))

    def called(self, call: str, meta: dict[str, Any], prompt_tokens: int) -> None:
        """A call has sent everything so far: share its counts out among what was new."""
        new, total = self.pieces[self._sent :], prompt_tokens - self._known_tokens
        hit = min(max(0, meta.get("cached_tokens", 0) - self._known_tokens), max(0, total))
        length = sum(len(piece.text) for piece in new)
        at = before = 0
        for i, piece in enumerate(new):
            at += len(piece.text)
            upto = total * at // length if length else 0
            cached = min(max(0, hit - before), upto - before)
            self.pieces[self._sent + i] = replace(
                piece, call=call, tokens=upto - before, cached=cached
            )
            before = upto
        self._sent, self._known_tokens = len(self.pieces), prompt_tokens

    def wrote(self, origin: Origin, text: str, call: str, tokens: int, forced: int = 0) -> None:
        """The call's output, which every later call sends as cached ids."""
        if text:
            self.pieces.append(Piece(origin, text, call, tokens, 0, forced))
        self._sent, self._known_tokens = len(self.pieces), self._known_tokens + tokens


def _listed(reply: Any) -> list[Any]:
    return reply if isinstance(reply, list) else [reply]
