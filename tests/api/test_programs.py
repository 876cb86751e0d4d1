"""POST /v1/programs: programs run in the front, over a scripted gateway."""

from __future__ import annotations

import asyncio
import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import radixserve.lang as sgl
from radixserve.api.programs import PATH
from radixserve.errors import EngineAway, EngineDead, InvalidRequest, QueueFull
from radixserve.lang.compiled.reading import GraphLimits
from radixserve.programs.request import ProgramLimits, read_job
from tests.api.scripted import ScriptedGateway, client
from tests.api.talk import answered, ask, error_of, events_of, streamed
from tests.api.test_clients_leave import LeavingClient


@sgl.function
def card(s, word):
    s += sgl.system("be brief") + sgl.user(f"Where is the {word}?")
    s += sgl.assistant(sgl.gen("where", max_tokens=6))
    g = s.fork(2)
    g += [sgl.user("why?") + sgl.gen("why", max_tokens=3), " so" + sgl.gen("so", stop="quick")]
    g.join()
    s += sgl.user(f"in short, {word}:") + sgl.select("mood", ["good", "bad"])
    return {"where": s["where"], "said": s["why"]}


BODY = {"program": card.compile().graph, "arguments": {"word": "fox"}}


@pytest.fixture
def gateway(renderer):
    return ScriptedGateway(renderer)


def test_a_program_is_one_request(gateway):
    reply = answered(gateway, PATH, BODY)
    assert reply["variables"]["where"].startswith("the quick")
    assert reply["variables"]["so"] == [None, "the "]
    assert reply["variables"]["mood"] in ("good", "bad")
    assert reply["returns"]["said"] == reply["variables"]["why"]
    assert [each["role"] for each in reply["messages"]][:3] == ["system", "user", "assistant"]
    assert reply["text"].startswith("SYSTEM: be brief\nUSER: Where is the fox?\n")
    assert reply["usage"]["calls"] == 4
    assert "calls" not in reply
    programs = [each.program for each in gateway.requests]
    assert {each.call for each in programs} == {"0", "1.0.0", "1.1.0", "2"}
    assert len({each.id for each in programs}) == 1
    assert [each.siblings for each in programs if each.call == "1.1.0"] == [2]


def test_a_stream_tells_each_variable_as_it_comes(gateway):
    events = streamed(gateway, PATH, BODY)
    assert "result" in events[-1]
    where = [each for each in events if each.get("name") == "where"]
    texts = [each["chunk"]["text"] for each in where if "chunk" in each]
    assert texts == sorted(texts, key=len)
    assert where[-1]["text"] == events[-1]["result"]["variables"]["where"]
    [mood] = [each for each in events if each.get("name") == "mood"]
    assert mood["text"] == events[-1]["result"]["variables"]["mood"]
    quiet = streamed(gateway, PATH, BODY | {"stream_text": False})
    assert not [each for each in quiet if "chunk" in each]


def test_the_calls_are_told_to_who_asks(gateway):
    reply = answered(gateway, PATH, BODY | {"return_calls": True})
    assert {each["call"] for each in reply["calls"]} == {"0", "1.0.0", "1.1.0", "2"}
    for each in reply["calls"]:
        assert "prompt" not in each["reply"]["meta_info"]
        assert each["tries"] == 1


def test_the_fields_of_a_call_reach_every_call(gateway):
    fields = {"cache_salt": "mine", "priority": 3, "seed": 5, "sampling": {"temperature": 0.5}}
    answered(gateway, PATH, BODY | fields)
    assert len(gateway.requests) > 4  # a choice is a request of its own
    assert {each.namespace for each in gateway.requests} == {"4:mine"}
    assert {each.priority for each in gateway.requests} == {3}
    [first] = [each for each in gateway.requests if each.program.call == "0"]
    assert first.params.temperature == 0.5
    assert first.params.seed is not None
    before = len(gateway.requests)
    answered(gateway, PATH, BODY | fields)
    [again] = [each for each in gateway.requests[before:] if each.program.call == "0"]
    assert again.params.seed == first.params.seed


# ---- what is refused ----

