"""What the Anthropic dialect refuses: each field by its name, in that API's envelope."""

from __future__ import annotations

import asyncio
import json

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from anthropic.types.beta import message_count_tokens_params as beta_count_params
from anthropic.types.beta import message_create_params as beta_create_params
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radixserve.api.anthropic import schema
from radixserve.errors import ContextTooLong, EngineDead, InternalError, QueueFull, TimedOut
from tests.api.anthropic_talk import (
    COUNT,
    HELLO,
    MESSAGES,
    TOOL,
    TOOLS,
    answered,
    body,
    error_of,
    events_of,
    refused,
    result,
    text,
    use,
)
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import ask

FORMAT = {"type": "json_schema", "schema": {"type": "object"}}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer, context_len=4096)


# ---- every field has its place ----

BODIES = [
    (schema.MessagesRequest, schema.REFUSED, message_create_params),
    (schema.MessagesRequest, schema.REFUSED, beta_create_params),
    (schema.CountRequest, schema.REFUSED_COUNT, message_count_tokens_params),
    (schema.CountRequest, schema.REFUSED_COUNT, beta_count_params),
]
IN_HEADERS = {"betas"}


def fields_of(module) -> set[str]:
    names = {"MessageCreateParamsBase", "MessageCreateParamsStreaming", "MessageCountTokensParams"}
    found = [getattr(module, name).__annotations__ for name in names if hasattr(module, name)]
    assert found
    return set().union(*found)


@pytest.mark.parametrize(("ours", "refusals", "module"), BODIES)
def test_every_field_of_the_official_client_has_one_place(ours, refusals, module):
    kept = set(ours.__struct_fields__)
    assert fields_of(module) - kept - set(refusals) == fields_of(module) & IN_HEADERS
    assert kept.isdisjoint(refusals)


@pytest.mark.parametrize("name", sorted(schema.REFUSED))
def test_refused_fields_take_what_asks_for_nothing(gateway, name):
    for value in (None, *schema.REFUSED[name]):
        answered(gateway, **{name: value})
    assert refused(gateway, **{name: {"an": "effect"}}).startswith(name)


def test_null_means_the_default_everywhere(gateway):
    answered(gateway)
    names = set(schema.MessagesRequest.__struct_fields__) - {"messages", "max_tokens"}
    answered(gateway, **dict.fromkeys(names))
    first, second = gateway.requests
    assert (first.prompt, first.params) == (second.prompt, second.params)


# ---- values ----


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": None}, "missing field max_tokens"),
        ({"max_tokens": 2**63}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"messages": None}, "missing field messages"),
        ({"messages": {}}, "messages"),
        ({"model": 5}, "model"),
        ({"colour": 1}, "unknown field colour"),
        ({"max_new_tokens": 1}, "did you mean max_tokens?"),
        ({"stop": ["x"]}, "did you mean stop_sequences?"),
        ({"temperature": 1.01}, "temperature must be from 0 to 1"),
        ({"temperature": -0.1}, "temperature must be from 0 to 1"),
        ({"temperature": True}, "temperature"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -1}, "top_k must be at least 0"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"stop_sequences": ["x"] * 999}, "stop_sequences has 999 entries"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"user": "me"}}, "metadata.user"),
        ({"metadata": {"user_id": "x" * 257}}, "metadata.user_id"),
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "cache_control.ttl"),
        ({"rid": "x" * 257}, "rid"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"program": {}}, "program.id"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format.type"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"output_config": {"effort": "some"}}, "output_config.effort"),
        ({"output_config": {"colour": 1}}, "output_config.colour"),
        ({"output_config": {"format": FORMAT}, "output_format": FORMAT}, "exclude each other"),
        (
            {
                "output_format": FORMAT,
                "messages": [*HELLO, {"role": "assistant", "content": "{"}],
            },
            "output_format excludes an answer that has begun",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": {"uniqueItems": True}}},
            "output_format: uniqueItems",
        ),
    ],
)
def test_values_are_refused_naming_the_field(gateway, fields, named):
    for stream in (False, True):
        assert named in refused(gateway, **{"stream": stream, **fields})
    assert gateway.requests == []


