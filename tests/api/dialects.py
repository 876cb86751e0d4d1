"""One conversation in the words of each dialect, and one reply in the words of none."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.api.response_talk import events_of as response_events
from tests.api.response_talk import rebuilt
from tests.api.scripted import MODEL
from tests.api.talk import events_of

Body = dict[str, Any]
# user, assistant, thought: text. calls: (id, name, arguments) each. results: (id, text) each.
Turn = tuple[str, Any]
Piece = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Talk:
    """tools: name, description and schema of each. choice: auto, required, none or a name. many:
    calls. schema: of an answer. said: what the model says."""

    turns: list[Turn]
    said: str
    system: str = ""
    tools: list[tuple[str, str, Body]] = field(default_factory=list)
    choice: str = "auto"
    many: bool = True
    schema: Body | None = None
    effort: str | None = None
    max_tokens: int = 400
    temperature: float = 0.7
    top_k: int = 20


@dataclass(frozen=True)
class Reply:
    """pieces: ("thought", text), ("said", text), ("called", name, arguments). end: stop, calls or
    length. usage: prompt tokens in all, those of them that were cached, output tokens."""

    pieces: list[Piece]
    end: str
    usage: tuple[int, int, int]
    truncated: bool


@dataclass(frozen=True)
class Dialect:
    name: str
    path: str
    body: Callable[[Talk], Body]
    reply: Callable[[Body], Reply]
    whole: Callable[[str], Body]  # of a stream's text


def _piece(kind: str, text: str | None) -> list[Piece]:
    return [(kind, text)] if text else []


def _called(name: str, arguments: str) -> Piece:
    return ("called", name, json.dumps(json.loads(arguments)))


# ---- OpenAI chat ----


def _chat_message(turn: Turn) -> list[Body]:
    match turn:
        case ("calls", calls):
            made = [
                {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                for i, n, a in calls
            ]
            return [{"role": "assistant", "content": None, "tool_calls": made}]
        case ("results", results):
            return [{"role": "tool", "tool_call_id": i, "content": text} for i, text in results]
        case ("thought", text):
            return [{"role": "assistant", "reasoning_content": text}]
        case (role, text):
            return [{"role": role, "content": text}]
    raise AssertionError(turn)


def _joined(messages: list[Body]) -> list[Body]:
    """What the assistant thought, said and called in one turn is one message."""
    found: list[Body] = []
    for message in messages:
        if found and message["role"] == found[-1]["role"] == "assistant":
            found[-1] |= {name: value for name, value in message.items() if value is not None}
        else:
            found.append(message)
    return found


def _chat(talk: Talk) -> Body:
    messages = _joined([message for turn in talk.turns for message in _chat_message(turn)])
    if talk.system:
        messages.insert(0, {"role": "system", "content": talk.system})
    body: Body = {
        "model": MODEL,
        "messages": messages,
        "max_completion_tokens": talk.max_tokens,
        "temperature": talk.temperature,
        "top_k": talk.top_k,
    }
    if talk.tools:
        body["tools"] = [
            {"type": "function", "function": {"name": n, "description": d, "parameters": p}}
            for n, d, p in talk.tools
        ]
        named = {"type": "function", "function": {"name": talk.choice}}
        body["tool_choice"] = talk.choice if talk.choice in MODES else named
        body["parallel_tool_calls"] = talk.many
    if talk.schema:
        inner = {"name": "x", "schema": talk.schema}
        body["response_format"] = {"type": "json_schema", "json_schema": inner}
    return body | ({"reasoning_effort": talk.effort} if talk.effort else {})


def _chat_reply(reply: Body) -> Reply:
    [choice] = reply["choices"]
    message, usage = choice["message"], reply["usage"]
    calls = [call["function"] for call in message.get("tool_calls", [])]
    pieces = _piece("thought", message.get("reasoning_content"))
    pieces += _piece("said", message["content"])
    pieces += [_called(call["name"], call["arguments"]) for call in calls]
    ends = {"stop": "stop", "tool_calls": "calls", "length": "length"}
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    counts = (usage["prompt_tokens"], cached, usage["completion_tokens"])
    return Reply(pieces, ends[choice["finish_reason"]], counts, "truncated" in choice)


def _chat_whole(text: str) -> Body:
    message: Body = {"content": "", "reasoning_content": "", "tool_calls": []}
    whole: Body = {}
    for event in events_of(text, done=True):
        whole = {"usage": event["usage"], "choices": whole.get("choices")}
        for choice in event["choices"]:
            whole["choices"] = [{**choice, "message": message}]
            delta = choice["delta"]
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(call)
                else:
                    more = call["function"]["arguments"]
                    message["tool_calls"][-1]["function"]["arguments"] += more
    return whole


# ---- OpenAI Responses ----


def _response_items(turn: Turn) -> list[Body]:
    match turn:
        case ("calls", calls):
            kind = "function_call"
            return [
                {"type": kind, "call_id": i, "name": n, "arguments": json.dumps(a)}
                for i, n, a in calls
            ]
        case ("results", results):
            kind = "function_call_output"
            return [{"type": kind, "call_id": i, "output": text} for i, text in results]
        case ("thought", text):
            part = {"type": "reasoning_text", "text": text}
            return [{"type": "reasoning", "summary": [], "content": [part]}]
        case (role, text):
            return [{"role": role, "content": text}]
    raise AssertionError(turn)


def _responses(talk: Talk) -> Body:
    body: Body = {
        "model": MODEL,
        "input": [item for turn in talk.turns for item in _response_items(turn)],
        "max_output_tokens": talk.max_tokens,
        "temperature": talk.temperature,
        "top_k": talk.top_k,
    }
    if talk.system:
        body["instructions"] = talk.system
    if talk.tools:
        body["tools"] = [
            {"type": "function", "name": n, "description": d, "parameters": p, "strict": True}
            for n, d, p in talk.tools
        ]
        named = {"type": "function", "name": talk.choice}
        body["tool_choice"] = talk.choice if talk.choice in MODES else named
        body["parallel_tool_calls"] = talk.many
    if talk.schema:
        body["text"] = {"format": {"type": "json_schema", "name": "x", "schema": talk.schema}}
    return body | ({"reasoning": {"effort": talk.effort}} if talk.effort else {})


def _responses_reply(reply: Body) -> Reply:
    pieces: list[Piece] = []
    for item in reply["output"]:
        if item["type"] == "function_call":
            pieces.append(_called(item["name"], item["arguments"]))
        else:
            kind = "thought" if item["type"] == "reasoning" else "said"
            pieces += _piece(kind, "".join(part["text"] for part in item["content"]))
    ended = "calls" if any(piece[0] == "called" for piece in pieces) else "stop"
    usage = reply["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    counts = (usage["input_tokens"], cached, usage["output_tokens"])
    end = ended if reply["status"] == "completed" else "length"
    return Reply(pieces, end, counts, "truncated" in reply)


def _responses_whole(text: str) -> Body:
    return rebuilt(response_events(text))


# ---- Anthropic Messages ----


def _anthropic_message(turn: Turn) -> Body:
    match turn:
        case ("calls", calls):
            uses = [{"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in calls]
            return {"role": "assistant", "content": uses}
        case ("results", results):
            kind = "tool_result"
            blocks = [{"type": kind, "tool_use_id": i, "content": text} for i, text in results]
            return {"role": "user", "content": blocks}
        case ("thought", text):
            block = {"type": "thinking", "thinking": text, "signature": ""}
            return {"role": "assistant", "content": [block]}
        case (role, text):
            return {"role": role, "content": [{"type": "text", "text": text}]}
    raise AssertionError(turn)


def _anthropic(talk: Talk) -> Body:
    messages: list[Body] = []
    for turn in talk.turns:
        message = _anthropic_message(turn)
        if messages and messages[-1]["role"] == message["role"]:
            messages[-1]["content"] += message["content"]
        else:
            messages.append(message)
    body: Body = {
        "model": MODEL,
        "messages": messages,
        "max_tokens": talk.max_tokens,
        "temperature": talk.temperature,
        "top_k": talk.top_k,
    }
    if talk.system:
        body["system"] = talk.system
    if talk.tools:
        body["tools"] = [{"name": n, "description": d, "input_schema": p} for n, d, p in talk.tools]
        kinds = {"auto": "auto", "required": "any", "none": "none"}
        named = {"type": "tool", "name": talk.choice}
        choice = {"type": kinds[talk.choice]} if talk.choice in kinds else named
        body["tool_choice"] = choice | ({} if talk.many else {"disable_parallel_tool_use": True})
    config: Body = {"effort": talk.effort} if talk.effort else {}
    if talk.schema:
        config["format"] = {"type": "json_schema", "schema": talk.schema}
    return body | ({"output_config": config} if config else {})


def _anthropic_reply(reply: Body) -> Reply:
    pieces: list[Piece] = []
    for block in reply["content"]:
        match block["type"]:
            case "text":
                pieces += _piece("said", block["text"])
            case "thinking":
                pieces += _piece("thought", block["thinking"])
            case "tool_use":
                pieces.append(_called(block["name"], json.dumps(block["input"])))
    ends = {"end_turn": "stop", "tool_use": "calls", "max_tokens": "length"}
    usage = reply["usage"]
    cached = usage["cache_read_input_tokens"]
    prompt = usage["input_tokens"] + usage["cache_creation_input_tokens"] + cached
    counts = (prompt, cached, usage["output_tokens"])
    return Reply(pieces, ends[reply["stop_reason"]], counts, "truncated" in reply)


def _anthropic_whole(text: str) -> Body:
    whole: Body = {}
    for frame in filter(None, text.split("\n\n")):
        event = json.loads(frame.split("\ndata: ")[1])
        match event["type"]:
            case "message_start":
                whole = event["message"]
            case "content_block_start":
                whole["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                block, delta = whole["content"][event["index"]], event["delta"]
                block["json"] += delta.get("partial_json", "")
                for name in ("text", "thinking"):
                    if name in delta:
                        block[name] += delta[name]
            case "content_block_stop":
                block = whole["content"][event["index"]]
                if block["type"] == "tool_use":
                    block["input"] = json.loads(block["json"] or "{}")
            case "message_delta":
                whole |= event.pop("delta")
                whole |= event
    return whole


MODES = ("auto", "required", "none")
DIALECTS = [
    Dialect("chat", "/v1/chat/completions", _chat, _chat_reply, _chat_whole),
    Dialect("responses", "/v1/responses", _responses, _responses_reply, _responses_whole),
    Dialect("anthropic", "/v1/messages", _anthropic, _anthropic_reply, _anthropic_whole),
]