BAD = [
    ({"program": 5}, "program"),
    ({"program": {}}, "/program"),
    ({"arguments": {}}, "/arguments"),
    ({"arguments": {"word": "a", "x": 1}}, "/arguments/x"),
    ({"sampling": {"regex": "a"}}, "/sampling/regex"),
    ({"sampling": {"temperature": -1}}, "/sampling/temperature"),
    ({"retries": 99}, "retries"),
    ({"seed": -1}, "seed"),
    ({"timeout_s": 0}, "timeout_s"),
    ({"no_such": 1}, "no_such"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=lambda each: str(each)[:40])
def test_a_wrong_field_is_named(gateway, fields, param):
    error = error_of(ask(gateway, PATH, BODY | fields), 400)
    assert error["param"] == param
    assert not gateway.requests


STEPS = [
    ({"do": "text", "text": 5}, "/text"),
    ({"do": "text", "text": [{"ref": 3}]}, "/text"),
    ({"do": "text", "text": [{"arg": "nobody"}]}, "/text"),
    ({"do": "text", "text": [{"arg": "word", "x": 1}]}, "/text/0/x"),
    ({"do": "text", "text": "a", "on": 7}, "/on"),
    ({"do": "text"}, ""),
    ({"do": "sing"}, "/do"),
    ([], ""),
    ({"do": "gen", "name": ""}, "/name"),
    ({"do": "gen", "timeout": -1}, "/timeout"),
    ({"do": "gen", "sampling": {"regex": 5}}, "/sampling/regex"),
    ({"do": "gen", "sampling": {"max_new_tokens": "1"}}, "/sampling/max_new_tokens"),
    ({"do": "gen", "sampling": {"regex": "a", "ebnf": "b"}}, "/sampling/regex"),
    ({"do": "gen", "sampling": {"logit_bias": {"x": 1}}}, "/sampling/logit_bias/x"),
    ({"do": "gen", "sampling": {"stop": ["a", 1]}}, "/sampling/stop/1"),
    ({"do": "gen", "sampling": {"no_such": 1}}, "/sampling/no_such"),
    ({"do": "select", "choices": []}, "/choices"),
    ({"do": "select", "choices": ["a"], "method": "best"}, "/method"),
    ({"do": "role_begin", "role": "tool"}, "/role"),
    ({"do": "role_end", "role": "user"}, "/role"),
    ({"do": "scope_end", "name": "x"}, ""),
    ({"do": "fork", "children": [2, 3]}, "/children"),
    ({"do": "join", "children": [0]}, "/children/0"),
    ({"do": "set", "name": "x", "value": {"what": 1}}, "/value"),
    ({"do": "set", "name": "x", "value": {"ref": 0}}, "/value"),
]


@pytest.mark.parametrize(("step", "place"), STEPS, ids=lambda each: json.dumps(each)[:50])
def test_a_wrong_step_is_named_by_its_pointer(gateway, step, place):
    program = {"radixserve_program": 1, "parameters": ["word"], "steps": [step]}
    error = error_of(ask(gateway, PATH, BODY | {"program": program}), 400)
    assert error["param"] == f"/program/steps/0{place}"
    assert error["code"] == "invalid_program"


@pytest.mark.parametrize(
    ("limit", "most"), [("program_steps", 3), ("program_calls", 2), ("program_branches", 2)]
)
def test_programs_have_limits(gateway, limit, most):
    error = error_of(ask(gateway, PATH, BODY, **{limit: most}), 400)
    assert error["param"].startswith("/program/steps")
    assert not gateway.requests


def test_texts_that_double_end(gateway):
    """Each step puts the text so far in twice: 2 ** 40 characters, were it let."""
    steps = [{"do": "text", "text": "ab"}]
    for _ in range(40):
        steps.append({"do": "whole_text"})
        steps.append({"do": "text", "text": [{"ref": len(steps) - 1}]})
    program = {"radixserve_program": 1, "steps": [*steps, {"do": "gen", "name": "x"}]}
    error = error_of(ask(gateway, PATH, {"program": program}), 400)
    assert "too long" in error["message"]


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 30), st.text(max_size=4)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=5,
)


