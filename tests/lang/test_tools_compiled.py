"""Tools in compiled programs: what the program does, or the line where it cannot be known."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pytest

import radixserve.lang as rs
from radixserve.lang.compiled.reading import MAX_TOOLS_TEXT, GraphLimits, read_graph
from tests.lang.test_tools import look_up, now

GREEDY = {"temperature": 0, "max_new_tokens": 90}
SPEC = {
    "type": "function",
    "function": {
        "name": "colour",
        "description": "paint it",
        "parameters": {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": ["red", "blue"]}},
            "required": ["name"],
        },
    },
}


@rs.function
def asked(s, question):
    """Tools are told by the first call; values are put into texts and returned."""
    s += rs.user(f"about {question}") + rs.assistant(rs.gen("one", tools=[look_up, SPEC]))
    s += rs.user(f"you said {s['one']} ({s['one'].text})")
    s += rs.assistant(rs.gen("two", tool_choice="required", parallel_tool_calls=False))
    s["kept"] = s["two"].calls
    return s["one"], s["two"].calls, [s["one"].text]


@rs.function
def forked(s, question):
    """Tools are declared; children call some of them."""
    s += rs.tools([look_up, SPEC]) + rs.user(question)
    children = s.fork(2)
    children[0].__iadd__(rs.assistant(rs.gen("x", tools=[SPEC], tool_choice="required")))
    children[1].__iadd__(rs.assistant(rs.gen("x")))
    children.join()
    s += rs.assistant(rs.gen("y", tool_choice="none"))


@rs.function
def several(s, question):
    s += rs.user(question) + rs.gen("x", tools=[SPEC], tool_choice="colour", n=2)
    return s["x"][1].calls, s["x"][0]


@rs.function
def only(s):
    s += rs.user("q") + rs.gen("x", tools=[now])


PROGRAMS = [asked, forked, several]
WAYS = {
    "run": lambda program, backend: program.run("it", backend=backend, **GREEDY),
    "arun": lambda program, backend: asyncio.run(program.arun("it", backend=backend, **GREEDY)),
    "stream": lambda program, backend: program.run("it", backend=backend, stream=True, **GREEDY),
    "batch": lambda program, backend: program.run_batch([("it",)], backend=backend, **GREEDY)[0],
}


def mock():
    def said(prompt, body):
        if not body.get("tools") or body.get("tool_choice") == "none":
            return prompt[-2:]
        turn = rs.Turn("Hm.", [rs.ToolCall("colour", {"name": "red"})])
        return turn if body["sampling_params"].get("n", 1) == 1 else [turn, turn]

    return rs.Mock(said, is_instant=True)


def known(value):
    """A value without the ids of calls, which are drawn anew each time."""
    match value:
        case rs.Turn(calls=calls):
            return str(value), known(calls)
        case rs.ToolCall(name=name, arguments=arguments):
            return name, arguments
        case list() | tuple():
            return [known(each) for each in value]
        case dict():
            return {key: known(each) for key, each in value.items() if key != "id"}
        case _:
            return value


def outcome(state):
    names = [name for name in ("one", "two", "kept", "x", "y") if name in state]
    values = {name: known(state[name]) for name in names}
    return state.text(), known(state.messages()), values, known(state.ret_value)


def bodies(backend):
    listed = [
        {**each, "rid": "", "program": {**each["program"], "id": ""}} for each in backend.calls
    ]
    return sorted(listed, key=lambda body: body["program"]["call"])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_compiled_is_interpreted(program):
    backend, again = mock(), mock()
    expected = program.run("it", backend=backend)
    state = program.compile().run("it", backend=again)
    assert outcome(state) == outcome(expected)
    if program is not forked:  # children may call in any order, which numbers the calls
        assert bodies(again) == bodies(backend)
    for name, way in WAYS.items():
        assert outcome(way(program.compile(), mock())) == outcome(expected), name


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_a_graph_survives_json(program):
    made = program.compile()
    again = rs.Compiled.from_json(made.to_json())
    assert again.graph == made.graph
    assert outcome(again.run("it", backend=mock())) == outcome(made.run("it", backend=mock()))


def test_calls_of_a_compiled_program_run(tiny_engine):
    for backend in (mock(), tiny_engine):
        state = several.compile().run("it", backend=backend)
        assert state.ret_value[0][0].name == "colour"
        with pytest.raises(rs.ProgramError):  # a dict is no function
            state.ret_value[0][0].run()
    mock_of_now = rs.Mock([rs.Turn("", [rs.ToolCall("now")])])
    assert only.compile().run(backend=mock_of_now)["x"].calls[0].run() == "noon"


@pytest.fixture(scope="module", params=["tiny_engine", "tiny_server"])
def backend(request):
    if request.param == "tiny_engine":
        yield request.getfixturevalue("tiny_engine")
        return
    endpoint = rs.RuntimeEndpoint(request.getfixturevalue("tiny_server"))
    yield endpoint
    endpoint.close()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
def test_compiled_is_interpreted_where_it_is_served(backend, program):
    expected = program.run("it", backend=backend, **GREEDY)
    for name, way in WAYS.items():
        state = way(program.compile(), backend)
        assert outcome(state) == outcome(expected), name
    values = [expected["two"] if program is asked else expected["x"]]
    calls = [one for turn in flat(values) if isinstance(turn, rs.Turn) for one in turn.calls]
    assert calls
    for each in calls:
        assert each.name != "colour" or each.arguments["name"] in ("red", "blue")


def flat(value):
    for each in value:
        yield from flat(each) if isinstance(each, list) else [each]


def test_any_client_is_told_of_calls(tiny_server):
    body = {"program": several.compile().graph, "arguments": {"question": "it"}}
    request = urllib.request.Request(
        f"{tiny_server}/v1/programs",
        json.dumps(body | {"return_calls": True}).encode(),
        {"content-type": "application/json"},
    )
    told = json.loads(urllib.request.urlopen(request, timeout=60).read())
    first, second = told["variables"]["x"]
    assert first["text"] == ""
    assert first["calls"][0].keys() == {"id", "name", "arguments"}
    assert told["returns"] == {"tuple": []} or told["returns"][0] == second["calls"]
    assert told["calls"][0]["tool_calls"][0][0]["function"]["name"] == "colour"


def looks_at_calls(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    if s["x"].calls:
        s += "!"


def counts_calls(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    for each in s["x"].calls:
        s += str(each)


def runs_a_call(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    s += rs.tool(s["x"].calls[0], "noon")


def asks_for_a_value(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    s["y"] = s["x"].value


def asks_a_plain_text(s, question):
    s += rs.user(question) + rs.gen("x")
    s["y"] = s["x"].calls


def asks_its_type(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    s["y"] = type(s["x"]) is str


def tells_a_result(s, question):
    s += rs.user(question) + rs.gen("x", tools=[now])
    s += rs.tool("call_1", "noon")


def describes_by_a_value(s, question):
    function = {"name": "f", "description": f"about {question}"}
    s += rs.user("q") + rs.gen("x", tools=[{"type": "function", "function": function}])


@pytest.mark.parametrize(
    "body",
    [
        looks_at_calls, counts_calls, runs_a_call, asks_for_a_value, asks_a_plain_text,
        asks_its_type, tells_a_result, describes_by_a_value,
    ],
    ids=lambda body: body.__name__,
)  # fmt: skip
def test_what_looks_at_a_turn_is_refused_by_line(body):
    with pytest.raises(rs.DynamicProgram) as caught:
        rs.function(body).compile()
    assert caught.value.filename == __file__
    first = body.__code__.co_firstlineno
    assert first < caught.value.line <= first + 4


def gen(**fields):
    return [{"do": "role_begin", "role": "assistant"}, {"do": "gen", "name": "x", **fields}]


BAD_GRAPHS = {
    "/steps/0/tools": [{"do": "tools", "tools": []}],
    "/steps/0/tools/0/x": [{"do": "tools", "tools": [{**SPEC, "x": 1}]}],
    "/steps/1/tools": gen(tools=[SPEC, SPEC]),
    "/steps/1/tool_choice": gen(tools=[SPEC], tool_choice="other"),
    "/steps/1/parallel_tool_calls": gen(tools=[SPEC], parallel_tool_calls=3),
    "/steps/2/value": [*gen(), {"do": "set", "name": "y", "value": {"ref": 1, "part": "calls"}}],
    "/steps/2/value/part": [
        *gen(tools=[SPEC]), {"do": "set", "name": "y", "value": {"ref": 1, "part": "name"}}
    ],
}  # fmt: skip


@pytest.mark.parametrize("pointer", BAD_GRAPHS)
def test_a_bad_graph_is_refused_by_pointer(pointer):
    text = json.dumps({"radixserve_program": 1, "steps": BAD_GRAPHS[pointer]})
    with pytest.raises(rs.GraphError) as caught:
        rs.Compiled.from_json(text)
    assert caught.value.pointer == pointer


def test_a_drawing_names_what_may_be_called():
    for program in PROGRAMS:
        here = [each.tools for each in program.trace("it").calls]
        there = [each.tools for each in program.compile().trace().calls]
        assert sorted(here) == sorted(there)
    drawn = str(forked.compile().trace())
    assert "gen x may call colour  [1.0.0]" in drawn or "gen x may call colour  [0.0.0]" in drawn
    assert "gen y  [" in drawn


def test_the_tools_of_a_strangers_graph_are_bounded():
    function = {"name": "f", "description": "x" * MAX_TOOLS_TEXT}
    tools = [{"type": "function", "function": function}]
    for steps in (gen(tools=tools), [{"do": "border"}, {"do": "tools", "tools": tools}]):
        graph = {"radixserve_program": 1, "steps": steps}
        assert read_graph(graph).steps
        with pytest.raises(rs.GraphError) as caught:
            read_graph(graph, limits=GraphLimits(steps=9))
        assert caught.value.pointer == "/steps/1/tools"


def test_the_constant_prefix_has_the_tools():
    for program in (asked, forked):
        backend = mock()
        program.compile().run("it", backend=backend)
        warmed = mock()
        program.compile().warm(warmed)
        assert backend.prompts[0].startswith(warmed.prompts[0])
        assert "<tools>" in warmed.prompts[0]
