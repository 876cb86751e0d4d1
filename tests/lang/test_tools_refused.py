"""Tools in programs: what is refused, where it is written or where it does not fit."""

from __future__ import annotations

from typing import Literal

import pytest

import radixserve.lang as rs
from tests.lang.test_tools import asking, call, look_up, now


def unannotated(city): ...


def starred(*cities: str): ...


SPEC = {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}
REFUSED = {
    "a name twice": (lambda: rs.gen("x", tools=[now, now]), ValueError, r"tools\[1\].*'now'"),
    "nothing": (lambda: rs.gen("x", tools=[]), ValueError, "tools is empty"),
    "no list": (lambda: rs.gen("x", tools=now), TypeError, "tools is a list"),
    "a dict": (lambda: rs.gen("x", tools=SPEC), TypeError, "tools is a list"),
    "no annotation": (
        lambda: rs.gen("x", tools=[unannotated]),
        TypeError,
        r"tools\[0\]: unannotated\(\): city has no annotation",
    ),
    "no name": (lambda: rs.gen("x", tools=[starred]), TypeError, r"\*cities"),
    "a lambda": (lambda: rs.gen("x", tools=[lambda: 1]), ValueError, "<lambda>"),
    "no class of objects": (lambda: rs.gen("x", tools=[int]), TypeError, r"tools\[0\]: int"),
    "no tool": (lambda: rs.gen("x", tools=[3]), TypeError, r"tools\[0\]"),
    "no object's schema": (
        lambda: rs.gen("x", tools=[SPEC]),
        ValueError,
        r"tools\[0\].function.parameters",
    ),
    "an unknown field": (
        lambda: rs.gen("x", tools=[{"type": "function", "function": {"name": "f", "x": 1}}]),
        ValueError,
        r"tools\[0\].function",
    ),
    "a bad name": (
        lambda: rs.gen("x", tools=[{"type": "function", "function": {"name": "a b"}}]),
        ValueError,
        r"tools\[0\].function.name",
    ),
    "an unknown choice": (
        lambda: rs.gen("x", tools=[now], tool_choice="look_up"),
        ValueError,
        r"tool_choice is .*now; not 'look_up'",
    ),
    "no choice": (lambda: rs.gen("x", tools=[now], tool_choice=3), ValueError, "tool_choice"),
    "no bool": (
        lambda: rs.gen("x", tools=[now], parallel_tool_calls="no"),
        TypeError,
        "parallel_tool_calls",
    ),
    "a pattern": (lambda: rs.gen("x", tools=[now], regex="a"), ValueError, "regex and tools"),
    "a Literal": (
        lambda: rs.gen("x", tools=[now], schema=Literal["a"]),
        ValueError,
        "choice and tools",
    ),
    "choices": (lambda: rs.gen("x", tools=[now], choices=["a"]), ValueError, "choices and tools"),
    "fields": (
        lambda: rs.gen("x", tools=[now], json_object=True, field_logprobs=True),
        ValueError,
        "field_logprobs and tools",
    ),
    "a call without id": (lambda: rs.tool(rs.ToolCall("f", {}), "x"), TypeError, "id"),
    "no call": (lambda: rs.tool(3, "x"), TypeError, "call"),
    "no result": (lambda: rs.tool("c", object()), TypeError, "result"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_where_it_is_written(name):
    make, error, words = REFUSED[name]
    with pytest.raises(error, match=words):
        make()


def late(s):
    s += rs.user("q") + rs.gen("x")
    s += rs.user("q") + rs.gen("y", tools=[now])


def another(s):
    s += rs.user("q") + rs.gen("x", tools=[now])
    s += rs.user("q") + rs.gen("y", tools=[now, look_up])


def declared_twice(s):
    s += rs.tools([now]) + rs.tools([look_up])


def declared_late(s):
    s += rs.user("q") + rs.gen("x") + rs.tools([now])


def nothing_told(s):
    s += rs.user("q") + rs.gen("x", tool_choice="required")


def unknown_of_told(s):
    s += rs.tools([now]) + rs.user("q") + rs.gen("x", tool_choice="look_up")


def outside(s):
    s += "text" + rs.gen("x", tools=[now])


def in_a_user_block(s):
    s += rs.user("q" + rs.gen("x", tools=[now]))


def unknown_result(s):
    s += rs.user("q") + rs.gen("x", tools=[now])
    s["x"]
    s += rs.tool("call_9", "x")


def written_result(s):
    s += rs.user("q") + rs.gen("x", tools=[now])
    s += rs.tool(s["x"].calls[0], rs.gen("y"))


MISUSED = {
    late: "tools stand where the conversation begins.*rs.tools",
    another: "'look_up' is none of the tools",
    declared_twice: "already",
    declared_late: "rs.tools",
    nothing_told: "tool_choice needs tools",
    unknown_of_told: "tool_choice names 'look_up'",
    outside: "assistant's turn",
    in_a_user_block: "assistant's turn",
    unknown_result: "'call_9'.*call_0",
    written_result: "no text of the model",
}


@pytest.mark.parametrize("body", MISUSED, ids=lambda body: body.__name__)
def test_what_does_not_fit_the_conversation_is_refused(body):
    mock = rs.Mock(lambda prompt: rs.Turn("", [call("now")]) if "tools" in prompt else "x")
    with pytest.raises(rs.ProgramError, match=MISUSED[body]):
        rs.function(body).run(backend=mock)


def test_a_script_may_call_what_the_program_allows(run):
    with pytest.raises(rs.BackendError, match=r"'look_up'.*now"):
        rs.function(asking).run([now], backend=rs.Mock([rs.Turn("", [call()])]))
    with pytest.raises(rs.BackendError, match="look_up"):
        run(lambda s: s.__iadd__(rs.user("q") + rs.gen()), rs.Mock([rs.Turn("", [call()])]))
