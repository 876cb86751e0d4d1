"""Asking an app over a scripted gateway, and reading what it streams."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from tests.api.scripted import ScriptedGateway, client

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


def ask(gateway: ScriptedGateway, path: str, body: Any, method: str = "POST", **http):
    """The response to `body`: bytes are sent as they are, anything else as JSON."""

    async def go() -> httpx.Response:
        async with client(gateway, **http) as http_client:
            if isinstance(body, bytes):
                headers = {"content-type": "application/json"}
                return await http_client.request(method, path, content=body, headers=headers)
            return await http_client.request(method, path, json=body)

    return asyncio.run(go())


def hello(**fields: Any) -> dict[str, Any]:
    """A chat body."""
    return {"messages": [{"role": "user", "content": "hello"}], **fields}


def answered(gateway: ScriptedGateway, path: str, body: Any) -> dict[str, Any]:
    response = ask(gateway, path, body)
    assert response.status_code == 200, response.text
    return response.json()


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of an enveloped answer with that status."""
    assert response.status_code == status, response.text
    body = response.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


def streamed(gateway: ScriptedGateway, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that ends well: [DONE] once and last."""
    response = ask(gateway, path, {**body, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text, done=True)


def events_of(text: str, *, done: bool) -> list[dict[str, Any]]:
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines), text
    payloads = [line.removeprefix("data: ") for line in lines]
    assert payloads.count("[DONE]") == (1 if done else 0)
    if done:
        assert payloads.pop() == "[DONE]"
    return [json.loads(payload) for payload in payloads]


def chat_choices(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The choices that the events add up to, in the shape of the whole reply; checks that each
    begins with its role and ends with its only finish_reason."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        index, delta = choice["index"], choice["delta"]
        if index not in found:
            assert delta["role"] == "assistant"
            found[index] = {"content": "", "entries": [], "finish_reason": None}
        else:
            assert "role" not in delta
        mine = found[index]
        assert mine["finish_reason"] is None
        mine["content"] += delta.get("content", "")
        mine["entries"] += (choice["logprobs"] or {"content": []})["content"]
        mine["finish_reason"] = choice["finish_reason"]
        assert mine["finish_reason"] in (None, "stop", "length")
    assert all(choice["finish_reason"] for choice in found.values())
    return found


def text_choices(events: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """The same for /v1/completions."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in events for choice in event["choices"]):
        columns = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        start = {"text": "", "logprobs": columns, "finish_reason": None}
        mine = found.setdefault(choice["index"], start)
        assert mine["finish_reason"] is None
        mine["text"] += choice["text"]
        for name, column in (choice["logprobs"] or {}).items():
            mine["logprobs"][name] += column
        mine["finish_reason"] = choice["finish_reason"]
    assert all(choice["finish_reason"] for choice in found.values())
    return found
