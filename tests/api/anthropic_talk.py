"""Asking in the Anthropic dialect, and reading what it streams."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx

from tests.api.scripted import MODEL, ScriptedGateway
from tests.api.talk import ask
from tests.api.tool_talk import WEATHER

MESSAGES = "/v1/messages"
COUNT = f"{MESSAGES}/count_tokens"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {
    "name": "get_weather",
    "description": "the weather in a city",
    "input_schema": WEATHER["function"]["parameters"],
}
TOOLS = [TOOL, {"name": "now", "input_schema": {"type": "object"}}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": 400, "messages": HELLO, **fields}


def use(name: str = "get_weather", id: str = "toolu_1", **input: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(content: Any = "ok", id: str = "toolu_1", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


def answered(gateway: ScriptedGateway, **fields: Any) -> dict[str, Any]:
    response = ask(gateway, MESSAGES, body(**fields))
    assert response.status_code == 200, response.text
    return response.json()


def counted(gateway: ScriptedGateway, **fields: Any) -> int:
    response = ask(gateway, COUNT, {"messages": HELLO, **fields})
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"input_tokens"}
    return response.json()["input_tokens"]


def error_of(response: httpx.Response, status: int, kind: str = "") -> str:
    """The message of an error in that dialect's envelope, with that status and type."""
    assert response.status_code == status, response.text
    told = response.json()
    assert told.keys() == {"type", "error", "request_id"}
    assert told["type"] == "error"
    assert told["request_id"] == response.headers["request-id"]
    assert told["error"].keys() - {"details"} == {"type", "message"}
    assert told["error"]["type"] == (kind or "invalid_request_error")
    assert told["error"]["message"]
    return told["error"]["message"]


def refused(gateway: ScriptedGateway, **fields: Any) -> str:
    return error_of(ask(gateway, MESSAGES, body(**fields)), 400)


def streamed(gateway: ScriptedGateway, **fields: Any) -> list[dict[str, Any]]:
    response = ask(gateway, MESSAGES, body(stream=True, **fields))
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def events_of(stream: str) -> list[dict[str, Any]]:
    """Each frame is named by the type of its event."""
    found = []
    for frame in stream.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    return found


_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool_use", "partial_json"),
    "signature_delta": ("thinking", "signature"),
}


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a whole stream adds up to; checks the order of its events."""
    kinds = [event["type"] for event in events if event["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    blocks = kinds[1:-2]
    assert {"message_start", "message_delta", "message_stop", "error"}.isdisjoint(blocks)
    message = copy.deepcopy(events[0]["message"])
    assert (message["content"], message["stop_reason"]) == ([], None)
    assert message["usage"]["output_tokens"] == 0
    open_at: int | None = None
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert open_at is None
                open_at = len(message["content"])
                assert event["index"] == open_at
                message["content"].append(event["content_block"] | {"partial_json": ""})
            case "content_block_delta":
                assert event["index"] == open_at
                kind, key = _DELTAS[event["delta"]["type"]]
                block = message["content"][-1]
                assert block["type"] == kind
                assert event["delta"].keys() == {"type", key}
                assert event["delta"][key]
                block[key] += event["delta"][key]
            case "content_block_stop":
                assert event["index"] == open_at
                open_at = None
            case "message_delta":
                message |= event["delta"]
                message |= {k: v for k, v in event.items() if k not in ("type", "delta")}
    assert open_at is None
    for block in message["content"]:
        arguments = block.pop("partial_json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments or "{}")
    return message


def pings(events: list[dict[str, Any]]) -> list[int]:
    return [i for i, event in enumerate(events) if event == {"type": "ping"}]


def timeless(message: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from call to call: ids, and what is cached meanwhile."""
    message = copy.deepcopy(message)
    del message["id"]
    usage = message["usage"]
    usage["input_tokens"] += usage.pop("cache_read_input_tokens")
    for block in message["content"]:
        block.pop("id", None)
    return message
