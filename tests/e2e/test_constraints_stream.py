"""Recipe STREAM=WHOLE for constrained outputs, over HTTP, in every dialect (case S05).

The model is random, so what it writes satisfies a schema only because it has to.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest

from tests.e2e.test_serve import Server, no_leak

SCHEMA = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["plain", "pleasant", "🦙 or é"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "words": {"type": "array", "items": {"type": "string", "maxLength": 6}, "maxItems": 3},
    },
    "required": ["kind", "count", "words"],
    "additionalProperties": False,
}
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def server(tiny_model, tmp_path_factory) -> Iterator[Server]:
    running = Server(tiny_model, tmp_path_factory.mktemp("serve") / "log")
    try:
        yield running.wait_ready()
        no_leak(running)
    finally:
        running.stop()


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    reply = httpx.post(f"{server.url}{path}", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = httpx.post(f"{server.url}{path}", json={**body, "stream": True}, timeout=60)
    assert reply.status_code == 200, reply.text
    lines = [line.removeprefix("data: ") for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def valid(text: str) -> None:
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))


def openai_body(path: str, n: int, stop: str | None, logprobs: bool) -> dict[str, Any]:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    body = {"n": n, "stop": stop, "seed": 11, "max_tokens": 60, "response_format": schema}
    if path == CHAT:
        messages = [{"role": "user", "content": "the quick brown fox"}]
        return {**body, "messages": messages, "logprobs": logprobs}
    return {**body, "prompt": "the quick brown fox", "logprobs": 1 if logprobs else None}


def chat_choice() -> dict[str, Any]:
    return {"text": "", "logprobs": [], "end": {}}


def added_up(path: str, told: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """For each index its text, its log-probabilities and what its last event says of the end."""
    found: dict[int, dict[str, Any]] = {}
    for choice in (choice for event in told for choice in event["choices"]):
        mine = found.setdefault(choice["index"], chat_choice())
        assert not mine["end"]
        logprobs = choice["logprobs"] or {}
        if path == CHAT:
            mine["text"] += choice["delta"].get("content", "")
            mine["logprobs"] += logprobs.get("content", [])
        else:
            mine["text"] += choice["text"]
            mine["logprobs"] += logprobs.get("tokens", [])
        if choice["finish_reason"]:
            mine["end"] = {name: choice.get(name) for name in ("finish_reason", "truncated")}
    return found


@pytest.mark.parametrize(
    ("path", "n", "stop", "logprobs"),
    list(itertools.product((CHAT, COMPLETIONS), (1, 2), (None, ', "c'), (False, True))),
)
def test_openai_streams_add_up(
    server: Server, path: str, n: int, stop: str | None, logprobs: bool
) -> None:
    body = openai_body(path, n, stop, logprobs)
    whole = post(server, path, body)
    told = events(server, path, {**body, "stream_options": {"include_usage": True}})
    choices = added_up(path, told)
    assert choices.keys() == set(range(n))
    for choice in whole["choices"]:
        mine = choices[choice["index"]]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert mine["text"] == text
        assert mine["end"] == {
            "finish_reason": choice["finish_reason"],
            "truncated": choice.get("truncated"),
        }
        known = choice["logprobs"] or {}
        assert mine["logprobs"] == known.get("content" if path == CHAT else "tokens", [])
        assert bool(mine["logprobs"]) == logprobs
        valid(text)  # a stop that would leave it unfinished is none
    usage = told[-1]["usage"]
    assert usage["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert usage["completion_tokens_details"] == whole["usage"]["completion_tokens_details"]
    if logprobs:
        entries = sum(len(mine["logprobs"]) for mine in choices.values())
        assert entries == usage["completion_tokens"]
        assert usage["completion_tokens_details"]["forced_tokens"] == 0  # each was sampled
    else:
        assert usage["completion_tokens_details"]["forced_tokens"] > 0


@pytest.mark.parametrize(
    ("n", "stop", "logprobs"), list(itertools.product((1, 2), (None, ', "c'), (False, True)))
)
def test_native_streams_add_up(server: Server, n: int, stop: str | None, logprobs: bool) -> None:
    params = {"n": n, "stop": stop, "sampling_seed": 11, "max_new_tokens": 60}
    body = {
        "text": "the quick brown fox",
        "rid": "r",
        "sampling_params": {**params, "json_schema": SCHEMA},
        "return_logprob": logprobs,
    }
    whole = post(server, "/generate", body)
    whole = whole if isinstance(whole, list) else [whole]
    told = events(server, "/generate", body)
    for index, reply in enumerate(whole):
        mine = [each for each in told if each.get("index", 0) == index]
        for before, after in itertools.pairwise(mine):
            assert after["text"].startswith(before["text"])
            assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        last = mine[-1]
        for each in (reply, last):
            for name in ("e2e_latency", "queue_time", "cached_tokens"):
                each["meta_info"].pop(name)
            each.pop("index", None)
        assert last == reply
        valid(reply["text"])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_output_that_is_cut_short_is_valid_all_the_same(server: Server, path: str) -> None:
    body = openai_body(path, 1, None, False)
    refused = httpx.post(f"{server.url}{path}", json={**body, "max_tokens": 1}, timeout=60)
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] == "max_tokens"
    [needed] = re.findall(r"takes (\d+) tokens", error["message"])
    ends = set()
    for bound in range(int(needed), int(needed) + 12):
        whole = post(server, path, {**body, "max_tokens": bound})
        [choice] = whole["choices"]
        valid(choice["message"]["content"] if path == CHAT else choice["text"])
        assert whole["usage"]["completion_tokens"] <= bound
        assert (choice["finish_reason"] == "length") == choice.get("truncated", False)
        ends.add(choice["finish_reason"])
    assert "length" in ends


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_text_cuts_where_the_output_may_end(server: Server, stream: bool) -> None:
    params = {"regex": "[a-c]+( [a-c]+)*", "stop": " ", "sampling_seed": 3, "max_new_tokens": 40}
    body = {"text": "the", "sampling_params": params}
    reply = events(server, "/generate", body)[-1] if stream else post(server, "/generate", body)
    assert re.fullmatch("[a-c]+", reply["text"])


def test_constraints_of_every_kind_at_once(server: Server) -> None:
    """Neighbours in one batch, one of them free."""
    params = [
        {"regex": "[a-f]{3}-[0-9]{2}"},
        {"choice": ["plain", "pleasant"]},
        {"ebnf": 'root ::= "yes" | "no"'},
        {"json_object": True},
        {"json_schema": SCHEMA},
        {},
    ]
    common = {"max_new_tokens": 60, "sampling_seed": 5, "ignore_eos": True}
    replies = post(
        server,
        "/generate",
        {"text": ["the"] * len(params), "sampling_params": [common | each for each in params]},
    )
    pattern, choice, grammar, anything, schema, free = (reply["text"] for reply in replies)
    assert len(pattern) == 6
    assert choice in ("plain", "pleasant")
    assert grammar in ("yes", "no")
    assert isinstance(json.loads(anything), dict)
    valid(schema)
    assert replies[5]["meta_info"]["completion_tokens"] == 60
    alone = post(server, "/generate", {"text": "the", "sampling_params": common})
    assert alone["text"] == free


FAMILY = "🦙é在线👩‍👩‍👧‍👦"


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("pattern", [FAMILY, f"({FAMILY}|[à-ÿ]{{3}})"])
def test_s03_characters_of_several_tokens_come_whole(
    server: Server, path: str, logprobs: bool, pattern: str
) -> None:
    body = {**openai_body(path, 1, None, logprobs), "response_format": None, "regex": pattern}
    whole = post(server, path, body)
    [choice] = whole["choices"]
    text = choice["message"]["content"] if path == CHAT else choice["text"]
    assert re.fullmatch(pattern, text)
    told = events(server, path, body)  # decoding it has checked that every line is UTF-8
    assert not any("\ufffd" in json.dumps(event, ensure_ascii=False) for event in told)
    mine = added_up(path, told)[0]
    assert mine["text"] == text
    if logprobs and path == CHAT:
        assert bytes(b for entry in mine["logprobs"] for b in entry["bytes"]).decode() == text
        assert "".join(entry["token"] for entry in mine["logprobs"]) == text


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("stream", [False, True])
def test_g11_what_does_not_parse_does_not_fail_open(
    server: Server, path: str, stream: bool
) -> None:
    def body(pattern: str) -> dict[str, Any]:
        text = {"type": "string", "pattern": pattern}
        schema = {"type": "object", "properties": {"s": text}, "required": ["s"],
                  "additionalProperties": False}  # fmt: skip
        strict = {"name": "x", "schema": schema, "strict": True}
        asked = {"response_format": {"type": "json_schema", "json_schema": strict}}
        return {**openai_body(path, 1, None, False), **asked, "stream": stream}

    good = body("^hi\\!$")
    if stream:
        assert added_up(path, events(server, path, good))[0]["text"] == '{"s": "hi!"}'
    else:
        [choice] = post(server, path, good)["choices"]
        assert (choice["message"]["content"] if path == CHAT else choice["text"]) == '{"s": "hi!"}'
    grammar = {**good, "response_format": None, "ebnf": 'root ::= "a" nowhere'}
    for bad, said in ((body("["), "#/properties/s/pattern"), (grammar, "nowhere")):
        reply = httpx.post(f"{server.url}{path}", json=bad, timeout=60)
        assert reply.status_code == 400
        assert said in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_structural_tags_over_http(server: Server, stream: bool) -> None:
    content = {"type": "json_schema", "json_schema": SCHEMA}
    form = {"type": "tag", "begin": "<call>", "content": content, "end": "</call>"}
    tag = {"type": "structural_tag", "format": form}
    body = {**openai_body(CHAT, 1, None, False), "response_format": tag, "max_tokens": 90}
    if stream:
        text = added_up(CHAT, events(server, CHAT, body))[0]["text"]
    else:
        text = post(server, CHAT, body)["choices"][0]["message"]["content"]
    [inside] = re.findall("^<call>(.*)</call>$", text)
    valid(inside)
