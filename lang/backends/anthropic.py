"""A backend on Anthropic's messages API.

Owns: the fields of that API. The state stays text; what the API cannot do raises Unsupported,
naming it, before anything is sent. Must not know: programs, sockets.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any

from radixserve.lang.backends import foreign, foreign_tools
from radixserve.lang.backends.base import Body, Reply
from radixserve.lang.backends.transport import Transport, envelope_error
from radixserve.lang.errors import BackendError, Unsupported

_PATH = "/v1/messages"
_VERSION = "2023-06-01"
_RENAMED = {
    "max_new_tokens": "max_tokens",
    "stop": "stop_sequences",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
}


class Anthropic:
    """model_name: as the API calls it. Text before an output in an assistant block goes along as
    the beginning of that message, which not every model takes.
    """

    def __init__(
        self,
        model_name: str,
        *,
        api_key: str | None = None,
        base_url: str = "https://api.anthropic.com",
        timeout: float = 600.0,
    ) -> None:
        self._model = model_name
        self._name = f"the messages API of {model_name}"
        key = {"x-api-key": api_key} if api_key else {}
        self._http = Transport(base_url, {"anthropic-version": _VERSION, **key}, timeout)

    def generate(self, body: Body) -> Reply | list[Reply]:
        return _read(body, self._http.ask("POST", _PATH, self._request(body)))

    async def agenerate(self, body: Body) -> Reply | list[Reply]:
        return _read(body, await self._http.aask("POST", _PATH, self._request(body)))

    def stream(self, body: Body) -> Iterator[Reply]:
        growing = _Growing(body)
        for data in self._http.events(_PATH, self._request(body)):
            yield from growing.take(json.loads(data))
        yield growing.last()

    async def astream(self, body: Body) -> AsyncGenerator[Reply, None]:
        growing = _Growing(body)
        async with contextlib.aclosing(self._http.aevents(_PATH, self._request(body))) as events:
            async for data in events:
                for chunk in growing.take(json.loads(data)):
                    yield chunk
        yield growing.last()

    def choose(self, body: Body) -> Reply:
        count = len(body["input"][-1]["choices"])
        raise Unsupported(
            f"{self._name} gives no log-probabilities, so it cannot select() from {count} choices"
        )

    async def achoose(self, body: Body) -> Reply:
        return self.choose(body)

    def abort(self, rid: str) -> None:
        """Nothing: the API ends a call when its connection closes."""

    def flush_cache(self) -> None:
        raise Unsupported(f"{self._name} has no cache to flush")

    def get_server_info(self) -> dict[str, Any]:
        """The API's list of models."""
        return dict(self._http.ask("GET", "/v1/models"))

    def close(self) -> None:
        self._http.close()

    async def aclose(self) -> None:
        """Close the connections that the running loop has used."""
        await self._http.aclose()

    def _request(self, body: Body) -> dict[str, Any]:
        told = foreign.conversation(body["input"], self._name)
        messages = foreign_tools.anthropic_messages(told.messages)
        request: dict[str, Any] = {"model": self._model, "messages": messages}
        if messages and messages[0]["role"] == "system":
            request["system"] = messages.pop(0)["content"]
        if any(each["role"] == "system" for each in messages):
            raise Unsupported(f"{self._name} takes one system block, before all others")
        if told.text:
            messages.append({"role": "assistant", "content": told.text})
        request |= foreign_tools.anthropic_fields(body)
        rest = foreign.asked(body)
        rest.setdefault("max_new_tokens", 128)
        request |= {to: rest.pop(name) for name, to in _RENAMED.items() if name in rest}
        foreign.refuse_rest(rest, self._name)
        if body["stream"]:
            request["stream"] = True
        return request


class _Growing:
    """A streamed message, cumulative."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._text = ""
        self._usage: dict[str, Any] = {}
        self._reason: dict[str, Any] | None = None
        self._calls = foreign_tools.Calling()

    def take(self, event: dict[str, Any]) -> Iterator[Reply]:
        match event:
            case {"type": "error", "error": dict() as error}:
                raise envelope_error(500, error)
            case {"type": "message_start", "message": {"usage": dict() as usage}}:
                self._usage |= usage
            case {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}}:
                self._text += text
                yield self._so_far()
            case {
                "type": "content_block_start",
                "index": int() as index,
                "content_block": {"type": "tool_use"} as used,
            }:
                self._calls.add(index, used["id"], used["name"], "")
                yield self._so_far()
            case {
                "type": "content_block_delta",
                "index": int() as index,
                "delta": {"type": "input_json_delta", "partial_json": written},
            }:
                self._calls.add(index, None, None, written)
                yield self._so_far()
            case {"type": "message_delta", "delta": dict() as delta}:
                self._usage |= event.get("usage") or {}
                if delta.get("stop_reason"):
                    self._reason = _reason(delta)
            case _:
                pass

    def _so_far(self) -> Reply:
        reply = foreign.text_reply(self._body, self._text, None, {})
        return reply | self._calls.beside(self._body)

    def last(self) -> Reply:
        if self._reason is None:
            raise BackendError(502, "stream_ended", "the stream ended before its stop_reason")
        usage = _usage(self._usage)
        reply = foreign.text_reply(self._body, self._text, self._reason, usage)
        return reply | self._calls.beside(self._body)


def _read(body: Body, message: Any) -> Reply:
    try:
        content, calls = message["content"], foreign_tools.Calling()
        text = "".join(each["text"] for each in content if each["type"] == "text")
        for i, each in enumerate(content):
            if each["type"] == "tool_use":
                calls.add(i, each["id"], each["name"], json.dumps(each["input"]))
        reply = foreign.text_reply(body, text, _reason(message), _usage(message["usage"]))
        return reply | calls.beside(body)
    except (KeyError, TypeError) as error:
        what = f"{type(error).__name__}: {error}"
        raise BackendError(502, "malformed_reply", f"no message: {what}") from None


def _reason(told: dict[str, Any]) -> dict[str, Any]:
    match told["stop_reason"]:
        case "max_tokens":
            return {"type": "length"}
        case "refusal":
            return {"type": "abort", "message": "the model refused to go on"}
        case _:
            return {"type": "stop", "matched": told.get("stop_sequence")}


def _usage(usage: dict[str, Any]) -> dict[str, int]:
    cached = usage.get("cache_read_input_tokens") or 0
    written = usage.get("cache_creation_input_tokens") or 0
    return {
        "prompt_tokens": usage.get("input_tokens", 0) + cached + written,
        "completion_tokens": usage.get("output_tokens", 0),
        "cached_tokens": cached,
    }
