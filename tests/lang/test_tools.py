"""Tools in programs: what is declared, what a turn is, results, and what is refused at once."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import itertools
import json
import pickle
from typing import Annotated, Literal

import pydantic
import pytest

import radixserve.lang as rs


def look_up(city: str, deep: int = 1) -> str:
    """How many people live in a city."""
    return f"{city} has {deep}"


def now() -> str:
    """What time it is."""
    return "noon"


async def later(city: str) -> str:
    return city.upper()


def call(name="look_up", **arguments):
    return rs.ToolCall(name, arguments or {"city": "Rome"})


@rs.function
def agent(s, tools=(look_up, now), steps=3, **options):
    s += rs.user("How many live in Rome?")
    for _ in range(steps):
        s += rs.assistant(rs.gen("step", tools=tools, **options))
        if not s["step"].calls:
            break
        for each in s["step"].calls:
            s += rs.tool(each, each.run())
    return s["step"]


CALLS = [
    rs.Turn("Hm. ", [call(), rs.ToolCall("now")]),
    rs.Turn(calls=[call(city="Oslo", deep=2)]),
    "done",
]


# ---- the loop ----


@pytest.mark.parametrize("way", ["run", "stream", "arun", "batch"])
def test_a_loop_of_calls_and_results(way):
    mock = rs.Mock(CALLS)
    if way == "arun":
        state = asyncio.run(agent.arun(backend=mock))
    elif way == "batch":
        [state] = agent.run_batch([{}], backend=mock)
    else:
        state = agent.run(backend=mock, stream=way == "stream")
    assert state.ret_value == "done"
    said, results = state.messages(), {}
    assert [each["role"] for each in said] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant"
    ]  # fmt: skip
    assert said[1]["content"] == "Hm. "
    for each in said:
        for made in each.get("tool_calls", ()):
            results[made["id"]] = made["function"]["name"]
    told = [
        (each["content"], results[each["tool_call_id"]]) for each in said if "tool_call_id" in each
    ]
    assert told == [("Rome has 1", "look_up"), ("noon", "now"), ("Oslo has 2", "look_up")]
    assert all(each["name"] == results[each["tool_call_id"]] for each in said if "name" in each)


def test_a_loop_of_an_async_program():
    @rs.function
    async def looping(s):
        s += rs.user("q")
        while True:
            s += rs.assistant(rs.gen("step", tools=[later]))
            step = await s["step"]
            if not step.calls:
                return step
            for each in step.calls:
                s += rs.tool(each, await each.run())

    mock = rs.Mock([rs.Turn("", [call("later")]), "done"])
    assert asyncio.run(looping.arun(backend=mock)).ret_value == "done"
    assert "<tool>ROME" in mock.prompts[1]


def test_every_prompt_begins_with_the_tools_and_what_came_before():
    mock = rs.Mock(CALLS)
    agent.run(backend=mock)
    first, second, third = mock.prompts
    assert first.startswith("<tools>")
    assert second.startswith(first)
    assert third.startswith(second)
    assert [body["tools"] for body in mock.calls] == [mock.calls[0]["tools"]] * 3
    cached = agent.run(backend=rs.Mock(CALLS)).explain().calls
    for before, each in itertools.pairwise(cached):
        assert each.cached_tokens >= before.prompt_tokens


def test_a_turn_is_its_text():
    turn = rs.Turn("yes", [call()])
    assert (str(turn), f"{turn}", turn.text, turn + "!") == ("yes", "yes", "yes", "yes!")
    assert type(str(turn)) is str
    assert turn.calls == (rs.ToolCall("look_up", {"city": "Rome"}),)
    assert turn == rs.Turn("yes", [call()])
    assert turn != rs.Turn("yes")
    assert turn != "yes"
    assert rs.Turn("yes") == "yes"
    assert hash(turn) == hash("yes")
    assert json.dumps(turn.to_json()) == (
        '{"text": "yes", "calls": [{"id": "", "name": "look_up", "arguments": {"city": "Rome"}}]}'
    )
    assert pickle.loads(pickle.dumps(turn)) == turn
    assert repr(turn) == (
        "Turn('yes', calls=[ToolCall(name='look_up', arguments={'city': 'Rome'}, id='')])"
    )


def test_calls_run_what_the_tool_was():
    class Point(pydantic.BaseModel):
        x: int = pydantic.Field(ge=0)

    @dataclasses.dataclass
    class Answer:
        text: str

    spec = {"type": "function", "function": {"name": "bare"}}
    turn = rs.Turn(
        "",
        [call(), call("later"), call("Point", x=3), call("Answer", text="a"), call("bare", a=1)],
    )
    state = rs.function(asking).run([look_up, later, Point, Answer, spec], backend=rs.Mock([turn]))
    plain, awaited, point, answer, bare = state["x"].calls
    assert plain.run() == "Rome has 1"
    assert asyncio.run(awaited.run()) == "ROME"
    assert (point.run(), answer.run()) == (Point(x=3), Answer("a"))
    with pytest.raises(rs.ProgramError, match="bare was given as a dict"):
        bare.run()
    wrong = rs.Turn("", [call(city=3), call("Point", x=-1)])
    state = rs.function(asking).run([look_up, Point], backend=rs.Mock([wrong]))
    for each in state["x"].calls:
        with pytest.raises(rs.TypedOutputError, match=f"no arguments of {each.name}"):
            each.run()


class Size(enum.Enum):
    BIG = "big"


def asking(s, tools, **options):
    s += rs.user("q") + rs.gen("x", tools=tools, **options)


# ---- schemas ----


class Where(pydantic.BaseModel):
    """A place."""

    city: str
    kind: Literal["town", "village"] = "town"


def test_a_function_is_told_by_signature_and_docstring():
    def search(
        words: Annotated[str, pydantic.Field(description="what for", max_length=9)],
        *,
        where: Where | None = None,
        most: int = 3,
    ):
        """Look for something.

        At most `most` are found.
        """

    mock = rs.Mock(["x"])
    rs.function(asking).run([search, Where], backend=mock)
    function = mock.calls[0]["tools"][0]["function"]
    assert function["description"] == "Look for something.\n\nAt most `most` are found."
    schema = function["parameters"]
    assert schema["required"] == ["words"]
    assert schema["properties"]["words"] == {
        "type": "string", "maxLength": 9, "description": "what for"
    }  # fmt: skip
    assert schema["$defs"]["Where"]["additionalProperties"] is False
    assert '"title"' not in json.dumps(schema)
    place = mock.calls[0]["tools"][1]["function"]
    assert (place["name"], place["description"]) == ("Where", "A place.")
    assert "description" not in place["parameters"]


def test_a_property_may_be_called_title():
    def book(title: str): ...

    mock = rs.Mock(["x"])
    rs.function(asking).run([book], backend=mock)
    parameters = mock.calls[0]["tools"][0]["function"]["parameters"]
    assert parameters["properties"] == {"title": {"type": "string"}}


def test_only_the_types_of_arguments_have_to_be_known():
    @functools.wraps(look_up)
    def wrapped(*args, **kwargs):
        return look_up(*args, **kwargs) + "!"

    def returning(city: str) -> Nowhere: ...  # noqa: F821 - known to a type checker, say

    def taking(city: Nowhere): ...  # noqa: F821

    mock = rs.Mock([rs.Turn("", [call()])])
    state = rs.function(asking).run([wrapped, returning], backend=mock)
    assert state["x"].calls[0].run() == "Rome has 1!"
    with pytest.raises(TypeError, match=r"tools\[0\]: taking\(\): .*Nowhere"):
        rs.gen("x", tools=[taking])


def test_methods_are_tools():
    class Shop:
        def price(self, thing: str) -> str:
            return thing * 2

    mock = rs.Mock([rs.Turn("", [call("price", thing="a")])])
    state = rs.function(asking).run([Shop().price], backend=mock)
    assert state["x"].calls[0].run() == "aa"


# ---- what may be called ----


def test_the_choice_goes_to_the_backend():
    named = {"type": "function", "function": {"name": "now"}}
    some = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named]}}
    for choice, sent in {
        None: None, "auto": "auto", "required": "required", "none": "none", "now": named, now: named
    }.items():  # fmt: skip
        mock = rs.Mock([rs.Turn("", [call("now")])] if choice != "none" else ["x"])
        rs.function(asking).run([look_up, now], tool_choice=choice, backend=mock)
        assert mock.calls[0].get("tool_choice") == sent
        assert "parallel_tool_calls" not in mock.calls[0]
    mock = rs.Mock(["x"])
    rs.function(asking).run(
        [look_up, now], tool_choice=some, parallel_tool_calls=False, backend=mock
    )
    assert (mock.calls[0]["tool_choice"], mock.calls[0]["parallel_tool_calls"]) == (some, False)


def test_declared_tools_stand_first_and_gens_pick_of_them(run):
    def body(s):
        s += rs.tools([look_up, now]) + rs.user("q")
        s += rs.assistant(rs.gen("plan", max_tokens=9))
        s += rs.user("go") + rs.assistant(rs.gen("one", tools=[now]))
        s += rs.user("go") + rs.assistant(rs.gen("two", tool_choice="required"))

    mock = rs.Mock(["plan", rs.Turn("", [call("now")]), rs.Turn("", [call()])])
    state = run(body, mock)
    assert state["plan"] == "plan"
    assert type(state["plan"]) is str
    plan, one, two = mock.calls
    assert [body["input"][0]["tools"] for body in mock.calls] == [two["tools"]] * 3
    assert "tools" not in plan
    assert [each["function"]["name"] for each in one["tools"]] == ["now"]
    assert len(two["tools"]) == 2
    assert mock.prompts[2].startswith(mock.prompts[1])


def test_children_of_a_fork_have_the_tools_and_their_own_calls(run):
    def body(s):
        s += rs.tools([look_up]) + rs.user("q") + rs.gen("a", tool_choice="auto")
        forks = s.fork(2)
        forks += rs.tool(s["a"].calls[0], "seen") + rs.gen("b", tools=[look_up])
        forks.join()

    first = rs.Turn("", [call()])
    state = run(body, rs.Mock(lambda prompt: "b" if "seen" in prompt else first))
    assert state["b"] == ["b", "b"]


def test_several_outputs_each_have_calls(run):
    turns = [rs.Turn("", [call(city=city)]) for city in ("Rome", "Oslo")]

    def body(s):
        s += rs.user("q") + rs.gen("x", tools=[look_up], n=2)
        s += rs.tool(s["x"][0].calls[0], "three") + rs.gen("y")

    mock = rs.Mock(lambda prompt: "y" if "three" in prompt else turns)
    assert [turn.calls[0].arguments["city"] for turn in run(body, mock)["x"]] == ["Rome", "Oslo"]


def test_an_answer_may_be_an_object(run):
    def body(s):
        s += rs.user("q") + rs.gen("x", tools=[look_up], schema=Where)
        s += rs.user("q") + rs.gen("y", tools=[look_up], schema=Where)

    state = run(body, rs.Mock([rs.Turn("", [call()]), '{"city": "Rome"}']))
    assert state["x"].value is None
    assert state["y"].value == Where(city="Rome")


def test_a_call_that_was_kept_has_no_function():
    state = rs.function(asking).run([look_up], backend=rs.Mock([rs.Turn("", [call()])]))
    kept = pickle.loads(pickle.dumps(state["x"]))
    with pytest.raises(rs.ProgramError, match="checkpoint"):
        kept.calls[0].run()


def test_a_stream_has_the_text_without_calls():
    state = agent.run(backend=rs.Mock([*CALLS[:1], "done"]), stream=True)
    assert "".join(state.text_iter()).count("look_up(") == 1
    state = rs.function(asking).run([look_up], backend=rs.Mock(CALLS[:1]), stream=True)
    with pytest.raises(rs.BackendError, match="may call"):
        assert list(state.text_iter("x"))
    state = rs.function(asking).run([look_up, now], backend=rs.Mock(CALLS[:1]), stream=True)
    assert "".join(state.text_iter("x")) == "Hm. "


def test_explain_and_text_show_calls():
    state = agent.run(backend=rs.Mock(CALLS))
    assert 'ASSISTANT: Hm. \nlook_up({"city": "Rome"})\nnow({})\nTOOL: Rome has 1\n' in state.text()
    assert state.explain().calls[0].constraint == "tools"
    assert "look_up" in state.explain().html()


def test_a_checkpoint_keeps_calls(tmp_path):
    path = tmp_path / "kept"
    [first] = agent.run_batch([{}], backend=rs.Mock([*CALLS[:1], "x"]), checkpoint=path)
    [again] = agent.run_batch([{}], backend=rs.Mock([]), checkpoint=path)
    assert again.messages() == first.messages()
    assert again["step"] == first["step"] == "x"


def test_a_recording_answers_with_the_same_calls(tmp_path):
    path = tmp_path / "calls.jsonl"
    recorded = agent.run(backend=rs.Recorder(rs.Mock(CALLS), path))
    for source in (path,):
        assert agent.run(backend=rs.Replay(source)).messages() == recorded.messages()


def test_the_mock_makes_calls_up_where_one_must_come():
    state = rs.function(asking).run([look_up], tool_choice="required", backend=rs.Mock(seed=1))
    [made] = state["x"].calls
    assert made.name == "look_up"
    assert isinstance(made.arguments["city"], str)
    assert made.run()


def test_a_trace_needs_no_answers():
    trace = agent.trace(tool_choice="required", steps=1)
    assert [each.name for each in trace.calls] == ["step"]
