"""Compiled programs do what their programs do, or say why they cannot."""

import asyncio

import pytest

import radixserve.lang as sgl
from tests.lang.programs_async import CASES
from tests.lang.test_suite import GREEDY, Steady, outcome, words

# What looks at a value of the model: a loop on it, its length, an error that is handled.
DYNAMIC = {
    "react_loop",
    "tool_in_the_middle",
    "tree_of_thought",
    "skeleton_of_thought",
    "meta_information",
    "an_error_handled",
    "async_chain",
    "async_loop",
}
STATIC = [case for case in CASES if repr(case) not in DYNAMIC]


def mock():
    return Steady(words, is_instant=True, cuts=True, logprob=lambda c, t: -len(c + t) % 7 - 0.5)


def compiled(case):
    """The program with its text arguments left open."""
    return case.program.compile(
        **{
            name: sgl.placeholder if isinstance(value, str) else value
            for name, value in case.args.items()
        }
    )


def streamed(program, args, backend):
    state = program.run(**args, backend=backend, stream=True, **GREEDY)
    assert "".join(state.text_iter()) == state.text()
    return state


WAYS = {
    "run": lambda program, args, backend: program.run(**args, backend=backend, **GREEDY),
    "arun": lambda program, args, backend: asyncio.run(
        program.arun(**args, backend=backend, **GREEDY)
    ),
    "stream": streamed,
    "batch": lambda program, args, backend: program.run_batch(
        [args] * 2, backend=backend, **GREEDY
    )[1],
}


def everything(state):
    """Also what the calls sent, and where they stood."""
    calls = sorted(state.explain().calls, key=lambda each: each.call)
    told = [(each.call, each.parent, each.kind, each.name, each.text) for each in calls]
    return outcome(state), state.ret_value, told


def body_of(call):
    """A call without what differs between two runs."""
    program = {name: value for name, value in call["program"].items() if name != "id"}
    return call | {"program": program, "rid": ""}


def bodies(backend):
    return sorted(map(body_of, backend.calls), key=lambda body: body["program"]["call"])


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_every_program_compiles_or_says_where_it_cannot(case):
    if case in STATIC:
        assert compiled(case).waves
        return
    with pytest.raises(sgl.DynamicProgram) as caught:
        compiled(case)
    assert caught.value.filename.endswith(".py")
    assert caught.value.line > 1


@pytest.mark.parametrize("case", STATIC, ids=repr)
def test_compiled_is_interpreted(case):
    backend, again = mock(), mock()
    expected = case.program.run(**case.args, backend=backend, **GREEDY)
    program = compiled(case)
    state = program.run(**case.args, backend=again, **GREEDY)
    assert case.check(state)
    assert everything(state) == everything(expected)
    assert bodies(again) == bodies(backend)
    for name, way in WAYS.items():
        assert outcome(way(program, case.args, mock())) == outcome(expected), name


@pytest.mark.parametrize("case", STATIC, ids=repr)
def test_a_graph_survives_json(case):
    program = compiled(case)
    again = sgl.Compiled.from_json(program.to_json())
    assert again.graph == program.graph
    assert again.parameters == program.parameters
    text = again.run(**case.args, backend=mock(), **GREEDY).text()
    assert text == program.run(**case.args, backend=mock(), **GREEDY).text()