@pytest.mark.parametrize(
    ("tools", "choice", "named"),
    [
        ({}, None, "tools"),
        (["x"], None, "tools[0] must be an object"),
        ([{}], None, "tools[0]"),
        ([{"name": "f"}], None, "missing field tools[0].input_schema"),
        ([{**TOOL, "name": "a b"}], None, "tools[0].name is 1 to 128 letters"),
        ([{**TOOL, "name": "a" * 129}], None, "tools[0].name is 1 to 128 letters"),
        ([TOOL, TOOL], None, "two tools are called get_weather"),
        ([TOOL] * 129, None, "tools has 129 entries"),
        ([{**TOOL, "colour": 1}], None, "tools[0].colour"),
        ([{**TOOL, "input_schema": {"type": "array"}}], None, "tools[0].input_schema.type"),
        (
            [{**TOOL, "input_schema": {"properties": {"a": {"uniqueItems": True}}}}],
            None,
            "tools[0].input_schema: uniqueItems at #/properties/a/uniqueItems",
        ),
        ([{**TOOL, "defer_loading": True}], None, "tools[0].defer_loading"),
        ([{**TOOL, "allowed_callers": ["code_execution_20260120"]}], None, "allowed_callers"),
        ([{**TOOL, "input_examples": [{}]}], None, "tools[0].input_examples"),
        (
            [{"type": "web_search_20250305", "name": "web_search"}],
            None,
            "tools[0].type: tools of type 'web_search_20250305' are not supported",
        ),
        (TOOLS, "any", "tool_choice"),
        (TOOLS, {}, "missing field tool_choice.type"),
        (TOOLS, {"type": "some"}, "tool_choice.type"),
        (TOOLS, {"type": "tool"}, "tool_choice of type tool needs a name"),
        (TOOLS, {"type": "tool", "name": "x"}, "there is no tool called 'x'"),
        (TOOLS, {"type": "any", "name": "now"}, "tool_choice of type any has no use for a name"),
        (TOOLS, {"type": "none", "disable_parallel_tool_use": True}, "disable_parallel_tool_use"),
        ([], {"type": "any"}, "there are no tools"),
        ([], {"type": "tool", "name": "now"}, "there are no tools"),
    ],
)
def test_tools_are_refused_naming_the_place(gateway, tools, choice, named):
    assert named in refused(gateway, tools=tools, tool_choice=choice)


def test_tools_take_what_changes_nothing(gateway):
    cache = {"type": "ephemeral"}
    more = {
        "type": "custom",
        "strict": True,
        "eager_input_streaming": True,
        "cache_control": cache,
        "allowed_callers": ["direct"],
        "defer_loading": False,
        "input_examples": [],
    }
    answered(gateway, tools=[TOOL])
    answered(gateway, tools=[{**TOOL, **more, "name": "get_weather"}])
    answered(gateway, tool_choice={"type": "auto"})
    first, second, _ = gateway.requests
    assert (first.prompt, first.constraint) == (second.prompt, second.constraint)


# ---- the envelope ----


