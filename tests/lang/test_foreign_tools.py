"""Tools on OpenAI's and Anthropic's endpoints: what is sent, what is read."""

from __future__ import annotations

import pytest

import radixserve.lang as rs
from tests.lang import servers
from tests.lang.test_foreign import chat, claude, openai_server  # noqa: F401 - fixtures


def first(a: str) -> str:
    """The first."""
    return a * 2


SECOND = {"type": "function", "function": {"name": "second", "strict": True}}
FIRST = {
    "type": "function",
    "function": {
        "name": "first",
        "description": "The first.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}


@rs.function
def loop(s, choice="required", some=None, many=None):
    s += rs.tools([first, SECOND]) + rs.user("go")
    s += rs.assistant(
        rs.gen("x", tools=some, tool_choice=choice, parallel_tool_calls=many, max_tokens=9)
    )
    for call in s["x"].calls:
        s += rs.tool(call, "done")
    s += rs.assistant(rs.gen("y", max_tokens=9))


STREAMED = pytest.mark.parametrize("stream", [False, True])


@STREAMED
def test_a_chat_endpoint_has_tools_calls_and_results(openai_server, chat, stream):  # noqa: F811
    state = loop.run(backend=chat, stream=stream)
    assert state["y"] == "done done"
    assert [str(call) for call in state["x"].calls] == ['first({"a": "b"})', 'second({"a": "b"})']
    assert state["x"].text == "go go"
    assert state["x"].calls[0].run() == "bb"
    asked, again = (body for *_, body in openai_server.seen)
    assert asked["tools"] == again["tools"] == [FIRST, SECOND]
    assert (asked["tool_choice"], again["tool_choice"]) == ("required", "none")
    assert "parallel_tool_calls" not in asked
    function = {"name": "first", "arguments": '{"a": "b"}'}
    _, called, result, _ = again["messages"]
    assert called["content"] == "go go"
    assert called["tool_calls"][0] == {"id": "call_0", "type": "function", "function": function}
    assert result == {"role": "tool", "content": "done", "tool_call_id": "call_0"}


def test_some_of_the_tools_are_a_choice_among_them(openai_server, chat):  # noqa: F811
    loop.run("auto", [SECOND], many=False, backend=chat)
    asked = openai_server.seen[0][2]
    named = {"type": "function", "function": {"name": "second"}}
    assert asked["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [named]},
    }
    assert asked["tools"] == [FIRST, SECOND]
    assert asked["parallel_tool_calls"] is False


@STREAMED
def test_the_messages_api_has_tools_calls_and_results(anthropic_server, claude, stream):  # noqa: F811
    state = loop.run(backend=claude, stream=stream)
    assert state["y"] == "done done"
    assert [(call.id, str(call)) for call in state["x"].calls] == [
        ("toolu_1", 'first({"a": "red"})')
    ]
    assert state["x"].text == "go go"
    asked, again = (body for *_, body in anthropic_server.seen)
    assert asked["tools"][0] == {
        "name": "first",
        "description": "The first.",
        "input_schema": FIRST["function"]["parameters"],
    }
    assert asked["tools"][1]["input_schema"] == {"type": "object", "properties": {}}
    assert (asked["tool_choice"], again["tool_choice"]) == ({"type": "any"}, {"type": "none"})
    _, called, result = again["messages"]
    used = {"type": "tool_use", "id": "toolu_1", "name": "first", "input": {"a": "red"}}
    assert called["content"] == [{"type": "text", "text": "go go"}, used]
    assert result == {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}],
    }


CHOICES = {
    "auto": ("auto", None, {"type": "auto"}, ["first", "second"]),
    "one": ("first", None, {"type": "tool", "name": "first"}, ["first", "second"]),
    "some": ("auto", [SECOND], {"type": "auto"}, ["second"]),
    "none": ("none", None, {"type": "none"}, ["first", "second"]),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_in_the_words_of_the_messages_api(anthropic_server, claude, name):  # noqa: F811
    choice, some, sent, shown = CHOICES[name]
    many = None if choice == "none" else False
    loop.run(choice, some, many, backend=claude)
    asked = anthropic_server.seen[0][2]
    disabled = {} if choice == "none" else {"disable_parallel_tool_use": True}
    assert asked["tool_choice"] == sent | disabled
    assert [each["name"] for each in asked["tools"]] == shown


def test_results_of_one_turn_stand_together():
    from radixserve.lang.backends.foreign_tools import anthropic_messages

    results = [{"role": "tool", "tool_call_id": each, "content": each} for each in "ab"]
    told = anthropic_messages([*results, {"role": "user", "content": "c"}, results[0]])
    assert [each["role"] for each in told] == ["user", "user", "user"]
    assert [each["tool_use_id"] for each in told[0]["content"]] == ["a", "b"]


def test_what_has_no_tools_says_so(openai_server, closing):  # noqa: F811
    backend = closing(rs.OpenAI("m", False, base_url=openai_server.url))
    openai_server.seen.clear()
    with pytest.raises(rs.Unsupported, match="tools"):
        loop.run(backend=backend)
    assert openai_server.seen == []


def test_a_block_that_has_called_is_over(chat):  # noqa: F811
    @rs.function
    def goes_on(s):
        s += (
            rs.user("go")
            + rs.assistant_begin()
            + rs.gen("x", tools=[first], tool_choice="required")
        )
        s += rs.gen("y")

    with pytest.raises(rs.Unsupported, match="has called a tool"):
        goes_on.run(backend=chat)


class Bad(servers.OpenAI):
    """Calls with what is no call."""

    calls = ()

    def called(self, body):
        return {"tool_calls": list(self.calls)}


BAD = {
    "arguments that are no JSON": (
        {"id": "c", "type": "function", "function": {"name": "first", "arguments": '{"a'}},
        rs.TypedOutputError,
        "no arguments of first",
    ),
    "arguments that are a list": (
        {"id": "c", "type": "function", "function": {"name": "first", "arguments": "[]"}},
        rs.TypedOutputError,
        "no arguments of first",
    ),
    "another kind of tool": ({"id": "c", "type": "custom"}, rs.BackendError, "of type 'custom'"),
    "no object": ("first", rs.BackendError, "malformed"),
}


@STREAMED
@pytest.mark.parametrize("name", BAD)
def test_calls_that_are_none(closing, name, stream):
    call, error, words = BAD[name]
    if stream and name == "no object":
        return  # the script cannot stream one
    with Bad() as server:
        server.calls = (
            [call] if isinstance(call, str) else [{**{"function": {"arguments": ""}}, **call}]
        )
        backend = closing(rs.OpenAI("m", base_url=server.url))
        with pytest.raises(error, match=words):
            loop.run(backend=backend, stream=stream)["x"]
