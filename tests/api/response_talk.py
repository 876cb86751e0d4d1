"""Asking for responses over a scripted gateway, and reading what they stream."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import ask

RESPONSES = "/v1/responses"
EVENT: TypeAdapter = TypeAdapter(ResponseStreamEvent)
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
NOW = {"type": "function", "name": "now"}
TOOLS = [WEATHER, NOW]


def saying(renderer, *outputs: str) -> ScriptedGateway:
    return ScriptedGateway(renderer, outputs, context_len=4096)


def body(**fields: Any) -> dict[str, Any]:
    return {"input": "hello", **fields}


def with_tools(**fields: Any) -> dict[str, Any]:
    return body(tools=TOOLS, max_output_tokens=400, **fields)


def checked(response: dict[str, Any]) -> dict[str, Any]:
    """The response, which has every field that the official client knows of it."""
    Response.model_validate(response, strict=True)
    return response


def answered(gateway: ScriptedGateway, given: Any, **http) -> dict[str, Any]:
    response = ask(gateway, RESPONSES, given, **http)
    assert response.status_code == 200, response.text
    return checked(response.json())


def streamed(gateway: ScriptedGateway, given: dict[str, Any]) -> list[dict[str, Any]]:
    response = ask(gateway, RESPONSES, {**given, "stream": True})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events_of(response.text)


def events_of(text: str) -> list[dict[str, Any]]:
    """The events of a stream: named by their types, numbered from 0 on, each as the official client
    knows it."""
    found = []
    for block in text.split("\n\n"):
        if block:
            name, data = block.split("\n")
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            EVENT.validate_python(event, strict=True)
            found.append(event)
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def rebuilt(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last response of a stream, whose events came in their one order and add up to it."""
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] in ("completed", "incomplete", "failed")
    assert not {"created", "in_progress", "completed", "incomplete", "failed"} & {*kinds[2:-1]}
    for event in events[:2]:
        assert event["response"]["status"] == "in_progress"
        assert event["response"]["output"] == []
        assert event["response"]["usage"] is None
    last = checked(events[-1]["response"])
    rest = events[2:-1]
    items = []
    while rest:
        end = next(i for i, e in enumerate(rest) if e["type"].endswith("output_item.done"))
        items.append(_item(rest[: end + 1], len(items)))
        rest = rest[end + 1 :]
    assert items == last["output"]
    return last


def _item(events: list[dict[str, Any]], index: int) -> dict[str, Any]:
    assert events[0]["type"] == "response.output_item.added"
    item, done = events[0]["item"], events[-1]["item"]
    assert item["status"] == "in_progress"
    assert {event["output_index"] for event in events} == {index}
    assert {event["item_id"] for event in events[1:-1]} <= {item["id"]}
    kinds = [event["type"].removeprefix("response.") for event in events[1:-1]]
    if item["type"] == "function_call":
        assert item["arguments"] == ""
        name = "function_call_arguments"
        assert kinds == [f"{name}.delta"] * (len(kinds) - 1) + [f"{name}.done"]
        assert (events[-2]["name"], events[-2]["arguments"]) == (done["name"], done["arguments"])
        item["arguments"] = "".join(event["delta"] for event in events[1:-2])
    else:
        name = "output_text" if item["type"] == "message" else "reasoning_text"
        assert item["content"] == []
        deltas = [f"{name}.delta"] * (len(kinds) - 3)
        assert kinds == ["content_part.added", *deltas, f"{name}.done", "content_part.done"]
        assert events[1]["part"]["text"] == ""
        text = "".join(event["delta"] for event in events[2:-3])
        assert (events[-3]["text"], events[-2]["part"]["text"]) == (text, text)
        assert done["content"] == [events[-2]["part"]]
        assert {event["content_index"] for event in events[1:-1]} == {0}
        if name == "output_text":
            told = [entry for event in events[2:-2] for entry in event["logprobs"]]
            late = events[-3]["logprobs"]
            assert late == done["content"][0]["logprobs"]
            assert told[: -len(late) or None] == late[: len(told) - len(late)]
        item["content"] = done["content"]
    return item | {"status": done["status"]}


def shapes_of(items: list[dict[str, Any]]) -> list[tuple]:
    """What items say, without their ids."""
    found: list[tuple] = []
    for item in items:
        match item["type"]:
            case "message":
                found.append(("message", "".join(part["text"] for part in item["content"])))
            case "reasoning":
                found.append(("reasoning", "".join(part["text"] for part in item["content"])))
            case "function_call":
                found.append(("call", item["name"], item["arguments"]))
    return found


def prompt_of(gateway: ScriptedGateway, at: int = -1) -> str:
    ids = memoryview(gateway.requests[at].prompt).cast("i").tolist()
    return gateway.renderer.tokenizer.decode(ids, skip_special=False)


def many(gateway: ScriptedGateway, *calls: tuple[str, str, Any], **http) -> list[httpx.Response]:
    """(method, path, body) one after the other on one app. In a path, {n} is the id of response n;
    as `previous_response_id`, so is an int."""

    async def go() -> list[httpx.Response]:
        async with client(gateway, **http) as asking:
            found: list[httpx.Response] = []
            ids: list[str] = []
            for method, path, given in calls:
                if isinstance(given, dict) and isinstance(given.get("previous_response_id"), int):
                    given = {**given, "previous_response_id": ids[given["previous_response_id"]]}
                found.append(await asking.request(method, path.format(*ids), json=given))
                ids.append(found[-1].json().get("id", ""))
            return found

    return asyncio.run(go())