@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (QueueFull("full"), 529, "overloaded_error"),
        (TimedOut("late"), 504, "timeout_error"),
        (InternalError("broken"), 500, "api_error"),
        (ContextTooLong("no room"), 400, "invalid_request_error"),
        (EngineDead("gone"), 503, "overloaded_error"),
        (KeyError("bug"), 500, "api_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_errors_have_their_status_and_type(gateway, refusal, status, kind, stream):
    gateway.refusal = refusal
    response = ask(gateway, MESSAGES, body(stream=stream))
    message = error_of(response, status, kind)
    assert "bug" not in message
    if status in (529, 503):
        assert int(response.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("failure", "kind"), [(InternalError("broken"), "api_error"), (RuntimeError("x"), "api_error")]
)
def test_a_stream_that_fails_ends_with_an_error_event(gateway, failure, kind):
    gateway.failure = failure
    response = ask(gateway, MESSAGES, body(stream=True))
    assert response.status_code == 200
    *early, last = events_of(response.text)
    assert [event["type"] for event in early][:2] == ["message_start", "content_block_start"]
    assert last["type"] == "error"
    assert last["error"]["type"] == kind
    assert last["request_id"] == response.headers["request-id"]


def test_errors_before_any_body_is_read(gateway):
    assert "not JSON" in error_of(ask(gateway, MESSAGES, b"{"), 400).replace("valid ", "")
    assert "API key" in error_of(
        ask(gateway, MESSAGES, body(), api_key=("k",)), 401, "authentication_error"
    )
    error_of(ask(gateway, MESSAGES, body(), max_body=10), 413, "request_too_large")
    error_of(ask(gateway, MESSAGES, None, "GET"), 405)
    error_of(ask(gateway, f"{MESSAGES}/batches", body()), 404, "not_found_error")
    assert "'other'" in error_of(
        ask(gateway, MESSAGES, body(model="other")), 404, "not_found_error"
    )
    given = {"messages": HELLO, "model": "other"}
    assert "'other'" in error_of(ask(gateway, COUNT, given), 404, "not_found_error")


def test_the_dialect_is_that_of_its_paths_alone(gateway):
    for path in ("/v1/messagesx", "/v1/chat/completions", "/messages"):
        told = ask(gateway, path, {}).json()
        assert told["error"].keys() == {"message", "type", "param", "code"}


def test_limits_have_the_envelope(gateway, tmp_path):
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": {"a": {"key": "a", "requests_per_minute": 1}}}))

    async def go():
        gateway.gate = asyncio.Event()
        async with client(gateway, max_streams=1) as http:
            held = asyncio.create_task(http.post(MESSAGES, json=body()))
            while not gateway.at_gate:
                await asyncio.sleep(0.001)
            busy = await http.post(MESSAGES, json=body())
            gateway.gate.set()
            assert (await held).status_code == 200
        async with client(gateway, api_key_file=str(keys)) as http:
            replies = [
                await http.post(MESSAGES, json=body(), headers={"x-api-key": "a"}) for _ in range(2)
            ]
        return busy, replies

    busy, (good, limited) = asyncio.run(go())
    error_of(busy, 529, "overloaded_error")
    assert good.status_code == 200
    error_of(limited, 429, "rate_limit_error")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("x-api-key", "k")], 200),
        ([("authorization", "Bearer k")], 200),
        ([("authorization", "Bearer k"), ("x-api-key", "wrong")], 200),
        ([("authorization", "Bearer wrong"), ("x-api-key", "k")], 401),
        ([("authorization", "Basic k"), ("x-api-key", "k")], 401),
        ([("x-api-key", "k"), ("x-api-key", "k")], 401),
        ([("x-api-key", "")], 401),
        ([("x-api-key", "wrong")], 401),
        ([], 401),
    ],
)
@pytest.mark.parametrize("path", [MESSAGES, "/v1/models"])
def test_a_key_comes_in_either_header(gateway, headers, status, path):
    async def go():
        async with client(gateway, api_key=("k",)) as http:
            if path == MESSAGES:
                return await http.post(path, json=body(), headers=headers)
            return await http.get(path, headers=headers)

    assert asyncio.run(go()).status_code == status


# ---- bodies at random ----

CHARS = st.characters(codec="utf-8")
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(CHARS)
)
SEEDS = [
    *HELLO, text("a"), use(), result(), result([text("b")]), TOOL, FORMAT, "user", "assistant",
    {"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "any"}, {"type": "ephemeral"},
    {"role": "assistant", "content": [use()]}, {"role": "user", "content": [result()]},
    {"type": "enabled", "budget_tokens": 5}, {"type": "image"}, {"type": "tool", "name": "now"},
]  # fmt: skip
NAMES = st.sampled_from(
    ["role", "content", "type", "text", "id", "name", "input", "tool_use_id", "is_error", "schema",
     "cache_control", "thinking", "signature", "input_schema", "format", "budget_tokens"]
)  # fmt: skip
VALUES = st.recursive(
    SCALARS | st.sampled_from(SEEDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def post(renderer):
    """One app in one loop for all bodies."""
    with asyncio.Runner() as runner:
        http = client(ScriptedGateway(renderer))
        yield lambda path, given: runner.run(http.post(path, json=given))
        runner.run(http.aclose())


@given(
    fields=st.dictionaries(
        st.sampled_from([*schema.MessagesRequest.__struct_fields__, *schema.REFUSED]), VALUES
    ),
    path=st.sampled_from([MESSAGES, COUNT]),
)
@settings(suppress_health_check=list(HealthCheck))
def test_no_body_is_a_500(post, fields, path):
    given_body = body(tools=TOOLS) if path == MESSAGES else {"messages": HELLO}
    response = post(path, {**given_body, **fields})
    if response.status_code == 200:
        return
    kinds = {400: "invalid_request_error", 404: "not_found_error"}
    error_of(response, response.status_code, kinds[response.status_code])


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ('{"messages":[{"role":"user","content":"%s"}]}', "messages[0].content"),
        ('{"messages":[{"role":"user","content":[{"type":"text","text":"%s"}]}]}', ".text"),
        ('{"system":"%s"}', "system"),
        ('{"tools":[{"name":"%s"}]}', "tools[0].name"),
        ('{"stop_sequences":["%s"]}', "stop_sequences[0]"),
    ],
)
def test_a09_half_a_surrogate_pair_is_a_400(gateway, template, place):
    given = (template % "\\ud83d").encode()
    message = error_of(ask(gateway, MESSAGES, given), 400)
    assert place in message
    assert "lone surrogate" in message
