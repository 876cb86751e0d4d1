"""Responses under way and responses kept.

Owns: running an exchange, who may see, end and delete a response, what is kept of it. Must not
know: HTTP, the fields of a body.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Generator
from typing import TypeVar

from radixserve.api.caller import caller
from radixserve.api.faults import NotFound
from radixserve.api.responses.answer import Answer
from radixserve.api.responses.exchange import Exchange, renamed
from radixserve.api.responses.items import Item
from radixserve.api.responses.output import Event
from radixserve.api.responses.store import Owner, ResponseStore
from radixserve.chunks import Chunk
from radixserve.errors import EngineDead, InvalidRequest, RequestError
from radixserve.native.calls import Calls
from radixserve.native.collect import completed
from radixserve.wire.messages import FinishReason

T = TypeVar("T")


def owner_now() -> Owner:
    """Whose responses the current caller has."""
    tenant = caller.get().tenant
    return "" if tenant is None else tenant.name


class Responses:
    """All of one app."""

    def __init__(self, calls: Calls, store: ResponseStore) -> None:
        self.store = store
        self._calls = calls
        self._live: dict[str, Answer] = {}
        self._cancelled: set[str] = set()

    async def whole(self, exchange: Exchange) -> Event:
        """The response at its end. Raises RequestError; cancelling aborts what runs."""
        answer = Answer(exchange)
        with self._shown(answer):
            async with contextlib.aclosing(self._chunks(exchange)) as chunks:
                async for chunk in chunks:
                    answer.add(chunk)
        response: Event = self._ended(answer)["response"]
        return response

    async def events(self, answer: Answer) -> AsyncGenerator[Event, None]:
        """The same as events. Closing aborts what runs. Raises RequestError before the first where
        it is refused; later failures are its last event."""
        begun = False
        try:
            with self._shown(answer):
                async with contextlib.aclosing(self._chunks(answer.exchange)) as chunks:
                    async for chunk in chunks:
                        for event in [*([] if begun else answer.begin()), *answer.add(chunk)]:
                            begun = True
                            yield event
        except (RequestError, EngineDead) as error:
            if not begun:
                raise
            yield self.failed(answer, error)
        else:
            yield self._ended(answer)

    def earlier(self, body: object) -> list[bytes]:
        """What a body goes on from, which takes time to read like the body itself."""
        name = body.get("previous_response_id") if isinstance(body, dict) else None
        return self.store.chain_texts(owner_now(), name) if isinstance(name, str) else []

    def failed(self, answer: Answer, error: BaseException) -> Event:
        """The last event of a stream that `error` ends."""
        answer.fail(error)
        return self._ended(answer)

    def get(self, name: str) -> Event:
        """The response of that name, as it stands. Raises NotFound."""
        live = self._mine(name)
        if live is not None:
            return live.object()
        return _known(self.store.body(owner_now(), name), name)

    def input_items(self, name: str) -> list[Item]:
        """What the response of that name was made from, in its order. Raises NotFound."""
        return _known(self.store.given(owner_now(), name), name)

    def delete(self, name: str) -> Event:
        """Raises NotFound, InvalidRequest while it is under way."""
        if self._mine(name) is not None:
            raise InvalidRequest(f"response {name} is under way; cancel it first", param="id")
        if not self.store.drop(owner_now(), name):
            _known(None, name)
        return {"id": name, "object": "response", "deleted": True}

    def cancel(self, name: str) -> Event:
        """The response of that name, which has ended or ends now. Raises NotFound."""
        live = self._mine(name)
        if live is None:
            return self.get(name)
        self._cancelled.add(name)
        self._calls.abort(live.exchange.asked.request.rid)
        return live.object() | {"status": "cancelled"}

    async def _chunks(self, exchange: Exchange) -> AsyncGenerator[Chunk, None]:
        with renamed():
            async with contextlib.aclosing(exchange.asked.start(self._calls)) as chunks:
                async for _, chunk in chunks:
                    self._check_end(exchange, chunk)
                    yield chunk

    def _check_end(self, exchange: Exchange, chunk: Chunk) -> None:
        """Raise where the response neither came to its end nor was cancelled by its name."""
        if chunk.finish is None:
            return
        if chunk.finish.reason is FinishReason.ABORT and exchange.id in self._cancelled:
            return
        completed(chunk.finish)

    @contextlib.contextmanager
    def _shown(self, answer: Answer) -> Generator[None, None, None]:
        """Others of the same owner may ask for it and end it meanwhile."""
        name = answer.exchange.id
        self._live[name] = answer
        try:
            yield
        finally:
            del self._live[name]
            self._cancelled.discard(name)

    def _ended(self, answer: Answer) -> Event:
        """Keep it, if it is to be kept."""
        exchange = answer.exchange
        event = answer.end(is_kept=exchange.store)
        if exchange.store and not self.store.keep(
            exchange.owner,
            event["response"],
            exchange.given,
            answer.items,
            exchange.body.previous_response_id,
        ):
            event["response"]["store"] = False
        return event

    def _mine(self, name: str) -> Answer | None:
        live = self._live.get(name)
        return live if live is not None and live.exchange.owner == owner_now() else None


def _known(found: T | None, name: str) -> T:
    if found is None:
        raise NotFound(
            f"there is no response {name!a:.80}; they are kept for a while, and with store: false "
            f"not at all",
            param="id",
            code="response_not_found",
        )
    return found