def places(value, path=()):
    """Every place in a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(child, (*path, key))


ALL_PLACES = [path for path in places(BODY["program"]) if path]


@given(path=st.sampled_from(ALL_PLACES), new=JSON)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_broken_graph_is_answered(gateway, path, new):
    """Whatever stands at any place: the program runs, or a 400 says where it cannot."""
    program = copy.deepcopy(BODY["program"])
    at = program
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = new
    response = ask(gateway, PATH, BODY | {"program": program})
    if response.status_code != 200:
        assert error_of(response, 400)["param"]


# ---- what goes wrong on the way ----


def test_a_refused_call_is_the_programs_error(gateway):
    gateway.refusal = QueueFull("full")
    for stream in (False, True):
        assert error_of(ask(gateway, PATH, BODY | {"stream": stream}), 429)["code"] == "queue_full"
    assert gateway.running == 0


def test_a_bad_constraint_is_a_400(gateway):
    program = {
        "radixserve_program": 1,
        "steps": [
            {"do": "text", "text": "x"},
            {"do": "gen", "name": "x", "sampling": {"json_schema": {"type": "nothing"}}},
        ],
    }
    for stream in (False, True):
        response = ask(gateway, PATH, {"program": program, "stream": stream})
        assert "json_schema" in error_of(response, 400)["param"]


def test_siblings_finish_and_the_error_is_told_where_it_happened(gateway):
    @sgl.function
    def forked(s):
        s += "start"
        g = s.fork(2)
        g += ["a" + sgl.gen("bad", json_schema={"type": "nothing"}), "b" + sgl.gen("good")]
        g.join()

    body = {"program": forked.compile().graph, "stream": True}
    response = ask(gateway, PATH, body)
    *events, last = events_of(response.text, done=False)
    [bad] = [each for each in events if each["name"] == "bad"]
    assert bad["status"] == 400
    assert last["error"] == bad["error"]
    assert "text" in [each for each in events if each["name"] == "good"][-1]
    assert (
        error_of(ask(gateway, PATH, body | {"stream": False}), 400)["param"]
        == last["error"]["param"]
    )


def test_a_failure_amid_a_call(gateway):
    gateway.failure = RuntimeError("secret")
    error = error_of(ask(gateway, PATH, BODY), 500)
    assert "secret" not in error["message"]
    assert gateway.running == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_repeated_when_the_engine_is_back(gateway, monkeypatch, stream):
    monkeypatch.setattr(EngineAway, "retry_after", 0.0)
    gateway.refusal = EngineDead("it ended")
    body = BODY | {"stream": stream}
    assert error_of(ask(gateway, PATH, body), 503)["code"] == "engine_dead"
    gateway.requests.clear()

    async def go():
        async with client(gateway) as own:
            call = asyncio.create_task(own.post(PATH, json=body | {"retries": 1}))
            while not gateway.requests:
                await asyncio.sleep(0.002)
            gateway.refusal = None
            return await call

    assert "the quick" in asyncio.run(go()).text
    assert [each.rid.endswith("-try2") for each in gateway.requests][:3] == [False, True, False]


def test_a_value_that_is_no_text_is_the_clients_fault(gateway):
    body = BODY | {
        "program": {
            **BODY["program"],
            "steps": [{"do": "text", "text": [{"arg": "word"}]}, {"do": "gen"}],
        }
    }
    body["program"]["returns"] = None
    assert (
        error_of(ask(gateway, PATH, body | {"arguments": {"word": 5}}), 400)["param"] == "program"
    )


def test_a_deadline_ends_every_call(gateway):
    gateway.gate = asyncio.Event()  # never set: no call comes to its end
    for stream in (False, True):
        response = ask(gateway, PATH, BODY | {"timeout_s": 0.05, "stream": stream})
        if stream:
            error = events_of(response.text, done=False)[-1]["error"]
        else:
            error = error_of(response, 504)
        assert error["code"] == "deadline_exceeded"
    assert gateway.running == 0
    assert error_of(ask(gateway, PATH, BODY, program_timeout=0.05), 504)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_ends_the_program(gateway, stream):
    async def go():
        gateway.gate = asyncio.Event()
        leaving = LeavingClient(gateway, PATH, BODY | {"stream": stream})
        task = leaving.start()
        while not gateway.at_gate:
            await asyncio.sleep(0.002)
        leaving.left.set()
        await asyncio.wait([task], timeout=5)
        assert gateway.running == 0
        assert len(gateway.closed_early) == 1
        assert len(gateway.requests) == 1
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left

    asyncio.run(go())


def forks_of(size, before):
    """`before` steps, then `size` branches again and again."""
    steps = [{"do": "set", "name": f"v{i}", "value": i} for i in range(before)]
    for start in range(1, 500, size):
        steps.append({"do": "fork", "children": list(range(start, start + size))})
    return steps


@pytest.mark.parametrize(
    "steps",
    [
        forks_of(100, 6000),
        [{"do": "fork", "children": [1]}]
        + [{"on": 1, "do": "set", "name": f"v{i}", "value": i} for i in range(1000)]
        + [{"do": "join", "children": [1]}] * 1000,
    ],
    ids=["forks", "joins"],
)
def test_what_forks_and_joins_copy_is_bounded(gateway, steps):
    program = {"radixserve_program": 1, "steps": steps}
    error = error_of(ask(gateway, PATH, {"program": program}), 400)
    assert "copy too much" in error["message"]


def test_appending_to_a_long_text_again_and_again_ends(gateway):
    steps = [{"do": "text", "text": "a" * 400_000}]
    steps += [{"do": "text", "text": "b"}, {"do": "set", "name": "x", "value": 1}] * 4500
    program = {"radixserve_program": 1, "steps": [*steps, {"do": "gen"}]}
    error = error_of(ask(gateway, PATH, {"program": program}), 400)
    assert "appends too often" in error["message"]


def test_a_program_that_comes_again_is_read_once():
    first, again = (read_job(copy.deepcopy(BODY), ProgramLimits()) for _ in range(2))
    assert first.graph is again.graph
    few = ProgramLimits(graph=GraphLimits(steps=1))
    with pytest.raises(InvalidRequest, match="steps"):
        read_job(copy.deepcopy(BODY), few)
    other = copy.deepcopy(BODY)
    other["program"]["steps"][0] |= {"kind": object()}
    with pytest.raises(InvalidRequest):
        read_job(other, ProgramLimits())
